//! Rotary position embeddings: inverse frequencies by rope type, and the table of cosines and
//! sines that attention layers read.
//!
//! The formulas are those of the papers behind each type as transformers 5 spells them; the
//! frequencies are computed in f32, as there, so that long positions agree.

use tch::{Device, Kind, Tensor};

use crate::error::Result;

/// Parameters of rotary embeddings, read from config.json by [`crate::config`].
#[derive(Debug, Clone, PartialEq)]
pub struct RopeConfig {
    /// The rope type and its own parameters.
    pub kind: RopeKind,
    /// Base of the geometric series of wavelengths.
    pub theta: f64,
    /// Share of the head dimension that is rotated.
    pub partial_rotary_factor: f64,
}

/// The rope types that run. `dynamic` and `longrope` choose their frequencies by the length of
/// the sequence, which would make shapes and results depend on the batch; they are refused when
/// the config is read.
#[derive(Debug, Clone, PartialEq)]
pub enum RopeKind {
    /// `theta^(-2i/d)`.
    Default,
    /// All frequencies divided by one factor.
    Linear {
        /// The divisor.
        factor: f64,
    },
    /// Low frequencies divided, high ones kept, a linear blend between (Llama 3.1).
    Llama3 {
        /// The divisor of low frequencies.
        factor: f64,
        /// Below this many turns over the original context, divide fully.
        low_freq_factor: f64,
        /// Above this many turns, keep.
        high_freq_factor: f64,
        /// Context length of the pretraining, in tokens.
        original_max_positions: i64,
    },
    /// YaRN: a blend ramp over dimensions, and a scale on cosines and sines.
    Yarn(Yarn),
}

/// Parameters of the `yarn` rope type.
#[derive(Debug, Clone, PartialEq)]
pub struct Yarn {
    /// The divisor of low frequencies.
    pub factor: f64,
    /// Context length of the pretraining, in tokens.
    pub original_max_positions: i64,
    /// Turns over the original context above which a dimension is kept.
    pub beta_fast: f64,
    /// Turns below which it is divided.
    pub beta_slow: f64,
    /// Scale on cosines and sines, where stated.
    pub attention_factor: Option<f64>,
    /// Numerator and denominator of the scale as DeepSeek states it.
    pub mscale: Option<(f64, f64)>,
    /// Whether the ends of the ramp are rounded outwards to whole dimensions.
    pub truncate: bool,
}

impl RopeConfig {
    /// Width of the rotated part of a head, in dimensions.
    pub fn rotary_dim(&self, head_dim: i64) -> i64 {
        (head_dim as f64 * self.partial_rotary_factor) as i64
    }

    /// Inverse frequencies, one for each pair of the `rotary_dim` dimensions, in radians per
    /// position, and the factor on cosines and sines.
    pub fn inverse_frequencies(&self, rotary_dim: i64) -> (Vec<f32>, f64) {
        let pairs = usize::try_from(rotary_dim / 2).unwrap_or(0);
        let base: Vec<f32> = (0..pairs)
            .map(|i| {
                let exponent = (2 * i) as f32 / rotary_dim as f32;
                1.0 / (self.theta as f32).powf(exponent)
            })
            .collect();
        match &self.kind {
            RopeKind::Default => (base, 1.0),
            RopeKind::Linear { factor } => {
                (base.into_iter().map(|f| f / *factor as f32).collect(), 1.0)
            }
            RopeKind::Llama3 {
                factor,
                low_freq_factor,
                high_freq_factor,
                original_max_positions,
            } => {
                let scaled = base.into_iter().map(|f| {
                    let turns =
                        *original_max_positions as f64 * f64::from(f) / std::f64::consts::TAU;
                    let keep = ((turns - low_freq_factor) / (high_freq_factor - low_freq_factor))
                        .clamp(0.0, 1.0) as f32;
                    (1.0 - keep) * f / *factor as f32 + keep * f
                });
                (scaled.collect(), 1.0)
            }
            RopeKind::Yarn(yarn) => {
                let (low, high) = yarn.ramp(rotary_dim, self.theta);
                let scaled = base.into_iter().enumerate().map(|(i, f)| {
                    let divide = ((i as f64 - low) / (high - low)).clamp(0.0, 1.0) as f32;
                    f / yarn.factor as f32 * divide + f * (1.0 - divide)
                });
                (scaled.collect(), yarn.attention_scale())
            }
        }
    }
}

impl Yarn {
    /// First and last dimension pair of the blend ramp.
    fn ramp(&self, rotary_dim: i64, theta: f64) -> (f64, f64) {
        let dim = rotary_dim as f64;
        let pair_of = |turns: f64| {
            dim * (self.original_max_positions as f64 / (turns * std::f64::consts::TAU)).ln()
                / (2.0 * theta.ln())
        };
        let (mut low, mut high) = (pair_of(self.beta_fast), pair_of(self.beta_slow));
        if self.truncate {
            low = low.floor();
            high = high.ceil();
        }
        low = low.max(0.0);
        high = high.min(dim - 1.0);
        if (low - high).abs() < f64::EPSILON {
            // Keeps the ramp from dividing by zero.
            high += 0.001;
        }
        (low, high)
    }

    /// Factor on cosines and sines.
    fn attention_scale(&self) -> f64 {
        let scale_of = |mscale: f64| {
            if self.factor <= 1.0 {
                1.0
            } else {
                0.1 * mscale * self.factor.ln() + 1.0
            }
        };
        match (self.attention_factor, self.mscale) {
            (Some(factor), _) => factor,
            (None, Some((numerator, denominator))) => scale_of(numerator) / scale_of(denominator),
            (None, None) => scale_of(1.0),
        }
    }
}

/// Cosines and sines of all positions up to a capacity, in the model's dtype.
#[derive(Debug)]
pub struct RotaryTable {
    /// [positions, R]; the second half of the columns repeats the first.
    pub cos: Tensor,
    /// [positions, R]; as `cos`.
    pub sin: Tensor,
}

impl RotaryTable {
    /// Computes the table in f32 on the host and casts it to `kind`.
    pub fn new(rope: &RopeConfig, head_dim: i64, positions: i64, kind: Kind) -> Result<Self> {
        let rotary_dim = rope.rotary_dim(head_dim);
        let (frequencies, scale) = rope.inverse_frequencies(rotary_dim);
        let frequencies = Tensor::f_from_slice(&frequencies)?;
        let index = Tensor::f_arange(positions, (Kind::Float, Device::Cpu))?;
        let angles = index.f_unsqueeze(1)?.f_mul(&frequencies.f_unsqueeze(0)?)?;
        let angles = Tensor::f_cat(&[&angles, &angles], 1)?;
        let cos = angles.f_cos()?.f_mul_scalar(scale)?.f_to_kind(kind)?;
        let sin = angles.f_sin()?.f_mul_scalar(scale)?.f_to_kind(kind)?;
        Ok(Self { cos, sin })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rope(kind: RopeKind) -> RopeConfig {
        RopeConfig {
            kind,
            theta: 10_000.0,
            partial_rotary_factor: 1.0,
        }
    }

    fn llama3(factor: f64) -> RopeKind {
        RopeKind::Llama3 {
            factor,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_positions: 8192,
        }
    }

    fn yarn(factor: f64) -> Yarn {
        Yarn {
            factor,
            original_max_positions: 4096,
            beta_fast: 32.0,
            beta_slow: 1.0,
            attention_factor: None,
            mscale: None,
            truncate: true,
        }
    }

    #[test]
    fn llama3_divides_low_frequencies_and_keeps_high_ones() {
        let config = RopeConfig {
            theta: 500_000.0,
            ..rope(llama3(8.0))
        };
        let plain = RopeConfig {
            kind: RopeKind::Default,
            ..config.clone()
        };
        let (scaled, scale) = config.inverse_frequencies(128);
        let (base, _) = plain.inverse_frequencies(128);
        assert!((scale - 1.0).abs() < 1e-12);
        assert!((scaled[0] - base[0]).abs() < 1e-9);
        assert!((scaled[63] - base[63] / 8.0).abs() < 1e-12);
    }

    #[test]
    fn yarn_states_its_scale_in_three_ways() {
        let plain = yarn(4.0);
        assert!((plain.attention_scale() - (0.1 * 4.0_f64.ln() + 1.0)).abs() < 1e-12);
        assert!((yarn(1.0).attention_scale() - 1.0).abs() < 1e-12);
        let stated = Yarn {
            attention_factor: Some(1.5),
            ..yarn(4.0)
        };
        assert!((stated.attention_scale() - 1.5).abs() < 1e-12);
        let ratio = Yarn {
            mscale: Some((1.0, 1.0)),
            ..yarn(4.0)
        };
        assert!((ratio.attention_scale() - 1.0).abs() < 1e-12);
    }

    #[test]
    fn yarn_ramp_of_no_width_does_not_divide_by_zero() {
        let config = rope(RopeKind::Yarn(Yarn {
            original_max_positions: 1,
            ..yarn(4.0)
        }));
        let (frequencies, _) = config.inverse_frequencies(4);
        assert!(frequencies.iter().all(|f| f.is_finite()));
    }

    proptest! {
        #[test]
        fn scaled_frequencies_lie_between_divided_and_plain(
            factor in 1.0_f64..64.0,
            half in 2_i64..64,
            theta in 1_000.0_f64..1e7,
            which in 0_usize..3,
        ) {
            let kind = match which {
                0 => RopeKind::Linear { factor },
                1 => llama3(factor),
                _ => RopeKind::Yarn(yarn(factor)),
            };
            let config = RopeConfig { theta, ..rope(kind) };
            let plain = RopeConfig { kind: RopeKind::Default, ..config.clone() };
            let (scaled, _) = config.inverse_frequencies(2 * half);
            let (base, _) = plain.inverse_frequencies(2 * half);
            for (scaled, base) in scaled.iter().zip(&base) {
                prop_assert!(*scaled <= base * 1.000_01);
                prop_assert!(*scaled >= base / factor as f32 * 0.999_99);
            }
        }

        #[test]
        fn table_rows_are_points_on_the_unit_circle(positions in 1_i64..200, half in 1_i64..32) {
            let table =
                RotaryTable::new(&rope(RopeKind::Default), 2 * half, positions, Kind::Float)
                    .unwrap();
            let norm = table.cos.square() + table.sin.square();
            let worst = (norm - 1.0).abs().max().double_value(&[]);
            prop_assert!(worst < 1e-5);
            prop_assert_eq!(table.cos.size(), vec![positions, 2 * half]);
        }
    }
}
