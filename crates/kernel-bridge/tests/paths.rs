//! The ways from Rust to a JAX function: whichever a call takes, the result is the same.
//!
//! The way is chosen for the process, so the tests here take turns.

#![allow(clippy::unwrap_used, reason = "helpers of tests may panic")]
#![allow(clippy::float_cmp, reason = "small integers are exact")]

mod support;

use std::sync::{Mutex, MutexGuard, PoisonError};

use kernel_bridge::{Arg, Attributes, BridgeError, CompileGuard, CpuPath, Op};
use kernel_registry::system::pjrt::find_plugin;
use kernel_spec::variant::Backend;
use support::{Sample, bridge, of_index};
use tch::{Device, IndexOp, Kind, Tensor};

const KERNEL: &str = r#"
import jax
import jax.numpy as jnp
import torch
from torch_tpu.pallas import jax_op

def _mix(x: jax.Array, y: jax.Array, *, factor: float = 1.0) -> tuple[jax.Array, jax.Array]:
    return x * y * jnp.asarray(factor, x.dtype), jnp.sum(x, axis=-1)

def _same(x: jax.Array) -> jax.Array:
    return x

def _add(x: jax.Array) -> jax.Array:
    return x + 1

def _twice(x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    y = x + 1
    return y, y, x, x

twice = jax_op("paths::twice", _twice)
mix = jax_op("paths::mix", _mix)
same = jax_op("paths::same", _same)
add = jax_op("paths::add", _add)

from . import layers
"#;

const LAYERS: &str = r"
import torch
from . import add, same

class Branch(torch.nn.Module):
    def forward(self, x):
        return add(x) if float(x.sum()) > 0 else same(x)

class Adds(torch.nn.Module):
    def forward(self, x):
        return add(x)
";

const PATHS: [CpuPath; 3] = [CpuPath::Python, CpuPath::Jax, CpuPath::Auto];

/// Keeps other tests of this file out, and puts the way back.
struct Turn(#[allow(dead_code, reason = "held, not read")] MutexGuard<'static, ()>);

impl Turn {
    fn take() -> Self {
        static TURN: Mutex<()> = Mutex::new(());
        Self(TURN.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        bridge().set_cpu_path(CpuPath::Auto);
        bridge().set_compile_guard(CompileGuard::Allow);
    }
}

fn sample() -> Sample {
    Sample::new("_paths", &[("__init__.py", KERNEL), ("layers.py", LAYERS)])
}

fn op(name: &str) -> Op {
    let kernel = bridge().load(&sample().verified()).unwrap();
    kernel.function(name).unwrap()
}

fn random(shape: &[i64], kind: Kind) -> Tensor {
    Tensor::randn(shape, (Kind::Float, Device::Cpu)).to_kind(kind)
}

#[test]
fn every_way_gives_the_same_results_for_every_layout_and_type() {
    let _turn = Turn::take();
    let mix = op("mix");
    let base = random(&[16, 16], Kind::Float);
    let long = random(&[257], Kind::Float);
    let mut cases = vec![
        (base.transpose(0, 1), base.shallow_clone()),
        (base.i((.., 1..9)), base.i((.., 3..11))),
        (base.slice(1, 0, 16, 2), base.slice(1, 1, 16, 2)),
        (base.i(0..1).expand([5, 16], false), base.i(0..5)),
        (long.i(1..), long.i(..256)),
        (base.i((0..1, ..)), base.i((0..1, ..))),
        (base.copy().set_requires_grad(true), base.shallow_clone()),
    ];
    for kind in [Kind::BFloat16, Kind::Half, Kind::Int, Kind::Int8] {
        cases.push((random(&[4, 64], kind), random(&[4, 64], kind)));
    }
    for (x, y) in &cases {
        let mut results = Vec::new();
        for path in PATHS {
            bridge().set_cpu_path(path);
            // Twice: the first call compiles, the second finds what it left.
            for _ in 0..2 {
                let arguments = [Arg::Tensor(x), Arg::Tensor(y)];
                results.push(
                    mix.call(&arguments, &[("factor", Arg::Float(2.0))])
                        .unwrap(),
                );
            }
        }
        let product = x.detach() * y * 2.0;
        for result in &results {
            assert_eq!(result.len(), 2);
            assert_eq!(result[0].kind(), x.kind());
            assert!(
                result[0].allclose(&product.to_kind(x.kind()), 1e-2, 1e-6, false),
                "{x:?}"
            );
            assert!(
                result[0].equal(&results[0][0]) && result[1].equal(&results[0][1]),
                "{x:?}"
            );
        }
    }
}

#[test]
fn the_plug_in_of_the_environment_is_used_where_it_is_installed() {
    let _turn = Turn::take();
    let environment = bridge().environment().clone();
    let expected = match find_plugin(environment.site_packages()) {
        Ok(_) => CpuPath::Pjrt,
        Err(absent) => {
            println!("kernels run in JAX: {absent}");
            CpuPath::Jax
        }
    };
    assert_eq!(bridge().cpu_path(), expected);
    let add = op("add");
    let x = random(&[3, 43], Kind::Float);
    add.call(&[Arg::Tensor(&x)], &[]).unwrap();
    let compiles = bridge().compiles().unwrap();
    let ours = compiles
        .iter()
        .find(|compile| compile.shapes == ["float32[3, 43]"]);
    assert_eq!(ours.unwrap().path, expected);
}

#[test]
fn a_result_never_shares_memory_with_an_argument() {
    let _turn = Turn::take();
    let same = op("same");
    for path in PATHS {
        bridge().set_cpu_path(path);
        let x = random(&[64], Kind::Float);
        let before = x.copy();
        for _ in 0..2 {
            let mut result = same.call(&[Arg::Tensor(&x)], &[]).unwrap().remove(0);
            assert!(result.equal(&before), "{path:?}");
            let _ = result.fill_(7.0);
            assert!(
                x.equal(&before),
                "{path:?}: a write to the result changed the argument"
            );
        }
    }
}

#[test]
fn results_that_are_one_value_are_tensors_of_their_own() {
    let _turn = Turn::take();
    let twice = op("twice");
    let x = Tensor::zeros([64], (Kind::Float, Device::Cpu));
    for path in PATHS {
        bridge().set_cpu_path(path);
        let mut results = twice.call(&[Arg::Tensor(&x)], &[]).unwrap();
        for (index, value) in [10.0, 20.0, 30.0, 40.0].into_iter().enumerate() {
            let _ = results[index].fill_(value);
        }
        let found: Vec<f64> = results
            .iter()
            .map(|result| result.double_value(&[5]))
            .collect();
        assert_eq!(found, [10.0, 20.0, 30.0, 40.0], "{path:?}");
        assert_eq!(x.double_value(&[5]), 0.0, "{path:?}");
    }
}

#[test]
fn a_result_outlives_its_arguments_and_is_given_back_on_any_thread() {
    let _turn = Turn::take();
    let add = op("add");
    for path in PATHS {
        bridge().set_cpu_path(path);
        let results: Vec<Tensor> = (0..50_i64)
            .map(|value| {
                let x = Tensor::full([1000], value, (Kind::Float, Device::Cpu));
                add.call(&[Arg::Tensor(&x)], &[]).unwrap().remove(0)
            })
            .collect();
        std::thread::spawn(move || {
            for (value, result) in results.iter().enumerate() {
                let expected = Tensor::full([1000], value as i64 + 1, (Kind::Float, Device::Cpu));
                assert!(result.equal(&expected), "{path:?}");
            }
        })
        .join()
        .unwrap();
    }
}

#[test]
fn the_reason_of_a_compile_says_what_was_new_and_the_guard_stops_the_next() {
    let _turn = Turn::take();
    let mix = op("mix");
    let call = |x: &Tensor, factor| {
        let arguments = [Arg::Tensor(x), Arg::Tensor(x)];
        mix.call(&arguments, &[("factor", Arg::Float(factor))])
    };
    let (short, long) = (random(&[2, 31], Kind::Float), random(&[2, 37], Kind::Float));
    call(&short, 9.0).unwrap();
    let before = bridge().compile_count().unwrap();
    call(&long, 9.0).unwrap();
    call(&long, 11.0).unwrap();
    call(&long, 11.0).unwrap();
    let compiles = bridge().compiles().unwrap();
    let reasons: Vec<&str> = compiles[before..]
        .iter()
        .map(|c| c.reason.as_str())
        .collect();
    assert_eq!(
        reasons,
        [
            "`x` is float32[2, 37], was float32[2, 31], `y` is float32[2, 37], was float32[2, 31]",
            "`factor` is 11.0, was 9.0"
        ]
    );
    assert!(compiles[before].trace_seconds > 0.0 && compiles[before].compile_seconds > 0.0);
    bridge().set_compile_guard(CompileGuard::Refuse);
    call(&long, 11.0).unwrap();
    let error = call(&long, 13.0).unwrap_err();
    assert!(
        matches!(&error, BridgeError::Compile { reason, .. } if reason == "`factor` is 13.0, was 11.0"),
        "{error}"
    );
    assert!(error.to_string().contains("factor=13"), "{error}");
    bridge().set_compile_guard(CompileGuard::Warn);
    call(&long, 13.0).unwrap();
}

#[test]
fn a_layer_that_is_one_call_shares_weights_and_one_that_branches_still_branches() {
    let _turn = Turn::take();
    let kernel = bridge().load(&of_index("rms-norm", Backend::Cpu)).unwrap();
    let x = random(&[3, 64], Kind::Float);
    let mut weight = random(&[64], Kind::Float);
    for path in PATHS {
        bridge().set_cpu_path(path);
        let attributes = Attributes::new()
            .tensor("weight", &weight)
            .float("variance_epsilon", 1e-6);
        let layer = kernel.layer("RMSNorm").unwrap().bind(&attributes).unwrap();
        for value in [1.0, 2.0] {
            let _ = weight.fill_(value);
            let result = layer.forward(&[Arg::Tensor(&x)]).unwrap().remove(0);
            let mean = x.square().mean_dim(-1, true, Kind::Float);
            let expected = &x * (mean + 1e-6).rsqrt() * &weight;
            assert!(result.allclose(&expected, 1e-5, 1e-6, false), "{path:?}");
        }
        // What `forward` reads and a model lacks is still said.
        let bare = kernel
            .layer("RMSNorm")
            .unwrap()
            .bind(&Attributes::new())
            .unwrap();
        let error = bare.forward(&[Arg::Tensor(&x)]).unwrap_err().to_string();
        assert!(error.contains("reads `RMSNorm.weight`"), "{error}");
    }
    let kernel = bridge().load(&sample().verified()).unwrap();
    let layer = |name: &str| {
        kernel
            .layer(name)
            .unwrap()
            .bind(&Attributes::new())
            .unwrap()
    };
    let (branch, adds) = (layer("Branch"), layer("Adds"));
    let one = Tensor::ones([4], (Kind::Float, Device::Cpu));
    for (x, expected) in [(&one, 2.0), (&-&one, -1.0), (&one, 2.0)] {
        let result = branch.forward(&[Arg::Tensor(x)]).unwrap().remove(0);
        assert_eq!(result.double_value(&[0]), expected);
    }
    assert_eq!(
        adds.forward(&[Arg::Tensor(&one)]).unwrap()[0].double_value(&[0]),
        2.0
    );
    let error = adds
        .forward(&[Arg::Tensor(&one), Arg::Tensor(&one)])
        .unwrap_err();
    assert!(matches!(error, BridgeError::Argument { .. }), "{error}");
}

#[test]
fn eight_threads_on_one_op_get_their_own_results() {
    let _turn = Turn::take();
    let add = op("add");
    for path in PATHS {
        bridge().set_cpu_path(path);
        std::thread::scope(|scope| {
            for thread in 0..8_i64 {
                let add = &add;
                scope.spawn(move || {
                    for round in 0..100 {
                        let x =
                            Tensor::full([64], thread * 1000 + round, (Kind::Float, Device::Cpu));
                        let result = add.call(&[Arg::Tensor(&x)], &[]).unwrap().remove(0);
                        assert!(result.equal(&(&x + 1.0)), "{path:?}");
                    }
                });
            }
        });
    }
}

fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = text.split_whitespace().nth(1).unwrap().parse().unwrap();
    pages * 4096
}

fn grown_by(calls: usize, path: CpuPath) -> u64 {
    bridge().set_cpu_path(path);
    let mix = op("mix");
    let call = || {
        // Transposed: it is copied first. Of another size each time would compile.
        let x = Tensor::zeros([64, 64], (Kind::Float, Device::Cpu));
        mix.call(&[Arg::Tensor(&x), Arg::Tensor(&x.transpose(0, 1))], &[])
            .unwrap();
    };
    (0..2_000).for_each(|_| call());
    let before = resident();
    (0..calls).for_each(|_| call());
    resident().saturating_sub(before)
}

#[test]
fn memory_stays_steady_on_every_way() {
    let _turn = Turn::take();
    for path in PATHS {
        // A leaked tensor of 16 KiB a call would be 48 MiB.
        let grown = grown_by(3_000, path);
        assert!(grown < 8 << 20, "{path:?} grew by {grown} bytes");
    }
}

#[test]
#[ignore = "a minute; run with `cargo test --package kernel-bridge --test paths -- --ignored`"]
fn memory_stays_steady_over_a_hundred_thousand_calls() {
    let _turn = Turn::take();
    for path in PATHS {
        // Forty bytes a call would be 4 MiB.
        let grown = grown_by(100_000, path);
        println!("{path:?}: {grown} bytes over 100,000 calls");
        assert!(grown < 4 << 20, "{path:?} grew by {grown} bytes");
    }
}
