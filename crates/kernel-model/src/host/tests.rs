//! The ops here against libtorch's, on the same tensors.

use proptest::prelude::*;
use tch::{Device, Kind, Tensor};

use super::*;
use crate::family::RotaryLayout;
use crate::ops::{Activation, AttentionParameters, Linear, MlpWeights, RowLengths};

fn noise(size: &[i64], kind: Kind) -> Tensor {
    Tensor::randn(size, (Kind::Float, Device::Cpu)).to_kind(kind)
}

/// Largest difference as a share of the largest value.
fn difference(ours: &Tensor, theirs: &Tensor) -> f64 {
    assert_eq!((ours.size(), ours.kind()), (theirs.size(), theirs.kind()));
    let (ours, theirs) = (ours.to_kind(Kind::Double), theirs.to_kind(Kind::Double));
    let largest = theirs.abs().max().double_value(&[]).max(1e-9);
    (ours - theirs).abs().max().double_value(&[]) / largest
}

fn allowed(kind: Kind) -> f64 {
    if kind == Kind::Float { 1e-5 } else { 1.6e-2 }
}

fn kinds() -> impl Strategy<Value = Kind> {
    prop_oneof![Just(Kind::Float), Just(Kind::BFloat16)]
}

fn map(out: i64, input: i64, bias: bool, kind: Kind) -> Linear {
    Linear {
        weight: noise(&[out, input], kind),
        bias: bias.then(|| noise(&[out], kind)),
    }
}

fn by_libtorch(hidden: &Tensor, map: &Linear) -> Tensor {
    hidden.linear(&map.weight, map.bias.as_ref())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn linear_maps(
        kind in kinds(), batch in 1_i64..3, tokens in 1_i64..3, width in 1_i64..200,
        outs in proptest::collection::vec(1_i64..400, 1..4), bias in any::<bool>(),
    ) {
        let hidden = noise(&[batch, tokens, width], kind);
        let maps: Vec<Linear> = outs.iter().map(|out| map(*out, width, bias, kind)).collect();
        let maps: Vec<&Linear> = maps.iter().collect();
        let outputs = linear(&hidden, &maps).unwrap().unwrap();
        prop_assert_eq!(outputs.len(), maps.len());
        for (output, map) in outputs.iter().zip(maps) {
            prop_assert!(difference(output, &by_libtorch(&hidden, map)) < allowed(kind));
        }
    }

    #[test]
    fn gated_mlps(
        kind in kinds(), rows in 1_i64..5, width in 1_i64..100, inner in 1_i64..900,
        bias in any::<bool>(),
    ) {
        let hidden = noise(&[1, rows, width], kind);
        // Gate and up as halves of one tensor, as GLM stores them.
        let fused = map(2 * inner, width, bias, kind);
        let half = |at: i64| Linear {
            weight: fused.weight.narrow(0, at * inner, inner),
            bias: fused.bias.as_ref().map(|bias| bias.narrow(0, at * inner, inner)),
        };
        let weights = MlpWeights {
            gate: half(0),
            up: half(1),
            down: map(width, inner, bias, kind),
            activation: Activation::Silu,
        };
        let gated = by_libtorch(&hidden, &weights.gate).silu() * by_libtorch(&hidden, &weights.up);
        let theirs = by_libtorch(&gated, &weights.down);
        let ours = gated_mlp(&hidden, &weights).unwrap().unwrap();
        prop_assert!(difference(&ours, &theirs) < allowed(kind));
    }

    #[test]
    fn attention_over_the_cache(
        kind in kinds(), lengths in proptest::collection::vec(1_i64..60, 1..4), shared in 1_i64..4,
        group in 1_i64..4, width in 1_i64..40, window in proptest::option::of(1_i64..70),
    ) {
        let (batch, capacity) = (lengths.len() as i64, 64);
        let query = noise(&[batch, 1, shared * group, width], kind).transpose(1, 2);
        let keys = noise(&[batch, shared, capacity, width], kind);
        let values = noise(&[batch, shared, capacity, width], kind);
        let lengths = RowLengths::on_cpu(lengths).unwrap();
        let parameters = AttentionParameters { scale: 0.3, causal: true, window };
        let ours = decode_attention(&query, &keys, &values, &lengths, &parameters).unwrap().unwrap();
        let mask = lengths.mask(0, capacity, window).unwrap();
        let theirs = Tensor::scaled_dot_product_attention(
            &query, &keys, &values, Some(&mask), 0.0, false, 0.3, true,
        );
        prop_assert!(difference(&ours, &theirs.contiguous()) < allowed(kind));
    }

    #[test]
    fn rotary_in_both_layouts_and_over_a_part_of_the_head(
        kind in kinds(), batch in 1_i64..3, tokens in 1_i64..5, heads in 1_i64..4,
        pairs in 1_i64..5, rest in 0_i64..4, interleaved in any::<bool>(),
    ) {
        let rotated = 2 * pairs;
        let split = |heads: i64| noise(&[batch, tokens, heads, rotated + rest], kind).transpose(1, 2);
        let (query, key) = (split(2 * heads), split(heads));
        let angle = Tensor::arange(tokens * pairs, (Kind::Float, Device::Cpu)).view([1, tokens, pairs]);
        let angle = Tensor::cat(&[&angle, &angle], 2);
        let table = |table: Tensor| table.to_kind(kind).expand([batch, tokens, rotated], false);
        let (cos, sin) = (table(angle.cos()), table(angle.sin()));
        let layout = if interleaved { RotaryLayout::Interleaved } else { RotaryLayout::Halves };
        let (ours, _) = rotary(layout, &query, &key, &cos, &sin).unwrap().unwrap();

        let (cos, sin) = (cos.unsqueeze(1), sin.unsqueeze(1));
        let (cos, sin) = (cos.narrow(3, 0, pairs), sin.narrow(3, 0, pairs));
        let (first, second) = if interleaved {
            (query.slice(3, 0, rotated, 2), query.slice(3, 1, rotated, 2))
        } else {
            (query.narrow(3, 0, pairs), query.narrow(3, pairs, pairs))
        };
        let a = &first * &cos - &second * &sin;
        let b = &second * &cos + &first * &sin;
        let turned = if interleaved {
            Tensor::stack(&[a, b], -1).flatten(-2, -1)
        } else {
            Tensor::cat(&[a, b], 3)
        };
        let theirs = Tensor::cat(&[turned, query.narrow(3, rotated, rest)], 3);
        prop_assert!(difference(&ours, &theirs) < 1e-6);
    }

    #[test]
    fn norms(kind in kinds(), rows in 1_i64..6, width in 1_i64..80) {
        let hidden = noise(&[1, rows, width], kind);
        let weight = noise(&[width], kind);
        let wide = hidden.to_kind(Kind::Float);
        let mean = wide.square().mean_dim([-1_i64].as_slice(), true, Kind::Float);
        let theirs = (wide * (mean + 1e-5).rsqrt()).to_kind(kind) * &weight;
        let ours = rms_norm(&hidden, &weight, 1e-5).unwrap().unwrap();
        prop_assert!(difference(&ours, &theirs) < allowed(kind) / 2.0);
    }
}

#[test]
fn what_is_not_for_the_host_is_left_alone() {
    let wide = map(8, 4, false, Kind::Float);
    let many = noise(&[1, 64, 4], Kind::Float);
    assert!(linear(&many, &[&wide]).unwrap().is_none());
    let half = noise(&[1, 1, 4], Kind::Half);
    assert!(linear(&half, &[&wide]).unwrap().is_none());
    let strided = noise(&[1, 4, 2], Kind::Float)
        .transpose(1, 2)
        .narrow(1, 0, 1);
    assert!(linear(&strided, &[&wide]).unwrap().is_none());
    let other_width = noise(&[1, 1, 5], Kind::Float);
    assert!(linear(&other_width, &[&wide]).unwrap().is_none());
    let mixed = map(8, 4, false, Kind::BFloat16);
    let one = noise(&[1, 1, 4], Kind::Float);
    assert!(linear(&one, &[&mixed]).unwrap().is_none());
    let trained = one.set_requires_grad(true);
    assert!(linear(&trained, &[&wide]).unwrap().is_none());
    let meta = Tensor::zeros([4], (Kind::Float, Device::Cpu));
    assert!(
        rms_norm(&noise(&[1, 5], Kind::Float), &meta, 1e-5)
            .unwrap()
            .is_none()
    );
}

#[test]
fn a_step_is_written_where_the_places_say() {
    let mut keys = Tensor::zeros([6, 2], (Kind::Float, Device::Cpu));
    let mut values = keys.zeros_like();
    let key = Tensor::from_slice(&[1.0_f32, 2.0, 3.0, 4.0]).view([1, 2, 1, 2]);
    let places = Tensor::from_slice(&[4_i64, 1]);
    let value = &key * 10.0;
    assert!(write_step(&places, &key, &value, &mut keys, &mut values).unwrap());
    assert_eq!(
        Vec::<f32>::try_from(keys.view(-1)).unwrap(),
        [0., 0., 3., 4., 0., 0., 0., 0., 1., 2., 0., 0.]
    );
    assert_eq!(Vec::<f32>::try_from(values.get(4)).unwrap(), [10., 20.]);
    // Outside the cache: libtorch reports it.
    let outside = Tensor::from_slice(&[6_i64, 1]);
    assert!(!write_step(&outside, &key, &value, &mut keys, &mut values).unwrap());
}
