//! The numeric gate: a kernel runs on the model's own shapes, dtype and weights beside the
//! default op, and takes the op over only if the two agree.
//!
//! Lengths are chosen to be awkward: one, a full bucket, primes, one more than a block. What a
//! kernel must not read (cache entries past a row's length) holds large numbers, so that reading
//! it shows.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tch::{Kind, Tensor};

use super::adapters::{KernelDecode, KernelMlp, KernelNorm, KernelPrefill, KernelRotary};
use crate::config::{Dtype, ModelConfig};
use crate::error::{ModelError, Result};
use crate::model::Model;
use crate::ops::{
    AttentionParameters, DecodeAttention, DefaultMlp, DefaultNorm, DefaultRotary, Mlp, Norm,
    PrefillAttention, Rotary, RowLengths, SdpaDecode, SdpaPrefill,
};
use crate::placement::Transfer;
use crate::rope::RotaryTable;

/// Rows and tokens that prefill ops are tried on.
const PROMPTS: [(i64, i64); 4] = [(1, 16), (1, 1), (2, 13), (1, 33)];
/// Rows and tokens that ops on single tokens or short prompts are tried on.
const SHORT: [(i64, i64); 3] = [(1, 1), (1, 16), (2, 5)];
/// Cache that decode attention is tried on.
const CAPACITY: i64 = 256;
/// Any seed will do; a fixed one makes a refusal repeatable.
const SEED: u64 = 0x9a7e;

/// What a gate has seen.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Passed {
    checks: usize,
    worst: f64,
}

impl Passed {
    /// One sentence for the report.
    pub(super) fn describe(self) -> String {
        format!(
            "agrees with the default op on {} inputs, largest error {:.1e} of the largest value",
            self.checks, self.worst
        )
    }
}

/// Why a kernel did not pass.
#[derive(Debug)]
pub(super) enum Refusal {
    /// It runs, but not right, or it does not run: the reason.
    Kernel(String),
    /// Something that is not the kernel's fault.
    Other(ModelError),
}

impl From<ModelError> for Refusal {
    fn from(error: ModelError) -> Self {
        match error {
            ModelError::Kernel { reason, .. } => Self::Kernel(reason),
            other => Self::Other(other),
        }
    }
}

impl From<tch::TchError> for Refusal {
    fn from(error: tch::TchError) -> Self {
        Self::Other(error.into())
    }
}

/// Largest allowed error, as a share of the largest value of the result. Products are summed in
/// another order, which costs a few units in the last place of the dtype.
pub(super) fn tolerance(dtype: Dtype) -> f64 {
    match dtype {
        Dtype::Float32 => 2e-5,
        Dtype::BFloat16 => 1.6e-2,
        Dtype::Float16 => 2e-3,
    }
}

/// A gate in use: random inputs and what came of them.
pub(super) struct Gate<'a> {
    config: &'a ModelConfig,
    dtype: Dtype,
    transfer: &'a dyn Transfer,
    random: ChaCha8Rng,
    passed: Passed,
}

type Verdict = Result<Passed, Refusal>;

impl<'a> Gate<'a> {
    pub(super) fn new(model: &'a Model) -> Self {
        Self {
            config: model.local_config(),
            dtype: model.dtype(),
            transfer: model.transfer(),
            random: ChaCha8Rng::seed_from_u64(SEED),
            passed: Passed::default(),
        }
    }

    /// Numbers with mean 0 and variance 1 in the model's dtype.
    fn noise(&mut self, size: &[i64]) -> Result<Tensor> {
        let count: i64 = size.iter().product();
        let bound = 3.0_f32.sqrt();
        let values: Vec<f32> = (0..count)
            .map(|_| self.random.random_range(-bound..bound))
            .collect();
        let tensor = Tensor::f_from_slice(&values)?
            .f_view(size)?
            .f_to_kind(self.dtype.kind())?;
        self.transfer.to_device(tensor)
    }

    /// [B, heads, T, D] with the strides that the model's projections give it.
    fn heads(&mut self, batch: i64, heads: i64, tokens: i64) -> Result<Tensor> {
        let width = self.config.head_dim;
        Ok(self
            .noise(&[batch, tokens, heads, width])?
            .f_transpose(1, 2)?)
    }

    fn compare(&mut self, got: &Tensor, expected: &Tensor, at: &str) -> Result<(), Refusal> {
        let (got, expected) = (
            got.f_to_kind(Kind::Float)?,
            expected.f_to_kind(Kind::Float)?,
        );
        let all_finite = got.f_isfinite()?.f_all()?.f_int64_value(&[])? != 0;
        if !all_finite {
            return Err(Refusal::Kernel(format!(
                "it gives NaN or infinity for {at}"
            )));
        }
        let largest = expected
            .f_abs()?
            .f_max()?
            .f_double_value(&[])?
            .max(f64::MIN_POSITIVE);
        let error = got
            .f_sub(&expected)?
            .f_abs()?
            .f_max()?
            .f_double_value(&[])?
            / largest;
        let allowed = tolerance(self.dtype);
        if error > allowed {
            return Err(Refusal::Kernel(format!(
                "it differs from the default op for {at} by {error:.1e} of the largest value, \
                 allowed is {allowed:.1e}"
            )));
        }
        self.passed.checks += 1;
        self.passed.worst = self.passed.worst.max(error);
        Ok(())
    }

    /// Attention over prompts, with the parameters of every kind of layer.
    pub(super) fn prefill(
        mut self,
        kernel: &KernelPrefill,
        parameters: &[AttentionParameters],
    ) -> Verdict {
        let (heads, shared) = (self.config.heads, self.config.key_value_heads);
        for parameters in parameters {
            for (batch, tokens) in PROMPTS {
                let tokens = tokens.min(self.config.max_positions);
                let query = self.heads(batch, heads, tokens)?;
                let key = self.heads(batch, shared, tokens)?;
                let value = self.heads(batch, shared, tokens)?;
                let got = kernel.forward(&query, &key, &value, parameters)?;
                let expected = SdpaPrefill.forward(&query, &key, &value, parameters)?;
                let at = format!("{batch} rows of {tokens} tokens{}", window_text(parameters));
                self.compare(&got, &expected, &at)?;
            }
        }
        Ok(self.passed)
    }

    /// Attention over the cache.
    pub(super) fn decode(
        mut self,
        kernel: &KernelDecode,
        parameters: &[AttentionParameters],
    ) -> Verdict {
        let (heads, shared) = (self.config.heads, self.config.key_value_heads);
        let capacity = CAPACITY.min(self.config.max_positions);
        let rows = [
            vec![1],
            vec![17],
            vec![capacity],
            vec![3, capacity],
            vec![capacity, 130],
        ];
        for parameters in parameters {
            for lengths in &rows {
                let lengths: Vec<i64> = lengths.iter().map(|n| *n.min(&capacity)).collect();
                let batch = lengths.len() as i64;
                let query = self.heads(batch, heads, 1)?;
                let size = [batch, shared, capacity, self.config.head_dim];
                let (keys, values) = (self.noise(&size)?, self.noise(&size)?);
                for (row, length) in (0_i64..).zip(&lengths) {
                    for cache in [&keys, &values] {
                        let unfilled = cache.f_narrow(0, row, 1)?;
                        let mut unfilled = unfilled.f_narrow(2, *length, capacity - length)?;
                        let _ = unfilled.f_mul_scalar_(50.0)?;
                    }
                }
                let narrow: Vec<i32> = lengths.iter().map(|n| *n as i32).collect();
                let tensor = self.transfer.to_device(Tensor::f_from_slice(&narrow)?)?;
                let at = format!(
                    "cache of {capacity} with lengths {lengths:?}{}",
                    window_text(parameters)
                );
                let lengths = RowLengths::new(lengths, tensor);
                let got = kernel.forward(&query, &keys, &values, &lengths, parameters)?;
                let expected = SdpaDecode.forward(&query, &keys, &values, &lengths, parameters)?;
                self.compare(&got, &expected, &at)?;
            }
        }
        Ok(self.passed)
    }

    /// The MLPs of all layers: the first one on all shapes, the others on single tokens.
    pub(super) fn mlp(mut self, model: &Model, kernels: &[KernelMlp]) -> Verdict {
        for (n, (layer, kernel)) in model.layers().iter().zip(kernels).enumerate() {
            let shapes = if n == 0 { &SHORT[..] } else { &SHORT[..1] };
            for (batch, tokens) in shapes {
                let hidden = self.noise(&[*batch, *tokens, self.config.hidden_size])?;
                let weights = &layer.mlp.weights;
                let got = kernel.forward(&hidden, weights)?;
                let expected = DefaultMlp.forward(&hidden, weights)?;
                self.compare(
                    &got,
                    &expected,
                    &format!("layer {n}, {batch} x {tokens} tokens"),
                )?;
            }
        }
        Ok(self.passed)
    }

    /// One norm. `heads` is the number of heads where it is a norm on heads; `fully` tries it on
    /// all shapes.
    pub(super) fn norm(
        &mut self,
        kernel: &KernelNorm,
        weight: &Tensor,
        eps: f64,
        heads: Option<i64>,
        fully: bool,
    ) -> Result<(), Refusal> {
        let width = weight.size1()?;
        for (batch, tokens) in if fully { &SHORT[..] } else { &SHORT[..1] } {
            let size = match heads {
                Some(heads) => vec![*batch, *tokens, heads, width],
                None => vec![*batch, *tokens, width],
            };
            let hidden = self.noise(&size)?;
            let got = kernel.forward(&hidden, weight, eps)?;
            let expected = DefaultNorm.forward(&hidden, weight, eps)?;
            self.compare(&got, &expected, &format!("hidden states {size:?}"))?;
        }
        Ok(())
    }

    /// What [`Gate::norm`] has seen.
    pub(super) fn passed(self) -> Passed {
        self.passed
    }

    /// Rotary embedding.
    pub(super) fn rotary(mut self, kernel: &KernelRotary) -> Verdict {
        let config = self.config;
        let default = DefaultRotary {
            layout: config.rotary_layout(),
        };
        for (batch, tokens) in SHORT {
            let tokens = tokens.min(config.max_positions);
            let table = RotaryTable::new(&config.rope, config.head_dim, tokens, self.dtype.kind())?;
            let angle = |table: Tensor| -> Result<Tensor> {
                let width = table.size2()?.1;
                let table = self.transfer.to_device(table)?.f_unsqueeze(0)?;
                Ok(table.f_expand([batch, tokens, width], false)?)
            };
            let (cos, sin) = (angle(table.cos)?, angle(table.sin)?);
            let query = self.heads(batch, config.heads, tokens)?;
            let key = self.heads(batch, config.key_value_heads, tokens)?;
            let got = kernel.forward(&query, &key, &cos, &sin)?;
            let expected = default.forward(&query, &key, &cos, &sin)?;
            let at = format!("{batch} rows of {tokens} tokens");
            self.compare(&got.0, &expected.0, &at)?;
            self.compare(&got.1, &expected.1, &at)?;
        }
        Ok(self.passed)
    }
}

fn window_text(parameters: &AttentionParameters) -> String {
    parameters
        .window
        .map(|window| format!(", window {window}"))
        .unwrap_or_default()
}
