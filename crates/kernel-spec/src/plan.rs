//! What would run, before it does: the answer of `plan`.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::protocol::{KernelChoice, RegistrySettings};

/// Say what would run, from config.json and the headers of the weight files.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlanRequest {
    /// Model directory.
    pub model: PathBuf,
    /// `auto`, `cpu` or `tpu`; the device need not be there.
    pub device: String,
    /// Generation of the TPUs, such as `v5e`, for their number and memory; `None` takes this machine's.
    pub target: Option<String>,
    /// `float32` or `bfloat16`; `None` takes the config's.
    pub dtype: Option<String>,
    /// Number of tensor-parallel ranks.
    pub tp_size: usize,
    /// A tensor-parallel plan over the model's own.
    pub tp_plan: Option<Map<String, Value>>,
    /// Which kernels to use.
    pub kernels: KernelChoice,
    /// How kernels are reached.
    pub registry: RegistrySettings,
    /// Rows of a batch.
    pub batch: usize,
    /// Tokens that a row may have; `None` takes the model's context.
    pub tokens: Option<usize>,
}

/// What would run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// `model_type` of the config.
    pub family: String,
    /// The device it is planned for.
    pub device: String,
    /// The dtype of weights and activations.
    pub dtype: String,
    /// Number of ranks.
    pub tp: usize,
    /// One entry for each op: what it runs on, and what it is called with on each rank.
    pub ops: Vec<PlannedOp>,
    /// One entry for each tensor name, with `*` for the number of a layer.
    pub tensors: Vec<PlannedTensor>,
    /// One entry for each rank.
    pub ranks: Vec<PlannedRank>,
    /// The shapes of forward passes.
    pub buckets: PlannedBuckets,
    /// What ranks exchange in a decode step of one row.
    pub communication: Communication,
    /// What is good to know, one sentence each.
    pub notes: Vec<String>,
    /// What stands against it, one sentence each. None means that it can run.
    pub problems: Vec<Problem>,
}

/// What stands against a plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// Stable word for programs, such as `tensor_shape`.
    pub kind: String,
    /// One sentence.
    pub message: String,
    /// What can be done.
    pub hint: Option<String>,
}

/// An op of the model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedOp {
    /// `attention`, `decode_attention`, `mlp`, `rms_norm` or `rotary`.
    pub op: String,
    /// The kernel's reference, or `default`.
    pub implementation: String,
    /// Places in the model.
    pub places: usize,
    /// Why this one; kernels pass the numeric gate only when the model is loaded.
    pub reason: String,
    /// Named sizes on each rank, such as `H=8, K=2, D=128`.
    pub shape: String,
}

/// The tensors of a name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedTensor {
    /// Name in the checkpoint.
    pub name: String,
    /// How many layers have one.
    pub count: usize,
    /// Shape in the checkpoint.
    pub shape: Vec<i64>,
    /// Style of its module in the tensor-parallel plan.
    pub style: String,
    /// What the first rank takes of it, such as `rows 0..1024`.
    pub part: String,
    /// Shape on each rank.
    pub rank_shape: Vec<i64>,
    /// Bytes on each rank, all layers together.
    pub rank_bytes: u64,
}

/// What a rank holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedRank {
    /// The rank.
    pub rank: usize,
    /// Query heads, first and one past the last.
    pub heads: [i64; 2],
    /// Key/value heads, first and one past the last.
    pub key_value_heads: [i64; 2],
    /// Rows of the vocabulary, first and one past the last.
    pub vocabulary: [i64; 2],
    /// Bytes that it takes from the weight files.
    pub read_bytes: u64,
    /// Bytes of its weights in memory.
    pub weight_bytes: u64,
    /// Bytes of keys and values that a token takes.
    pub cache_bytes_per_token: u64,
    /// Bytes of the cache for the planned batch and tokens.
    pub cache_bytes: u64,
}

/// Shapes that compile once each where ops compile.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedBuckets {
    /// Rows and columns of prompts.
    pub prefill: Vec<[i64; 2]>,
    /// Rows and columns of the cache in decode steps.
    pub decode: Vec<[i64; 2]>,
}

/// What ranks exchange in a decode step of one row.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Communication {
    /// Sums over all ranks.
    pub sums: i64,
    /// Gathers from all ranks.
    pub gathers: i64,
    /// Bytes of one sum: a hidden state.
    pub bytes_per_sum: u64,
    /// Bytes that each rank sends in all sums of a step, if they run as a ring: an estimate.
    pub ring_bytes: u64,
}
