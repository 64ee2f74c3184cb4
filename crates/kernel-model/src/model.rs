//! A decoder language model: the skeleton that all families share, and its slots.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tch::{Kind, Tensor};

use crate::cache::KvCache;
use crate::config::{Dtype, ModelConfig};
use crate::error::{ModelError, Result};
use crate::layer::{Angles, DecoderLayer, NormSite, Step};
use crate::ops::{DecodeAttention, Linear, Mlp, Norm, PrefillAttention, Rotary, RowLengths};
use crate::parallel::{self, Embedding, Group, Spread};
use crate::placement::{Device, Transfer};
use crate::rope::RotaryTable;

/// What a model is put together from.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) directory: PathBuf,
    pub(crate) config: ModelConfig,
    /// Of what this process holds.
    pub(crate) local_config: ModelConfig,
    pub(crate) group: Option<Group>,
    /// Bytes of the weight files that this process took.
    pub(crate) bytes_read: u64,
    pub(crate) dtype: Dtype,
    pub(crate) device: Device,
    pub(crate) transfer: Arc<dyn Transfer>,
    pub(crate) embedding: Embedding,
    pub(crate) layers: Vec<DecoderLayer>,
    pub(crate) norm: NormSite,
    pub(crate) head: Linear,
    pub(crate) warnings: Vec<String>,
}

/// A loaded model. It may move between threads but is used by one at a time.
#[derive(Debug)]
pub struct Model {
    parts: Parts,
    table: RotaryTable,
    cache: Option<KvCache>,
}

/// Called with the name and output of the embedding, of each layer, and of the final norm.
pub type Probe<'a> = dyn FnMut(&str, &Tensor) -> Result<()> + 'a;

/// Positions that the rotary table holds before the first request asks for more.
const FIRST_POSITIONS: i64 = 256;

impl Model {
    pub(crate) fn new(parts: Parts) -> Result<Self> {
        let table = rotary_table(&parts, FIRST_POSITIONS.min(parts.config.max_positions))?;
        Ok(Self {
            parts,
            table,
            cache: None,
        })
    }

    /// The directory it was loaded from.
    pub fn directory(&self) -> &Path {
        &self.parts.directory
    }

    /// Its configuration.
    pub fn config(&self) -> &ModelConfig {
        &self.parts.config
    }

    /// The configuration of what this process holds: under tensor parallelism its own heads and its
    /// part of the MLP's width, else the same as [`Model::config`].
    pub fn local_config(&self) -> &ModelConfig {
        &self.parts.local_config
    }

    /// The ranks that this model is spread over, where it is.
    pub fn group(&self) -> Option<&Group> {
        self.parts.group.as_ref()
    }

    /// Bytes of the weight files that its tensors lie in or were made of. Pages of a mapped file around
    /// them may be read along with them.
    pub fn bytes_read(&self) -> u64 {
        self.parts.bytes_read
    }

    /// The dtype of weights and activations.
    pub fn dtype(&self) -> Dtype {
        self.parts.dtype
    }

    /// The device it runs on.
    pub fn device(&self) -> Device {
        self.parts.device
    }

    /// How host tensors get to its device.
    pub fn transfer(&self) -> &dyn Transfer {
        &*self.parts.transfer
    }

    /// What was odd about the checkpoint, one sentence each.
    pub fn warnings(&self) -> &[String] {
        &self.parts.warnings
    }

    /// Its layers.
    pub fn layers(&self) -> &[DecoderLayer] {
        &self.parts.layers
    }

    /// Its layers, to fill single slots.
    pub fn layers_mut(&mut self) -> &mut [DecoderLayer] {
        &mut self.parts.layers
    }

    /// The norm before the head.
    pub fn final_norm(&self) -> &NormSite {
        &self.parts.norm
    }

    /// The norm before the head, to fill its slot.
    pub fn final_norm_mut(&mut self) -> &mut NormSite {
        &mut self.parts.norm
    }

    /// All norms of the model.
    pub fn norms_mut(&mut self) -> impl Iterator<Item = &mut NormSite> {
        let Parts { layers, norm, .. } = &mut self.parts;
        layers
            .iter_mut()
            .flat_map(DecoderLayer::norms_mut)
            .chain(std::iter::once(norm))
    }

    /// Puts an implementation of attention over prompts into every layer.
    pub fn set_attention(&mut self, op: &Arc<dyn PrefillAttention>) {
        for layer in &mut self.parts.layers {
            layer.attention.prefill = Arc::clone(op);
        }
    }

    /// Puts an implementation of attention over the cache into every layer.
    pub fn set_decode_attention(&mut self, op: &Arc<dyn DecodeAttention>) {
        for layer in &mut self.parts.layers {
            layer.attention.decode = Arc::clone(op);
        }
    }

    /// Puts an implementation of the MLP into every layer.
    pub fn set_mlp(&mut self, op: &Arc<dyn Mlp>) {
        for layer in &mut self.parts.layers {
            layer.mlp.op = Arc::clone(op);
        }
    }

    /// Puts an implementation of RMSNorm into every place that has one.
    pub fn set_norm(&mut self, op: &Arc<dyn Norm>) {
        for site in self.norms_mut() {
            site.op = Arc::clone(op);
        }
    }

    /// Puts an implementation of rotary embedding into every layer.
    pub fn set_rotary(&mut self, op: &Arc<dyn Rotary>) {
        for layer in &mut self.parts.layers {
            layer.attention.rotary = Arc::clone(op);
        }
    }

    /// Whether any slot compiles for each new shape, so that shapes should come in buckets.
    pub fn compiles_per_shape(&self) -> bool {
        let in_layer = |layer: &DecoderLayer| {
            let attention = &layer.attention;
            attention.prefill.compiles_per_shape()
                || attention.decode.compiles_per_shape()
                || attention.rotary.compiles_per_shape()
                || layer.mlp.op.compiles_per_shape()
                || layer.input_norm.op.compiles_per_shape()
                || layer.mlp_norm.op.compiles_per_shape()
        };
        self.parts.norm.op.compiles_per_shape() || self.parts.layers.iter().any(in_layer)
    }

    /// A cache of at least these sizes: the last one where it fits, else a new one. It goes back
    /// with [`Model::keep_cache`].
    pub(crate) fn take_cache(&mut self, batch: i64, capacity: i64) -> Result<KvCache> {
        match self.cache.take() {
            Some(cache) if cache.batch() == batch && cache.capacity() >= capacity => Ok(cache),
            _ => self.new_cache(batch, capacity),
        }
    }

    /// Keeps a cache for the next request, whose shapes then stay the same.
    pub(crate) fn keep_cache(&mut self, cache: KvCache) {
        self.cache = Some(cache);
    }

    /// A new cache of `batch` rows with room for `capacity` tokens each.
    pub fn new_cache(&self, batch: i64, capacity: i64) -> Result<KvCache> {
        KvCache::new(
            &self.parts.local_config,
            batch,
            capacity,
            self.parts.dtype.kind(),
            &*self.parts.transfer,
        )
    }

    /// Runs prompts into an empty cache. `ids` is [B, T] i64 on the host, right-padded; returns
    /// the hidden states after the final norm, [B, T, h].
    pub fn prefill(
        &mut self,
        ids: &Tensor,
        cache: &mut KvCache,
        probe: Option<&mut Probe<'_>>,
    ) -> Result<Tensor> {
        let (batch, tokens) = ids.size2()?;
        self.ensure_positions(cache.capacity().max(tokens))?;
        let angle = |table: &Tensor| -> Result<Tensor> {
            let width = table.size2()?.1;
            Ok(table
                .f_narrow(0, 0, tokens)?
                .f_unsqueeze(0)?
                .f_expand([batch, tokens, width], false)?)
        };
        let angles = Angles {
            cos: angle(&self.table.cos)?,
            sin: angle(&self.table.sin)?,
        };
        self.run(ids, &angles, &Step::Prefill, cache, probe)
    }

    /// Runs one token a row. `ids` holds one id and `positions` one column a row; returns the
    /// hidden states after the final norm, [B, 1, h].
    pub fn decode(
        &mut self,
        ids: &[i64],
        positions: &[i64],
        cache: &mut KvCache,
        probe: Option<&mut Probe<'_>>,
    ) -> Result<Tensor> {
        if let Some(position) = positions
            .iter()
            .find(|p| **p < 0 || **p >= cache.capacity())
        {
            return Err(ModelError::Op {
                op: "decode".to_owned(),
                problem: format!(
                    "position {position} is outside the cache, which has room for {} tokens",
                    cache.capacity()
                ),
            });
        }
        self.ensure_positions(cache.capacity())?;
        let transfer = &*self.parts.transfer;
        let index = transfer.to_device(Tensor::f_from_slice(positions)?)?;
        let rows = transfer.to_device(Tensor::f_from_slice(&cache.step_rows(positions))?)?;
        let filled: Vec<i64> = positions.iter().map(|position| position + 1).collect();
        let narrow: Vec<i32> = filled.iter().map(|length| *length as i32).collect();
        let lengths = RowLengths::new(filled, transfer.to_device(Tensor::f_from_slice(&narrow)?)?);
        let angle = |table: &Tensor| -> Result<Tensor> {
            Ok(table.f_index_select(0, &index)?.f_unsqueeze(1)?)
        };
        let angles = Angles {
            cos: angle(&self.table.cos)?,
            sin: angle(&self.table.sin)?,
        };
        let ids = Tensor::f_from_slice(ids)?.f_unsqueeze(1)?;
        let step = Step::Decode {
            rows: &rows,
            lengths: &lengths,
        };
        self.run(&ids, &angles, &step, cache, probe)
    }

    /// Hidden states [.., h] to logits [.., V] in f32. Under tensor parallelism every rank calls it, and
    /// gets the logits of all.
    pub fn logits(&self, hidden: &Tensor) -> Result<Tensor> {
        let local = self.local_logits(hidden)?;
        match &self.parts.group {
            Some(group) if group.layout.head() == Spread::Sharded => {
                let vocabulary = self.parts.config.vocab_size;
                parallel::gather_logits(&*group.collectives, &local, vocabulary)
            }
            _ => Ok(local),
        }
    }

    /// Hidden states [.., h] to the logits of this rank's part of the vocabulary in f32; what stands
    /// at its padding means nothing.
    pub(crate) fn local_logits(&self, hidden: &Tensor) -> Result<Tensor> {
        Ok(self.parts.head.forward(hidden)?.f_to_kind(Kind::Float)?)
    }

    fn run(
        &self,
        ids: &Tensor,
        angles: &Angles,
        step: &Step<'_>,
        cache: &mut KvCache,
        mut probe: Option<&mut Probe<'_>>,
    ) -> Result<Tensor> {
        let _guard = tch::no_grad_guard();
        let ids = self.parts.transfer.to_device(ids.f_detach()?)?;
        let mut hidden = self.parts.embedding.forward(&ids)?;
        let mut report = |name: &str, tensor: &Tensor| match probe.as_mut() {
            Some(probe) => probe(name, tensor),
            None => Ok(()),
        };
        report("embed", &hidden)?;
        for (n, (layer, cache)) in self.parts.layers.iter().zip(cache.layers_mut()).enumerate() {
            hidden = layer.forward(&hidden, angles, step, cache)?;
            report(&format!("layers.{n}"), &hidden)?;
        }
        let hidden = self.parts.norm.forward(&hidden)?;
        report("norm", &hidden)?;
        Ok(hidden)
    }

    /// Grows the rotary table to at least so many positions.
    fn ensure_positions(&mut self, positions: i64) -> Result<()> {
        if self.table.cos.size2()?.0 < positions {
            self.table = rotary_table(&self.parts, positions)?;
        }
        Ok(())
    }
}

fn rotary_table(parts: &Parts, positions: i64) -> Result<RotaryTable> {
    let config = &parts.config;
    let table = RotaryTable::new(&config.rope, config.head_dim, positions, parts.dtype.kind())?;
    Ok(RotaryTable {
        cos: parts.transfer.to_device(table.cos)?,
        sin: parts.transfer.to_device(table.sin)?,
    })
}
