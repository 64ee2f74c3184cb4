//! The kernels of this repository's index, both builds, against plain libtorch.

#![allow(clippy::unwrap_used, reason = "helpers of tests may panic")]

mod support;

use kernel_bridge::{Arg, Attributes, LoadedKernel};
use kernel_spec::variant::Backend;
use support::{bridge, of_index};
use tch::{Device, Kind, Tensor};

fn kernels(name: &str) -> [LoadedKernel; 2] {
    [Backend::Cpu, Backend::Tpu].map(|backend| bridge().load(&of_index(name, backend)).unwrap())
}

fn random(shape: &[i64], kind: Kind) -> Tensor {
    Tensor::randn(shape, (Kind::Float, Device::Cpu)).to_kind(kind)
}

fn close(result: &Tensor, reference: &Tensor, kind: Kind, what: &str) {
    let tolerance = if kind == Kind::Float { 2e-5 } else { 3e-2 };
    assert_eq!(result.kind(), kind, "{what}");
    let difference = (result.to_kind(Kind::Double) - reference.to_kind(Kind::Double))
        .abs()
        .max()
        .double_value(&[]);
    assert!(difference < tolerance, "{what}: off by {difference}");
}

#[test]
fn attention_agrees_with_sdpa_on_ragged_lengths() {
    tch::manual_seed(1);
    for kernel in kernels("attention") {
        let op = kernel.function("attention").unwrap();
        for kind in [Kind::Float, Kind::BFloat16] {
            for length in [1, 2, 31, 33, 127, 129] {
                let (q, k, v) = (
                    random(&[1, 4, length, 64], kind),
                    random(&[1, 2, length, 64], kind),
                    random(&[1, 2, length, 64], kind),
                );
                let result = op
                    .call(
                        &[Arg::Tensor(&q), Arg::Tensor(&k), Arg::Tensor(&v)],
                        &[
                            ("scale", Arg::Float(0.125)),
                            ("causal", Arg::Bool(true)),
                            ("window", Arg::None),
                        ],
                    )
                    .unwrap();
                let [q, k, v] = [&q, &k, &v].map(|t| t.to_kind(Kind::Float));
                let reference = Tensor::scaled_dot_product_attention(
                    &q,
                    &k,
                    &v,
                    None::<&Tensor>,
                    0.0,
                    true,
                    0.125,
                    true,
                );
                close(
                    &result[0],
                    &reference,
                    kind,
                    &format!("{} length {length} {kind:?}", kernel.name()),
                );
            }
        }
    }
}

#[test]
fn decode_attention_reads_only_what_is_filled() {
    tch::manual_seed(2);
    for kernel in kernels("decode-attention") {
        let op = kernel.function("decode_attention").unwrap();
        let (q, mut k, mut v) = (
            random(&[3, 4, 1, 64], Kind::Float),
            random(&[3, 2, 160, 64], Kind::Float),
            random(&[3, 2, 160, 64], Kind::Float),
        );
        let filled = [1_i64, 33, 129];
        for (row, length) in filled.iter().enumerate() {
            for cache in [&mut k, &mut v] {
                let _ = cache
                    .get(row as i64)
                    .narrow(1, *length, 160 - length)
                    .fill_(f64::NAN);
            }
        }
        let lengths = Tensor::from_slice(&filled.map(|length| length as i32));
        let result = op
            .call(
                &[
                    Arg::Tensor(&q),
                    Arg::Tensor(&k),
                    Arg::Tensor(&v),
                    Arg::Tensor(&lengths),
                ],
                &[("scale", Arg::Float(0.125)), ("window", Arg::None)],
            )
            .unwrap();
        for (row, length) in filled.iter().enumerate() {
            let row = row as i64;
            let part = |t: &Tensor| t.narrow(0, row, 1);
            let reference = Tensor::scaled_dot_product_attention(
                &part(&q),
                &part(&k).narrow(2, 0, *length),
                &part(&v).narrow(2, 0, *length),
                None::<&Tensor>,
                0.0,
                false,
                0.125,
                true,
            );
            close(
                &part(&result[0]),
                &reference,
                Kind::Float,
                &format!("{} row {row}", kernel.name()),
            );
        }
    }
}

#[test]
fn layers_agree_with_the_formula_of_transformers() {
    tch::manual_seed(3);
    for kind in [Kind::Float, Kind::BFloat16] {
        let (x, weight) = (random(&[1, 7, 576], kind), random(&[576], kind));
        for kernel in kernels("rms-norm") {
            let attributes = Attributes::new()
                .tensor("weight", &weight)
                .float("variance_epsilon", 1e-5);
            let layer = kernel.layer("RMSNorm").unwrap().bind(&attributes).unwrap();
            let wide = x.to_kind(Kind::Float);
            let mean = wide
                .square()
                .mean_dim([-1_i64].as_slice(), true, Kind::Float);
            let reference = (&wide * (mean + 1e-5).rsqrt()).to_kind(kind) * &weight;
            close(
                &layer.forward(&[Arg::Tensor(&x)]).unwrap()[0],
                &reference,
                kind,
                kernel.name(),
            );
        }
        let linear = |out, inner| random(&[out, inner], kind) * 0.05;
        let (gate, up, down) = (linear(96, 576), linear(96, 576), linear(576, 96));
        for kernel in kernels("swiglu-mlp") {
            let weight = |tensor| Attributes::new().tensor("weight", tensor);
            let attributes = Attributes::new()
                .child("gate_proj", weight(&gate))
                .child("up_proj", weight(&up))
                .child("down_proj", weight(&down))
                .activation("act_fn", "silu");
            let layer = kernel
                .layer("SwiGLUMLP")
                .unwrap()
                .bind(&attributes)
                .unwrap();
            let [x32, g, u, d] = [&x, &gate, &up, &down].map(|t| t.to_kind(Kind::Float));
            let inner = x32.linear(&g, None::<&Tensor>).silu() * x32.linear(&u, None::<&Tensor>);
            let reference = inner.linear(&d, None::<&Tensor>);
            close(
                &layer.forward(&[Arg::Tensor(&x)]).unwrap()[0],
                &reference,
                kind,
                kernel.name(),
            );
        }
    }
}
