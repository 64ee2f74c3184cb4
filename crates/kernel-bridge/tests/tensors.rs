//! Tensors through a JAX function: every type and layout arrives as it was, or is refused aloud.

#![allow(clippy::unwrap_used, reason = "helpers of tests may panic")]
#![allow(clippy::float_cmp, reason = "small integers are exact")]

mod support;

use kernel_bridge::{Arg, Op};
use support::{Sample, bridge};
use tch::{Device, IndexOp, Kind, Tensor};

const IDENTITY: &str = r#"
import jax
import jax.numpy as jnp
from torch_tpu._internal.pallas import jax_op

def _same(x: jax.Array) -> jax.Array:
    return x

def _sum(x: jax.Array, y: jax.Array | None, items: list[jax.Array], *, factor: float = 1.0) -> tuple[jax.Array, jax.Array]:
    total = x + sum(items)
    return total * factor, x if y is None else y

def _consume(x: jax.Array) -> jax.Array:
    return x + 1

same = jax_op("identity::same", _same)
total = jax_op("identity::total", _sum)
consume = jax_op("identity::consume", _consume, donate_argnums=[0])

def through_list(x, y, factor):
    return total(x, None, [x, y], factor=factor)
"#;

fn op(name: &str) -> Op {
    let sample = Sample::new("_identity", &[("__init__.py", IDENTITY)]);
    bridge()
        .load(&sample.verified())
        .unwrap()
        .function(name)
        .unwrap()
}

fn same(tensor: &Tensor) -> Tensor {
    op("same")
        .call(&[Arg::Tensor(tensor)], &[])
        .unwrap()
        .remove(0)
}

fn counted(shape: &[i64], kind: Kind) -> Tensor {
    let count: i64 = shape.iter().product();
    Tensor::arange(count, (Kind::Float, Device::Cpu))
        .to_kind(kind)
        .view(shape)
}

#[test]
fn dimensions_of_size_one_may_have_any_stride_and_cost_one_compile() {
    let op = op("same");
    let usual = counted(&[1, 9, 1, 64], Kind::Float);
    let turned = counted(&[1, 1, 9, 64], Kind::Float).transpose(1, 2);
    assert_ne!(usual.stride(), turned.stride());
    let call = |tensor: &Tensor| op.call(&[Arg::Tensor(tensor)], &[]).unwrap().remove(0);
    assert!(call(&turned).equal(&usual));
    assert!(call(&usual).equal(&usual));
    assert!(call(&turned).equal(&usual));
}

#[test]
fn ml_dtypes_81_every_type_arrives_bit_for_bit() {
    for kind in [
        Kind::Float,
        Kind::BFloat16,
        Kind::Half,
        Kind::Int,
        Kind::Int16,
        Kind::Int8,
        Kind::Uint8,
    ] {
        let tensor = counted(&[3, 4], kind);
        let result = same(&tensor);
        assert_eq!(result.kind(), kind);
        assert!(result.equal(&tensor), "{kind:?}");
    }
    let truth = Tensor::from_slice(&[true, false, true]);
    assert!(same(&truth).equal(&truth));
    let eighth = counted(&[8], Kind::Float).to_kind(Kind::Float8e4m3fn);
    let result = same(&eighth);
    assert_eq!(result.kind(), Kind::Float8e4m3fn);
    assert!(
        result
            .to_kind(Kind::Float)
            .equal(&eighth.to_kind(Kind::Float))
    );
}

#[test]
fn jax_17784_every_layout_arrives_with_the_right_values() {
    let base = counted(&[4, 6, 8], Kind::Float);
    let layouts = [
        ("transposed", base.transpose(0, 2)),
        ("sliced", base.i((.., 1..5, 2..7))),
        ("strided", base.slice(2, 0, 8, 2)),
        (
            "expanded",
            counted(&[1, 8], Kind::Float).expand([5, 8], false),
        ),
        ("misaligned", counted(&[65], Kind::Float).i(1..)),
        ("single", base.i((0..1, 0..1, ..))),
        ("scalar", Tensor::from(2.5_f32)),
        ("empty", Tensor::zeros([0, 3], (Kind::Float, Device::Cpu))),
        ("gradient", base.copy().set_requires_grad(true)),
    ];
    for (name, tensor) in layouts {
        let result = same(&tensor);
        assert_eq!(result.size(), tensor.size(), "{name}");
        assert!(result.equal(&tensor.detach()), "{name}");
    }
}

#[test]
fn jax_470_wide_integers_are_checked_and_wide_floats_refused() {
    let ids = Tensor::from_slice(&[0_i64, 151_645, -(1 << 31), (1 << 31) - 1]);
    let result = same(&ids);
    assert_eq!(result.kind(), Kind::Int);
    assert!(result.to_kind(Kind::Int64).equal(&ids));
    let beyond = Tensor::from_slice(&[(1_i64 << 40) + 7]);
    let error = op("same")
        .call(&[Arg::Tensor(&beyond)], &[])
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("`same` called with Int64[1]: argument `x` is int64")
            && error.contains("1099511627783"),
        "{error}"
    );
    let double = Tensor::from_slice(&[1.0_f64]);
    let error = op("same")
        .call(&[Arg::Tensor(&double)], &[])
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("float64") && error.contains("argument `x`"),
        "{error}"
    );
}

#[test]
fn lists_optionals_and_several_results_pass() {
    let (x, y) = (counted(&[4], Kind::Float), counted(&[4], Kind::Float));
    let results = op("through_list")
        .call(&[Arg::Tensor(&x), Arg::Tensor(&y), Arg::Float(2.0)], &[])
        .unwrap();
    assert_eq!(results.len(), 2);
    assert!(results[0].equal(&(&x * 6.0)));
    assert!(results[1].equal(&x));
}

#[test]
fn a_donated_tensor_cannot_be_used_again() {
    let sample = Sample::new(
        "_donor",
        &[(
            "__init__.py",
            &format!("{IDENTITY}\ndef twice(x):\n    return consume(x) + consume(x)\n"),
        )],
    );
    let twice = bridge()
        .load(&sample.verified())
        .unwrap()
        .function("twice")
        .unwrap();
    let error = twice
        .call(&[Arg::Tensor(&counted(&[4], Kind::Float))], &[])
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("was donated to `identity::consume`"),
        "{error}"
    );
}

#[test]
fn writing_to_an_input_after_the_call_does_not_change_the_result() {
    let same = op("total");
    for round in 0..30 {
        let mut x = Tensor::full([512, 512], round, (Kind::Float, Device::Cpu));
        let sample = Sample::new("_identity", &[("__init__.py", IDENTITY)]);
        let through = bridge()
            .load(&sample.verified())
            .unwrap()
            .function("through_list")
            .unwrap();
        let result = through
            .call(&[Arg::Tensor(&x), Arg::Tensor(&x), Arg::Float(1.0)], &[])
            .unwrap();
        let _ = x.fill_(-1.0);
        assert_eq!(result[0].max().double_value(&[]), 3.0 * round as f64);
        assert_eq!(result[0].min().double_value(&[]), 3.0 * round as f64);
    }
    assert_eq!(same.parameters(), ["x", "y", "items", "factor"]);
}

#[test]
fn a_static_value_compiles_once_and_a_new_shape_once_more() {
    let op = op("through_list");
    let before = bridge().compile_count().unwrap();
    for length in [11, 11, 13, 11, 13] {
        let x = counted(&[length], Kind::Float);
        op.call(&[Arg::Tensor(&x), Arg::Tensor(&x), Arg::Float(7.0)], &[])
            .unwrap();
    }
    // Other tests of this process compile at the same time: look at these shapes only.
    let compiles = bridge().compiles().unwrap();
    let ours = compiles[before..]
        .iter()
        .filter(|compile| {
            compile
                .shapes
                .iter()
                .any(|s| s == "float32[11]" || s == "float32[13]")
        })
        .count();
    assert_eq!(ours, 2, "{compiles:?}");
}

#[test]
fn eight_threads_get_their_own_results() {
    let op = op("same");
    std::thread::scope(|scope| {
        for thread in 0..8_i64 {
            let op = &op;
            scope.spawn(move || {
                for round in 0..50 {
                    let x = Tensor::full([64], thread * 100 + round, (Kind::Float, Device::Cpu));
                    let result = op.call(&[Arg::Tensor(&x)], &[]).unwrap().remove(0);
                    assert!(result.equal(&x));
                }
            });
        }
    });
}

#[test]
fn memory_stays_steady_over_many_calls() {
    let op = op("same");
    let resident = || {
        let text = std::fs::read_to_string("/proc/self/statm").unwrap();
        text.split_whitespace()
            .nth(1)
            .unwrap()
            .parse::<u64>()
            .unwrap()
            * 4096
    };
    let call = || {
        let x = Tensor::zeros([256, 256], (Kind::Float, Device::Cpu));
        op.call(&[Arg::Tensor(&x)], &[]).unwrap();
    };
    (0..500).for_each(|_| call());
    let before = resident();
    // Leaked tensors would add 256 KiB a call: half a gigabyte.
    (0..2_000).for_each(|_| call());
    let grown = resident().saturating_sub(before);
    assert!(grown < 100 << 20, "grew by {grown} bytes");
}
