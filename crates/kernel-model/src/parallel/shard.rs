//! Which part of a stored tensor a rank reads, and what it holds of it in memory.

use std::ops::Range;

use super::layout::{Layout, Part, Share, Spread};
use crate::config::ModelConfig;

/// A rank's part of one tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Shard {
    /// All of it.
    Whole,
    /// All of it on the first rank, zeros on the others: what is added once to a sum over ranks.
    OnFirstRank {
        /// Whether this is the first rank.
        first: bool,
    },
    /// Slices along a dimension, one behind the other, each padded with zeros to the same length.
    Slices {
        /// 0 for rows, 1 for columns.
        dimension: i64,
        /// What is read.
        parts: Vec<Part>,
    },
}

impl Shard {
    /// Shape in memory of a tensor that is stored with a shape.
    pub fn held_shape(&self, stored: &[i64]) -> Vec<i64> {
        let mut shape = stored.to_vec();
        if let Self::Slices { dimension, parts } = self
            && let Some(size) = shape.get_mut(*dimension as usize)
        {
            *size = parts.iter().map(|part| part.held).sum();
        }
        shape
    }

    /// Values that are read of a tensor that is stored with a shape.
    pub fn read_values(&self, stored: &[i64]) -> i64 {
        let all: i64 = stored.iter().product();
        match self {
            Self::Whole => all,
            Self::OnFirstRank { first } => all * i64::from(*first),
            Self::Slices { dimension, parts } => {
                let size = stored.get(*dimension as usize).copied().unwrap_or(1).max(1);
                let taken: i64 = parts.iter().map(Part::len).sum();
                all / size * taken
            }
        }
    }

    /// What a user calls it.
    pub fn describe(&self) -> String {
        match self {
            Self::Whole => "whole".to_owned(),
            Self::OnFirstRank { .. } => "on the first rank, zeros elsewhere".to_owned(),
            Self::Slices { dimension, parts } => {
                let name = if *dimension == 0 { "rows" } else { "columns" };
                let ranges: Vec<String> = parts
                    .iter()
                    .map(|part| format!("{}..{}", part.range.start, part.range.end))
                    .collect();
                format!("{name} {}", ranges.join(" and "))
            }
        }
    }
}

impl Layout {
    /// What a rank holds of a tensor of the checkpoint.
    pub fn shard(&self, config: &ModelConfig, name: &str, rank: usize) -> Shard {
        if self.ranks() == 1 {
            return Shard::Whole;
        }
        let share = self.share(rank);
        let (module, is_bias) = match name.strip_suffix(".bias") {
            Some(module) => (module, true),
            None => (name.strip_suffix(".weight").unwrap_or(name), false),
        };
        match module {
            "model.embed_tokens" => return rows(self.embedding(), vec![share.embedding]),
            "lm_head" => return rows(self.head(), vec![share.head]),
            _ => {}
        }
        // `model.layers.N.` before the module of a layer.
        let in_layer = module
            .strip_prefix("model.layers.")
            .and_then(|rest| rest.split_once('.'));
        let Some((_, module)) = in_layer else {
            return Shard::Whole;
        };
        let columns = |spread: Spread, part: Part| match (spread, is_bias) {
            (Spread::Replicated, _) => Shard::Whole,
            (Spread::Sharded, true) => Shard::OnFirstRank { first: rank == 0 },
            (Spread::Sharded, false) => Shard::Slices {
                dimension: 1,
                parts: vec![part],
            },
        };
        match module {
            "self_attn.q_proj" => rows(
                self.attention(),
                vec![of_heads(&share.heads, config.head_dim)],
            ),
            "self_attn.k_proj" | "self_attn.v_proj" => rows(
                self.attention(),
                vec![of_heads(&share.key_value_heads, config.head_dim)],
            ),
            "self_attn.o_proj" => {
                columns(self.attention(), of_heads(&share.heads, config.head_dim))
            }
            "mlp.gate_proj" | "mlp.up_proj" => rows(self.mlp(), vec![share.inner]),
            "mlp.gate_up_proj" => rows(self.mlp(), both_halves(&share, config)),
            "mlp.down_proj" => columns(self.mlp(), share.inner),
            _ => Shard::Whole,
        }
    }
}

fn rows(spread: Spread, parts: Vec<Part>) -> Shard {
    match spread {
        Spread::Replicated => Shard::Whole,
        Spread::Sharded => Shard::Slices {
            dimension: 0,
            parts,
        },
    }
}

/// Rows of a projection that belong to heads.
fn of_heads(heads: &Range<i64>, width: i64) -> Part {
    let range = heads.start * width..heads.end * width;
    Part {
        held: range.end - range.start,
        range,
    }
}

/// The same part of the gate and of what it gates, which the checkpoint stores behind it.
fn both_halves(share: &Share, config: &ModelConfig) -> Vec<Part> {
    let gate = share.inner.clone();
    let offset = config.intermediate_size;
    let up = Part {
        range: gate.range.start + offset..gate.range.end + offset,
        held: gate.held,
    };
    vec![gate, up]
}
