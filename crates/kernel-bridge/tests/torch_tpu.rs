//! Payloads with the installed torch_tpu behind their decorators, as on a machine with a TPU.
//!
//! A test file of its own: the first start of the bridge decides for the process.

#![allow(clippy::unwrap_used, reason = "helpers of tests may panic")]

mod support;

use kernel_bridge::{Arg, Bridge, BridgeOptions, Environment, PayloadHost};
use kernel_spec::variant::Backend;
use support::of_index;
use tch::{Device, Kind, Tensor};

#[test]
fn a_tpu_payload_runs_on_cpu_tensors_with_torch_tpu_as_with_the_stand_in() {
    let environment = Environment::discover().unwrap();
    let options = BridgeOptions {
        payload_host: PayloadHost::TorchTpu,
        tpu: false,
    };
    let bridge = Bridge::start(&environment, options).unwrap();
    assert!(bridge.versions().contains_key("torch_tpu"));
    let kernel = bridge.load(&of_index("attention", Backend::Tpu)).unwrap();
    let op = kernel.function("attention").unwrap();
    let [q, k, v] =
        [4, 2, 2].map(|heads| Tensor::randn([1, heads, 33, 64], (Kind::Float, Device::Cpu)));
    let result = &op
        .call(
            &[Arg::Tensor(&q), Arg::Tensor(&k), Arg::Tensor(&v)],
            &[
                ("scale", Arg::Float(0.125)),
                ("causal", Arg::Bool(true)),
                ("window", Arg::None),
            ],
        )
        .unwrap()[0];
    let reference =
        Tensor::scaled_dot_product_attention(&q, &k, &v, None::<&Tensor>, 0.0, true, 0.125, true);
    let difference = (result - reference).abs().max().double_value(&[]);
    assert!(difference < 2e-5, "off by {difference}");
}
