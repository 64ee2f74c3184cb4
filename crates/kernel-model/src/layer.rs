//! One decoder layer: weights and slots.

use std::sync::Arc;

use tch::Tensor;

use crate::cache::LayerCache;
use crate::error::{ModelError, Result};
use crate::ops::{
    AttentionParameters, DecodeAttention, Linear, Mlp, MlpWeights, Norm, PrefillAttention, Rotary,
    RowLengths,
};
use crate::parallel::PartialSum;

/// A place where RMSNorm is applied.
#[derive(Debug)]
pub struct NormSite {
    /// [h], or [D] for query and key norms.
    pub weight: Tensor,
    /// Added to the mean square.
    pub eps: f64,
    /// What runs.
    pub op: Arc<dyn Norm>,
}

impl NormSite {
    /// Hidden [.., h] to [.., h].
    pub fn forward(&self, hidden: &Tensor) -> Result<Tensor> {
        self.op.forward(hidden, &self.weight, self.eps)
    }
}

/// The MLP of a layer.
#[derive(Debug)]
pub struct MlpSite {
    /// Its weights.
    pub weights: MlpWeights,
    /// What runs.
    pub op: Arc<dyn Mlp>,
    /// What makes one result of the ranks' parts, where the MLP is spread.
    pub sum: Option<PartialSum>,
}

impl MlpSite {
    /// Hidden [B, T, h] to [B, T, h].
    pub fn forward(&self, hidden: &Tensor) -> Result<Tensor> {
        let output = self.op.forward(hidden, &self.weights)?;
        match &self.sum {
            Some(sum) => sum.apply(output),
            None => Ok(output),
        }
    }
}

/// Query and key norms of a layer.
#[derive(Debug)]
pub struct QueryKeyNorms {
    /// On queries.
    pub query: NormSite,
    /// On keys.
    pub key: NormSite,
}

/// The attention of a layer.
#[derive(Debug)]
pub struct AttentionSite {
    /// [H * D, h].
    pub query: Linear,
    /// [K * D, h].
    pub key: Linear,
    /// [K * D, h].
    pub value: Linear,
    /// [h, H * D].
    pub output: Linear,
    /// Norms on heads, before rotary.
    pub norms: Option<QueryKeyNorms>,
    /// Scale and window.
    pub parameters: AttentionParameters,
    /// Width of a head.
    pub head_dim: i64,
    /// What runs on prompts.
    pub prefill: Arc<dyn PrefillAttention>,
    /// What runs on single tokens.
    pub decode: Arc<dyn DecodeAttention>,
    /// What rotates queries and keys.
    pub rotary: Arc<dyn Rotary>,
    /// What makes one result of the ranks' heads, where they are spread.
    pub sum: Option<PartialSum>,
}

/// What one forward pass feeds to every layer.
#[derive(Debug)]
pub enum Step<'a> {
    /// A prompt into an empty cache.
    Prefill,
    /// One token a row.
    Decode {
        /// Places in the flat cache; see [`crate::cache::KvCache::step_rows`].
        rows: &'a Tensor,
        /// Filled entries, this token included.
        lengths: &'a RowLengths,
    },
}

/// Cosines and sines at the positions of one forward pass, [B, T, R] each.
#[derive(Debug)]
pub struct Angles {
    /// Cosines.
    pub cos: Tensor,
    /// Sines.
    pub sin: Tensor,
}

impl AttentionSite {
    /// Hidden [B, T, h] to [B, T, h]; writes keys and values to the cache.
    pub fn forward(
        &self,
        hidden: &Tensor,
        angles: &Angles,
        step: &Step<'_>,
        cache: &mut LayerCache,
    ) -> Result<Tensor> {
        let (batch, tokens, _) = hidden.size3()?;
        let maps = [&self.query, &self.key, &self.value];
        let projected = Linear::forward_all(hidden, &maps)?
            .into_iter()
            .map(|projected| projected.f_view([batch, tokens, -1, self.head_dim]))
            .collect::<Result<Vec<_>, _>>()?;
        let [mut query, mut key, value] =
            <[Tensor; 3]>::try_from(projected).map_err(|_| ModelError::Op {
                op: "attention".to_owned(),
                problem: "three projections did not give three tensors".to_owned(),
            })?;
        let value = value.f_transpose(1, 2)?;
        if let Some(norms) = &self.norms {
            query = norms.query.forward(&query)?;
            key = norms.key.forward(&key)?;
        }
        let (query, key) = self.rotary.forward(
            &query.f_transpose(1, 2)?,
            &key.f_transpose(1, 2)?,
            &angles.cos,
            &angles.sin,
        )?;
        let attended = match step {
            Step::Prefill => {
                cache.write_prompt(&key, &value)?;
                self.prefill
                    .forward(&query, &key, &value, &self.parameters)?
            }
            Step::Decode { rows, lengths } => {
                cache.write_step(rows, &key, &value)?;
                self.decode.forward(
                    &query,
                    cache.key(),
                    cache.value(),
                    lengths,
                    &self.parameters,
                )?
            }
        };
        let merged = attended.f_transpose(1, 2)?.f_reshape([batch, tokens, -1])?;
        let output = self.output.forward(&merged)?;
        match &self.sum {
            Some(sum) => sum.apply(output),
            None => Ok(output),
        }
    }
}

/// One decoder layer.
#[derive(Debug)]
pub struct DecoderLayer {
    /// Before attention.
    pub input_norm: NormSite,
    /// Attention.
    pub attention: AttentionSite,
    /// On attention's output, in families that have it.
    pub attention_output_norm: Option<NormSite>,
    /// Before the MLP.
    pub mlp_norm: NormSite,
    /// The MLP.
    pub mlp: MlpSite,
    /// On the MLP's output, in families that have it.
    pub mlp_output_norm: Option<NormSite>,
}

impl DecoderLayer {
    /// Hidden [B, T, h] to [B, T, h].
    pub fn forward(
        &self,
        hidden: &Tensor,
        angles: &Angles,
        step: &Step<'_>,
        cache: &mut LayerCache,
    ) -> Result<Tensor> {
        let attended =
            self.attention
                .forward(&self.input_norm.forward(hidden)?, angles, step, cache)?;
        let hidden = residual(hidden, attended, self.attention_output_norm.as_ref())?;
        let normed = self.mlp_norm.forward(&hidden)?;
        let fed = self.mlp.forward(&normed)?;
        residual(&hidden, fed, self.mlp_output_norm.as_ref())
    }

    /// All norms of the layer.
    pub fn norms_mut(&mut self) -> impl Iterator<Item = &mut NormSite> {
        let heads = self
            .attention
            .norms
            .iter_mut()
            .flat_map(|n| [&mut n.query, &mut n.key]);
        [&mut self.input_norm, &mut self.mlp_norm]
            .into_iter()
            .chain(heads)
            .chain(self.attention_output_norm.as_mut())
            .chain(self.mlp_output_norm.as_mut())
    }
}

/// Adds a block's output, normed where the family does so, to the residual stream.
fn residual(hidden: &Tensor, output: Tensor, norm: Option<&NormSite>) -> Result<Tensor> {
    let output = match norm {
        Some(norm) => norm.forward(&output)?,
        None => output,
    };
    Ok(hidden.f_add(&output)?)
}
