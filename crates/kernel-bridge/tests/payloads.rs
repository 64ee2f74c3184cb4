//! Loading: what a payload may be, and what it must not be able to do.

#![allow(clippy::unwrap_used, reason = "helpers of tests may panic")]
#![allow(clippy::float_cmp, reason = "small integers are exact")]

mod support;

use kernel_bridge::{Arg, Attributes, BridgeError, LoadedKernel};
use support::{Sample, bridge};
use tch::{Kind, Tensor};

/// A payload as they are published for TPUs: a Pallas body behind `jax_op`, and a layer.
const RELU: &str = r#"
import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from torch_tpu._internal.pallas import jax_op

from . import layers

def _body(x_ref, o_ref):
    o_ref[...] = jnp.maximum(x_ref[...], 0.0)

def _relu(x: jax.Array) -> jax.Array:
    return pl.pallas_call(_body, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)

relu = jax_op("relu_tpu::relu", _relu)
"#;
const RELU_LAYERS: &str = r"
import torch

class ReLU(torch.nn.Module):
    can_torch_compile = True

    def forward(self, x):
        from .. import relu
        return relu(x)
";

fn constant(value: i64) -> String {
    format!("from . import part\nVALUE = {value}\ndef value(x):\n    return x + part.VALUE\n")
}

fn number(kernel: &LoadedKernel) -> f64 {
    let zero = Tensor::from(0.0);
    kernel
        .function("value")
        .unwrap()
        .call(&[Arg::Tensor(&zero)], &[])
        .unwrap()[0]
        .double_value(&[])
}

#[test]
fn a_published_tpu_payload_runs_unchanged_on_the_cpu() {
    let sample = Sample::new(
        "_relu_tpu_tpu_0a1b2c3",
        &[("__init__.py", RELU), ("layers/__init__.py", RELU_LAYERS)],
    );
    let kernel = bridge().load(&sample.verified()).unwrap();
    let x = Tensor::from_slice(&[-1.0_f32, 0.5, 2.0, -3.0]).view([2, 2]);
    let result = &kernel
        .function("relu")
        .unwrap()
        .call(&[Arg::Tensor(&x)], &[])
        .unwrap()[0];
    assert!(result.equal(&x.relu()));
    let layer = kernel
        .layer("ReLU")
        .unwrap()
        .bind(&Attributes::new())
        .unwrap();
    assert!(layer.forward(&[Arg::Tensor(&x)]).unwrap()[0].equal(&x.relu()));
    let compiles = bridge().compiles().unwrap();
    let of_relu: Vec<_> = compiles
        .iter()
        .filter(|c| c.op == "relu_tpu::relu")
        .collect();
    assert_eq!(of_relu.len(), 1, "{compiles:?}");
    assert!(of_relu[0].interpreted);
    assert_eq!(of_relu[0].shapes, ["float32[2, 2]"]);
}

#[test]
fn peer_fault_18_two_kernels_with_one_id_keep_their_own_modules() {
    let one = Sample::new(
        "_twin",
        &[("__init__.py", &constant(1)), ("part.py", "VALUE = 1")],
    );
    let two = Sample::new(
        "_twin",
        &[("__init__.py", &constant(2)), ("part.py", "VALUE = 2")],
    );
    let (one, two) = (
        bridge().load(&one.verified()).unwrap(),
        bridge().load(&two.verified()).unwrap(),
    );
    assert_eq!((number(&one), number(&two)), (1.0, 2.0));
}

#[test]
fn peer_fault_51_a_failed_import_leaves_no_trace_and_can_be_retried() {
    let sample = Sample::new(
        "_retry",
        &[
            (
                "__init__.py",
                "from . import part\nraise ValueError('not today')",
            ),
            ("part.py", "VALUE = 3"),
        ],
    );
    let error = bridge().load(&sample.verified()).unwrap_err();
    assert!(
        matches!(&error, BridgeError::Load { exception, .. }
        if exception.class == "ValueError" && exception.message == "not today"),
        "{error}"
    );
    assert!(
        error.traceback().unwrap().contains("__init__.py"),
        "{error:?}"
    );
    sample.write(
        "_retry",
        &[("__init__.py", &constant(3)), ("part.py", "VALUE = 3")],
    );
    assert_eq!(number(&bridge().load(&sample.verified()).unwrap()), 3.0);
}

#[test]
fn peer_fault_15_bytecode_and_files_beside_the_verified_ones_never_run() {
    let sample = Sample::new(
        "_lean",
        &[(
            "__init__.py",
            "def value(x):\n    import importlib\n    importlib.import_module(__name__ + '.extra')\n    return x\n",
        )],
    );
    let verified = sample.verified();
    // Written after verification, where Python's own loader would find it.
    std::fs::write(verified.path().join("extra.py"), "VALUE = 'unchecked'").unwrap();
    let kernel = bridge().load(&verified).unwrap();
    let zero = Tensor::from(0.0);
    let error = kernel
        .function("value")
        .unwrap()
        .call(&[Arg::Tensor(&zero)], &[])
        .unwrap_err();
    assert!(error.to_string().contains("no module `extra`"), "{error}");
}

#[test]
fn peer_fault_50_threads_that_load_one_kernel_run_it_once() {
    let source = "import sys\nsys._loads = getattr(sys, '_loads', 0) + 1\nLOADS = sys._loads\n\
                  def value(x):\n    return x + sys._loads\n";
    let sample = Sample::new("_once", &[("__init__.py", source)]);
    let verified = sample.verified();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|_| scope.spawn(|| number(&bridge().load(&verified).unwrap())))
            .collect();
        for thread in threads {
            assert_eq!(thread.join().unwrap(), 1.0);
        }
    });
}

#[test]
fn helion_3115_importing_torch_tpu_needs_no_torch_tpu_and_leaves_none_behind() {
    let source = "import sys\nimport torch_tpu\nfrom torch_tpu._internal.pallas import jax_op, custom_jax_kernel\n\
                  assert torch_tpu._internal.pallas.jax_op is jax_op\n\
                  def value(x):\n    return x + int('torch_tpu' in sys.modules)\n";
    let sample = Sample::new("_faced", &[("__init__.py", source)]);
    assert_eq!(number(&bridge().load(&sample.verified()).unwrap()), 0.0);
}

#[test]
fn functions_that_jax_op_refuses_on_a_tpu_are_refused_here() {
    for (body, words) in [
        (
            "def f(x): return x\njax_op('a::f', f)",
            "Missing argument type annotation",
        ),
        (
            "def f(x: jax.Array): return x\njax_op('a::f', f)",
            "The return annotation is invalid",
        ),
        (
            "def f(x: dict) -> jax.Array: return x\njax_op('a::f', f)",
            "Arguments at indices [0]",
        ),
        (
            "def f(x: jax.Array) -> jax.Array: return x\njax_op('f', f)",
            "does not contain a namespace",
        ),
        (
            "def f(x: jax.Array) -> jax.Array: return x\njax_op('a::b::f', f)",
            "exactly one '::'",
        ),
    ] {
        let source = format!("import jax\nfrom torch_tpu._internal.pallas import jax_op\n{body}\n");
        let sample = Sample::new("_strict", &[("__init__.py", &source)]);
        let error = bridge().load(&sample.verified()).unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
    }
}

#[test]
fn layers_that_break_the_rules_are_refused_with_the_reason() {
    let layers = "import torch\n\
        class Good(torch.nn.Module):\n    has_backward = False\n    def forward(self, x):\n        return x * self.scale\n\
        class Built(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n    def forward(self, x):\n        return x\n\
        class Rich(torch.nn.Module):\n    def helper(self):\n        pass\n    def forward(self, x):\n        return x\n\
        class Odd:\n    pass\n";
    let sample = Sample::new(
        "_layers",
        &[
            ("__init__.py", "from . import layers"),
            ("layers.py", layers),
        ],
    );
    let kernel = bridge().load(&sample.verified()).unwrap();
    for (name, words) in [
        ("Built", "__init__"),
        ("Rich", "helper"),
        ("Odd", "not a subclass"),
        ("None_of_these", "it has: Built, Good, Rich"),
    ] {
        let error = kernel.layer(name).unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
    }
    let good = kernel.layer("Good").unwrap();
    assert_eq!(good.parameters(), ["x"]);
    let x = Tensor::from_slice(&[1.0_f32, 2.0]);
    let error = good.bind(&Attributes::new().float("size", 1.0)).unwrap();
    let error = error.forward(&[Arg::Tensor(&x)]).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("reads `Good.scale`, and the model offers: size"),
        "{error}"
    );
}

#[test]
fn a_layer_sees_weights_that_change_in_place() {
    let layers = "import torch\nclass Scale(torch.nn.Module):\n    def forward(self, x):\n        return x * self.inner.weight\n";
    let sample = Sample::new(
        "_shared",
        &[
            ("__init__.py", "from . import layers"),
            ("layers.py", layers),
        ],
    );
    let kernel = bridge().load(&sample.verified()).unwrap();
    let mut weight = Tensor::from_slice(&[1.0_f32, 1.0]);
    let attributes = Attributes::new().child("inner", Attributes::new().tensor("weight", &weight));
    let layer = kernel.layer("Scale").unwrap().bind(&attributes).unwrap();
    let _ = weight.fill_(3.0);
    let x = Tensor::from_slice(&[1.0_f32, 2.0]);
    let result = &layer.forward(&[Arg::Tensor(&x)]).unwrap()[0];
    assert!(result.equal(&Tensor::from_slice(&[3.0_f32, 6.0])));
    assert_eq!(result.kind(), Kind::Float);
}

#[test]
fn an_exception_names_kernel_symbol_and_shapes_and_keeps_its_traceback() {
    let source = "def value(x, *, factor):\n    raise RuntimeError('RESOURCE_EXHAUSTED: vmem\\n\\nlong dump')\n";
    let sample = Sample::new("_broken", &[("__init__.py", source)]);
    let kernel = bridge().load(&sample.verified()).unwrap();
    let x = Tensor::zeros([2, 3], (Kind::BFloat16, tch::Device::Cpu));
    let error = kernel
        .function("value")
        .unwrap()
        .call(&[Arg::Tensor(&x)], &[("factor", Arg::Float(0.5))]);
    let error = error.unwrap_err();
    let text = error.to_string();
    for part in [
        "`value`",
        "BFloat16[2, 3]",
        "factor=0.5",
        "RESOURCE_EXHAUSTED: vmem",
    ] {
        assert!(text.contains(part), "{text}");
    }
    assert!(!text.contains("long dump") && error.traceback().unwrap().contains("long dump"));
    assert!(error.hint().unwrap().contains("memory"));
}

#[test]
fn a_result_that_is_no_tensor_is_an_error() {
    let sample = Sample::new(
        "_text",
        &[("__init__.py", "def value(x):\n    return 'text'\n")],
    );
    let kernel = bridge().load(&sample.verified()).unwrap();
    let zero = Tensor::from(0.0);
    let error = kernel
        .function("value")
        .unwrap()
        .call(&[Arg::Tensor(&zero)], &[])
        .unwrap_err();
    assert!(
        error
            .to_string()
            .contains("returned `str`, expected tensors"),
        "{error}"
    );
}
