//! Devices that tch does not know, on a machine that has none of them: `meta` stands in for a TPU.

#![allow(clippy::unwrap_used, reason = "helpers of tests may panic")]

mod support;

use kernel_bridge::Arg;
use support::{Sample, bridge};
use tch::{Device, Kind, Tensor};

const KERNEL: &str = r#"
import jax
from torch_tpu.pallas import jax_op

def _join(x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
    return x @ y, x.astype("bfloat16")

join = jax_op("devices::join", _join)
"#;

#[test]
fn tensors_are_placed_by_their_like_and_keep_a_name_for_their_device() {
    let x = Tensor::zeros([2, 3], (Kind::Float, Device::Cpu));
    let there = bridge().to_device(&x, "meta").unwrap();
    // What makes the tag of our own necessary.
    assert_ne!(there.device(), Device::Cpu);
    assert_eq!(bridge().device_of(&there).unwrap(), "meta");
    assert_eq!(bridge().device_of(&x).unwrap(), "cpu");
    let with_it = bridge().to_device_of(&x, &there).unwrap();
    assert_eq!(bridge().device_of(&with_it).unwrap(), "meta");
    let error = bridge().to_device(&x, "nowhere").unwrap_err();
    assert!(error.to_string().contains("nowhere"), "{error}");
}

#[test]
fn an_op_tells_shapes_for_tensors_elsewhere_and_refuses_a_mixture() {
    let sample = Sample::new("_devices", &[("__init__.py", KERNEL)]);
    let join = bridge()
        .load(&sample.verified())
        .unwrap()
        .function("join")
        .unwrap();
    let (x, y) = (
        Tensor::zeros([2, 3], (Kind::Float, Device::Cpu)),
        Tensor::zeros([3, 5], (Kind::Float, Device::Cpu)),
    );
    let [there, other] = [&x, &y].map(|tensor| bridge().to_device(tensor, "meta").unwrap());
    let results = join
        .call(&[Arg::Tensor(&there), Arg::Tensor(&other)], &[])
        .unwrap();
    assert_eq!(results[0].size(), [2, 5]);
    assert_eq!(results[1].kind(), Kind::BFloat16);
    assert_eq!(bridge().device_of(&results[0]).unwrap(), "meta");
    let error = join
        .call(&[Arg::Tensor(&x), Arg::Tensor(&other)], &[])
        .unwrap_err();
    assert!(
        error.to_string().contains("several devices: cpu, meta"),
        "{error}"
    );
}
