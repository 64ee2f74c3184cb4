//! Everything that a TPU kernel may be: the ways to name the decorators, what arguments and results
//! there are, and the forms that a repository has.

#![allow(clippy::unwrap_used, reason = "helpers of tests may panic")]
#![allow(clippy::float_cmp, reason = "small integers are exact")]

mod support;

use std::time::Duration;

use hub_fixture::{Build, Hub, KernelTree, Trust};
use kernel_bridge::{Arg, BridgeError, LoadedKernel};
use kernel_registry::{Registry, VerifiedKernel};
use kernel_spec::{Backend, Dependency, Requirement, System};
use support::{Sample, bridge};
use tch::Tensor;

/// Loads a kernel of one file.
fn kernel(id: &str, source: &str) -> LoadedKernel {
    let sample = Sample::new(id, &[("__init__.py", source)]);
    bridge().load(&sample.verified()).unwrap()
}

fn numbers(values: &[f32]) -> Tensor {
    Tensor::from_slice(values)
}

fn call(kernel: &LoadedKernel, name: &str, arguments: &[Arg<'_>]) -> Vec<Tensor> {
    kernel.function(name).unwrap().call(arguments, &[]).unwrap()
}

#[test]
fn the_decorators_are_found_by_each_path_that_they_have_had() {
    let source = r#"
import jax
import torch
import torch_tpu
import torch_tpu._internal.pallas
import torch_tpu._internal.pallas.pallas
import torch_tpu.pallas
import torch.tpu.pallas
from torch import tpu
from torch.tpu import pallas
from torch.tpu.pallas import jax_op
from torch_tpu import pallas as second
from torch_tpu._internal import pallas as third
from torch_tpu._internal.pallas.pallas import custom_jax_kernel

paths = [jax_op, torch.tpu.pallas.jax_op, tpu.pallas.jax_op, pallas.jax_op, second.jax_op, third.jax_op,
         torch_tpu._internal.pallas.jax_op, torch_tpu._internal.pallas.pallas.jax_op]

def _make(index):
    def add(x: jax.Array) -> jax.Array:
        return x + index
    return add

ops = [path(f"paths::add{index}", _make(index)) for index, path in enumerate(paths)]
old = custom_jax_kernel(_make(100), "old", warn_deprecated=False)

def each(x):
    return [op(x) for op in ops] + [old(x)]
"#;
    let results = call(
        &kernel("_paths", source),
        "each",
        &[Arg::Tensor(&numbers(&[0.0]))],
    );
    let found: Vec<f64> = results
        .iter()
        .map(|tensor| tensor.double_value(&[0]))
        .collect();
    assert_eq!(found, [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 100.0]);
}

#[test]
fn static_arguments_of_each_type_arrive_as_what_the_annotation_says() {
    let source = r#"
import enum
from collections.abc import Sequence
from typing import Literal, Optional
import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch_tpu.pallas import jax_op

class Mode(enum.Enum):
    ADD = "add"
    DROP = "drop"

class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2

def _all(x: jax.Array, count: int, *, factor: float = 1.0, mode: Mode = Mode.DROP, level: Level = Level.LOW,
         name: str = "n", flag: bool = False, dtype: torch.dtype = torch.float32, sizes: tuple[int, ...] = (),
         window: Optional[int] = None, kind: Literal["a", "b"] = "a", scales: Sequence[float] = ()) -> jax.Array:
    assert type(count) is int and type(factor) is float and type(flag) is bool, (count, factor, flag)
    assert isinstance(mode, Mode) and isinstance(level, Level) and type(name) is str, (mode, level, name)
    assert isinstance(sizes, tuple) and isinstance(scales, (tuple, list)) and kind in ("a", "b")
    assert jnp.dtype(dtype) in (jnp.dtype("float32"), jnp.dtype("bfloat16")), dtype
    total = count * factor + (10 if mode is Mode.ADD else 0) + int(level) + len(name) + flag
    total += sum(sizes) + (window or 0) + sum(scales) + (kind == "b")
    return (x + total).astype(dtype)

op = jax_op("statics::all", _all)

def defaults(x):
    return op(x, 1)

def given(x):
    return op(x, 2, factor=2, mode=Mode.ADD, level=2, name="four", flag=1, dtype=torch.bfloat16, sizes=[1, 2],
              window=5, kind="b", scales=[0.5, 0.5])

def plain(x, count, *, factor, name, flag):
    return op(x, count, factor=factor, name=name, flag=flag)
"#;
    let kernel = kernel("_statics", source);
    let zero = numbers(&[0.0]);
    let value = |name: &str| call(&kernel, name, &[Arg::Tensor(&zero)]).remove(0);
    assert_eq!(value("defaults").double_value(&[0]), 3.0);
    let given = value("given");
    assert_eq!(given.kind(), tch::Kind::BFloat16);
    // 2 * 2 + 10 + 2 + 4 + 1 + 3 + 5 + 1 + 1
    assert_eq!(given.double_value(&[0]), 31.0);
    let plain = kernel.function("plain").unwrap();
    let keywords = [
        ("factor", Arg::Float(0.5)),
        ("name", Arg::Text("")),
        ("flag", Arg::Bool(true)),
    ];
    let result = plain.call(&[Arg::Tensor(&zero), Arg::Int(4)], &keywords);
    assert_eq!(result.unwrap()[0].double_value(&[0]), 4.0);
    // The op itself, called with what its annotations do not allow.
    let op = kernel.function("op").unwrap();
    let error = op
        .call(&[Arg::Tensor(&zero), Arg::Text("four")], &[])
        .unwrap_err();
    assert!(
        matches!(&error, BridgeError::Argument { parameter, .. } if parameter == "count"),
        "{error}"
    );
    assert!(error.to_string().contains("expected int"), "{error}");
    let error = op
        .call(
            &[Arg::Tensor(&zero), Arg::Int(1)],
            &[("fator", Arg::Float(1.0))],
        )
        .unwrap_err();
    assert!(
        error
            .to_string()
            .contains("`fator` is not a parameter of the op"),
        "{error}"
    );
}

#[test]
fn optional_and_listed_tensors_and_results_of_every_form_pass() {
    let source = r#"
from typing import NamedTuple, Optional
import jax
import torch
from torch_tpu.pallas import jax_op

def _forms(x: jax.Array, bias: Optional[jax.Array], parts: list[jax.Array], pair: tuple[jax.Array, jax.Array],
           extra: torch.Tensor | None = None) -> tuple[jax.Array, jax.Array]:
    assert isinstance(parts, list) and isinstance(pair, tuple)
    total = x + sum(parts) + pair[0] * pair[1]
    return total if bias is None else total + bias, total if extra is None else total * extra

def _listed(x: jax.Array) -> list[jax.Array]:
    return [x, x + 1, x + 2]

forms = jax_op("forms::forms", _forms)
listed = jax_op("forms::listed", _listed)

def without(x):
    return forms(x, None, [x, x], (x, x))

def with_all(x):
    return forms(x, x, [], (x, x), extra=x)

def wrong(x):
    return forms(x, None, x, (x, x))
"#;
    let kernel = kernel("_forms", source);
    let two = numbers(&[2.0]);
    let values = |name: &str| -> Vec<f64> {
        let results = call(&kernel, name, &[Arg::Tensor(&two)]);
        results
            .iter()
            .map(|tensor| tensor.double_value(&[0]))
            .collect()
    };
    assert_eq!(values("without"), [10.0, 10.0]);
    assert_eq!(values("with_all"), [8.0, 12.0]);
    assert_eq!(values("listed"), [2.0, 3.0, 4.0]);
    let error = kernel
        .function("wrong")
        .unwrap()
        .call(&[Arg::Tensor(&two)], &[])
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("argument `parts` is a tensor, expected a list"),
        "{error}"
    );
}

#[test]
fn the_older_decorator_takes_statics_by_place_and_name_and_copies_aliases_back() {
    let source = r#"
from torch_tpu._internal.pallas import custom_jax_kernel

def _scale(x, count, *, factor):
    assert type(count) is int and type(factor) is float
    return x * count * factor

def _update(cache, x):
    return cache + x, x

scale = custom_jax_kernel(_scale, "scale", static_argnums=(1,), static_argnames=("factor",))
update = custom_jax_kernel(_update, "update", input_output_aliases={0: 0})

def twice(x):
    cache = x.clone()
    update(cache, x)
    update(cache, x)
    return cache
"#;
    let kernel = kernel("_older", source);
    let two = numbers(&[2.0]);
    let scale = kernel.function("scale").unwrap();
    let result = scale
        .call(
            &[Arg::Tensor(&two), Arg::Int(3)],
            &[("factor", Arg::Float(0.5))],
        )
        .unwrap();
    assert_eq!(result[0].double_value(&[0]), 3.0);
    // An alias keeps its tensor usable: it holds the new value.
    assert_eq!(
        call(&kernel, "twice", &[Arg::Tensor(&two)])[0].double_value(&[0]),
        6.0
    );
}

#[test]
fn ops_are_found_through_the_helper_that_kernel_builder_writes() {
    let sample = Sample::new(
        "_helped_tpu_0a1b2c3",
        &[
            (
                "__init__.py",
                "import jax\nfrom torch_tpu._internal.pallas import jax_op\n\
                 from ._ops import add_op_namespace_prefix, ops\n\
                 def _double(x: jax.Array) -> jax.Array:\n    return x * 2\n\
                 jax_op(add_op_namespace_prefix('double'), _double)\n\
                 def double(x):\n    return ops.double(x)\n\
                 def default(x):\n    return ops.double.default(x)\n\
                 def relu(x):\n    import torch\n    return torch.ops.aten.relu(x)\n",
            ),
            (
                "_ops.py",
                "import torch\n\nops = torch.ops._helped_tpu_0a1b2c3\n\n\n\
                 def add_op_namespace_prefix(op_name: str) -> str:\n    \
                 return f\"_helped_tpu_0a1b2c3::{op_name}\"\n",
            ),
        ],
    );
    let kernel = bridge().load(&sample.verified()).unwrap();
    let value =
        |name: &str| call(&kernel, name, &[Arg::Tensor(&numbers(&[-3.0]))])[0].double_value(&[0]);
    assert_eq!(
        (value("double"), value("default"), value("relu")),
        (-6.0, -6.0, 0.0)
    );
}

#[test]
fn the_older_layout_with_a_folder_of_the_kernel_s_name_loads() {
    // `Sample` calls its kernels `sample`.
    let sample = Sample::new(
        "_older_layout",
        &[
            ("sample/__init__.py", "from .part import value\n"),
            ("sample/part.py", "def value(x):\n    return x + 5\n"),
        ],
    );
    let kernel = bridge().load(&sample.verified()).unwrap();
    assert_eq!(
        call(&kernel, "value", &[Arg::Tensor(&numbers(&[1.0]))])[0].double_value(&[0]),
        6.0
    );
}

#[test]
fn kernels_of_other_jax_libraries_run_and_a_missing_library_is_named() {
    let source = r#"
import functools
import jax
from jax.experimental.pallas.ops.tpu.flash_attention import flash_attention
from torch_tpu.pallas import jax_op

def _attention(q: jax.Array, k: jax.Array, v: jax.Array, *, scale: float) -> jax.Array:
    return flash_attention(q, k, v, causal=True, sm_scale=scale)

attention = jax_op("flash::attention", _attention)
"#;
    let kernel = kernel("_flash", source);
    let [q, k, v] =
        [(); 3].map(|()| Tensor::randn([1, 1, 128, 128], (tch::Kind::Float, tch::Device::Cpu)));
    let result = kernel
        .function("attention")
        .unwrap()
        .call(
            &[Arg::Tensor(&q), Arg::Tensor(&k), Arg::Tensor(&v)],
            &[("scale", Arg::Float(0.125))],
        )
        .unwrap();
    let expected =
        Tensor::scaled_dot_product_attention(&q, &k, &v, None::<&Tensor>, 0.0, true, 0.125, false);
    let difference = (&result[0] - expected).abs().max().double_value(&[]);
    assert!(difference < 2e-4, "off by {difference}");

    let sample = Sample::new(
        "_lacking",
        &[("__init__.py", "import no_such_jax_library\n")],
    );
    let error = bridge().load(&sample.verified()).unwrap_err();
    assert!(error.to_string().contains("no_such_jax_library"), "{error}");
    assert!(
        error.hint().unwrap().contains("install the module"),
        "{error:?}"
    );
}

/// Kernels of a Hub, resolved for a machine without accelerators.
struct Kernels {
    _hub: Hub,
    registry: Registry,
    _cache: tempfile::TempDir,
}

impl Kernels {
    fn of(trees: impl IntoIterator<Item = KernelTree>) -> Self {
        let owners = ["one", "two", "test"];
        let hub = owners
            .into_iter()
            .fold(Hub::builder().kernels(trees), |hub, owner| {
                hub.organization(owner, Trust::Trusted)
            })
            .start()
            .unwrap();
        let cache = tempfile::tempdir().unwrap();
        let registry = Registry::builder()
            .cache_dir(cache.path())
            .endpoint(hub.endpoint())
            .token("")
            .offline(false)
            .system(System::new("x86_64", "linux", Backend::Cpu))
            .retries(2, Duration::from_millis(1))
            .build()
            .unwrap();
        Self {
            _hub: hub,
            registry,
            _cache: cache,
        }
    }

    fn verified(&self, reference: &str) -> VerifiedKernel {
        let resolved = self.registry.resolve(&reference.parse().unwrap()).unwrap();
        self.registry
            .install(&resolved)
            .unwrap()
            .verified()
            .unwrap()
    }
}

fn plain(value: i64) -> Build {
    let source = format!("def value(x):\n    return x + {value}\n");
    Build::new("torch-cpu").file("__init__.py", source)
}

#[test]
fn two_versions_and_two_owners_of_one_name_live_side_by_side() {
    let kernels = Kernels::of([
        KernelTree::new("one/scale")
            .build("v1", plain(1))
            .build("v2", plain(2)),
        KernelTree::new("two/scale").build("v1", plain(10)),
        KernelTree::new("two/anywhere").build(
            "v1",
            Build::new("torch-universal").file("__init__.py", "def value(x):\n    return x + 20\n"),
        ),
    ]);
    let loaded: Vec<LoadedKernel> = [
        "one/scale@v1",
        "one/scale@v2",
        "two/scale@v1",
        "two/anywhere@v1",
    ]
    .into_iter()
    .map(|reference| bridge().load(&kernels.verified(reference)).unwrap())
    .collect();
    let zero = numbers(&[0.0]);
    let values: Vec<f64> = loaded
        .iter()
        .map(|kernel| call(kernel, "value", &[Arg::Tensor(&zero)])[0].double_value(&[0]))
        .collect();
    assert_eq!(values, [1.0, 2.0, 10.0, 20.0]);
}

#[test]
fn a_kernel_reaches_the_kernels_that_it_depends_on_and_no_others() {
    let leaf = Build::new("torch-cpu").file("__init__.py", "def three():\n    return 3\n");
    let top = Build::new("torch-cpu")
        .file(
            "__init__.py",
            "from kernels import get_kernel_dep\nleaf = get_kernel_dep('test/leaf')\n\
             def value(x):\n    return x + leaf.three()\n\
             def other(x):\n    return get_kernel_dep('test/other')\n",
        )
        .metadata(|metadata| {
            metadata.kernel_depends.push(Dependency {
                repository: "test/leaf".parse().unwrap(),
                requirement: Requirement::Version(3),
            });
        });
    let kernels = Kernels::of([
        KernelTree::new("test/leaf").build("v3", leaf),
        KernelTree::new("test/top").build("v1", top),
    ]);
    let kernel = bridge().load(&kernels.verified("test/top@v1")).unwrap();
    let zero = numbers(&[0.0]);
    assert_eq!(
        call(&kernel, "value", &[Arg::Tensor(&zero)])[0].double_value(&[0]),
        3.0
    );
    let error = kernel
        .function("other")
        .unwrap()
        .call(&[Arg::Tensor(&zero)], &[])
        .unwrap_err();
    assert!(
        error.to_string().contains(
            "`test/other` is not among the kernel-depends of this kernel (it has: test/leaf)"
        ),
        "{error}"
    );
}
