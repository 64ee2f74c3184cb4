//! What would run: from config.json and the headers of the weight files, before a weight is read.
//!
//! The figures are those that loading and running use themselves: shards come from the same
//! [`Layout`], shapes from the same [`Buckets`], kernels from the same choice.

use std::collections::BTreeMap;

use kernel_registry::Registry;
use kernel_registry::tpu::TpuGeneration;
use kernel_spec::KernelConfig;
use kernel_spec::plan::{
    Communication, Plan, PlannedBuckets, PlannedOp, PlannedRank, PlannedTensor, Problem,
};

use crate::config::{Dtype, ModelConfig};
use crate::error::ModelError;
use crate::generate::Buckets;
use crate::kernelize::{Intention, KernelizeOptions, Slot, intend};
use crate::load::{HEAD, expected_tensors};
use crate::ops::DEFAULT;
use crate::parallel::{Layout, Rules, Spread};
use crate::placement::Device;
use crate::weights::{SINGLE, Weights};

/// What a plan is made for.
#[derive(Debug)]
pub struct PlanOptions<'a> {
    /// The device, which need not be there.
    pub device: Device,
    /// Generation of the TPUs, where it is known.
    pub generation: Option<TpuGeneration>,
    /// Dtype of weights and activations; `None` takes the config's, else that of the weights.
    pub dtype: Option<Dtype>,
    /// Number of ranks.
    pub ranks: usize,
    /// Styles of the modules.
    pub rules: &'a Rules,
    /// Rows of a batch.
    pub batch: i64,
    /// Tokens that a row may have; `None` takes the model's context.
    pub tokens: Option<i64>,
    /// The kernels that are asked for.
    pub kernels: &'a KernelConfig,
    /// Switches of the call.
    pub kernelize: &'a KernelizeOptions,
}

/// Makes the plan of a model. `weights` are its opened files, or why they cannot be opened.
pub fn plan(
    config: &ModelConfig,
    weights: Result<&Weights, &ModelError>,
    registry: &Registry,
    options: &PlanOptions<'_>,
) -> Plan {
    let mut problems = Vec::new();
    let mut notes = Vec::new();
    let layout = match Layout::new(config, options.ranks, options.rules) {
        Ok(layout) => layout,
        Err(error) => {
            problems.push(problem_of(&error));
            Layout::single(config)
        }
    };
    notes.extend(layout.notes().iter().cloned());
    let weights = match weights {
        Ok(weights) => {
            problems.extend(contradictions(config, weights));
            notes.extend(surplus(config, weights));
            Some(weights)
        }
        Err(error) => {
            // A plan is of use before the weights are fetched; files that name others which are not
            // there are another matter.
            if matches!(error, ModelError::MissingFile { file, .. } if file == SINGLE) {
                notes.push(
                    "the weights are not here; sizes are those that config.json implies".to_owned(),
                );
            } else {
                problems.push(problem_of(error));
            }
            None
        }
    };
    let dtype = options
        .dtype
        .or(config.dtype)
        .or_else(|| weights.and_then(|weights| weights.stored_dtype("model.embed_tokens.weight")))
        .unwrap_or(Dtype::Float32);
    let tensors = Tensors {
        config,
        layout: &layout,
        weights,
        dtype,
    };
    let context = options.tokens.unwrap_or(config.max_positions);
    let tokens = context.min(config.max_positions);
    let ranks: Vec<PlannedRank> = (0..layout.ranks())
        .map(|rank| tensors.rank(rank, options.batch * tokens))
        .collect();
    problems.extend(too_much(options, &ranks));
    problems.extend(impossible_group(options));
    if let Some(note) = replication_cost(config, &layout, dtype) {
        notes.push(note);
    }
    let intentions = intend(
        &layout.local_config(config, 0),
        dtype,
        options.device,
        options.kernels,
        registry,
        options.kernelize,
    );
    let buckets = PlannedBuckets {
        prefill: pairs(&Buckets::prompts(options.batch, tokens)),
        decode: pairs(&Buckets::caches(options.batch, tokens)),
    };
    let compiles =
        options.device == Device::Tpu || intentions.iter().any(|i| i.reference.is_some());
    if !compiles {
        notes
            .push("nothing compiles for a shape, so prompts and batches are not padded".to_owned());
    }
    Plan {
        family: config.family.name.to_owned(),
        device: options.device.to_string(),
        dtype: dtype.name().to_owned(),
        tp: layout.ranks(),
        ops: ops(config, &layout, &intentions),
        tensors: tensors.all(options.rules),
        communication: communication(config, &layout, dtype),
        ranks,
        buckets,
        notes,
        problems,
    }
}

fn problem_of(error: &ModelError) -> Problem {
    let mut message = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        message.push_str(": ");
        message.push_str(&error.to_string());
        cause = error.source();
    }
    Problem {
        kind: error.kind().to_owned(),
        message,
        hint: error.hint(),
    }
}

/// Where the weight files are not those of the config: each tensor by name.
fn contradictions(config: &ModelConfig, weights: &Weights) -> Vec<Problem> {
    let expected = expected_tensors(config);
    let (there, missing): (Vec<_>, Vec<_>) = expected
        .into_iter()
        .partition(|(name, _)| weights.contains(name));
    let mut errors = Vec::new();
    if !missing.is_empty() {
        errors.extend(weights.check(&missing).err());
    }
    for tensor in there {
        errors.extend(weights.check(std::slice::from_ref(&tensor)).err());
    }
    errors.iter().map(problem_of).collect()
}

/// Tensors that the model has no use for.
fn surplus(config: &ModelConfig, weights: &Weights) -> Option<String> {
    let expected: Vec<String> = expected_tensors(config)
        .into_iter()
        .map(|(name, _)| name)
        .collect();
    let mut extra = weights.untaken();
    extra.retain(|name| !expected.contains(name) && name != HEAD);
    let first = extra.first()?;
    Some(format!(
        "{} tensors of the weight files are not part of the model, `{first}` among them",
        extra.len()
    ))
}

/// Weights and cache that a device has no room for.
fn too_much(options: &PlanOptions<'_>, ranks: &[PlannedRank]) -> Option<Problem> {
    let generation = options.generation?;
    let room = generation.memory()?;
    let most = ranks
        .iter()
        .map(|rank| rank.weight_bytes + rank.cache_bytes)
        .max()?;
    (most > room).then(|| Problem {
        kind: "memory".to_owned(),
        message: format!(
            "weights and cache of a rank take {}, and a {generation} has {}",
            gibibytes(most),
            gibibytes(room)
        ),
        hint: Some("use more ranks, shorter rows (--tokens) or a smaller batch".to_owned()),
    })
}

/// A number of ranks that the runtime of a TPU has no topology for.
fn impossible_group(options: &PlanOptions<'_>) -> Option<Problem> {
    let generation = options.generation?;
    check_group(generation, options.ranks)
        .err()
        .map(|error| problem_of(&error))
}

/// Fails where TPUs of a generation cannot work together in this number.
pub fn check_group(generation: TpuGeneration, ranks: usize) -> Result<(), ModelError> {
    if generation.topology(ranks).is_some() {
        return Ok(());
    }
    let counts: Vec<String> = generation
        .topologies()
        .iter()
        .map(|(count, _)| count.to_string())
        .collect();
    Err(ModelError::Parallel {
        problem: format!("{ranks} devices of a {generation} host form no group"),
        hint: Some(format!("use one of these numbers: {}", counts.join(", "))),
    })
}

/// What a replicated block costs, where the ranks were meant to share it.
fn replication_cost(config: &ModelConfig, layout: &Layout, dtype: Dtype) -> Option<String> {
    if layout.ranks() == 1 || layout.attention() == Spread::Sharded {
        return None;
    }
    let projections =
        (2 * config.heads + 2 * config.key_value_heads) * config.head_dim * config.hidden_size;
    let all = projections as u64 * config.layers as u64 * dtype.bytes();
    let ranks = layout.ranks() as u64;
    Some(format!(
        "replicated attention costs each rank {} more of weights, and keys and values of all {} heads",
        gibibytes(all - all / ranks),
        config.key_value_heads
    ))
}

fn communication(config: &ModelConfig, layout: &Layout, dtype: Dtype) -> Communication {
    let ranks = layout.ranks() as u64;
    let sums = layout.sums_per_step(config.layers);
    let bytes_per_sum = config.hidden_size as u64 * dtype.bytes();
    Communication {
        sums,
        gathers: i64::from(ranks > 1),
        bytes_per_sum,
        ring_bytes: 2 * (ranks - 1) * bytes_per_sum * sums as u64 / ranks,
    }
}

fn ops(config: &ModelConfig, layout: &Layout, intentions: &[Intention]) -> Vec<PlannedOp> {
    let local = layout.local_config(config, 0);
    let shape = |slot: Slot| match slot {
        Slot::Attention | Slot::DecodeAttention | Slot::Rotary => format!(
            "H={}, K={}, D={}",
            local.heads, local.key_value_heads, local.head_dim
        ),
        Slot::Mlp => format!("h={}, I={}", local.hidden_size, local.intermediate_size),
        Slot::RmsNorm if config.family.query_key_norm => {
            format!("h={}, D={}", local.hidden_size, local.head_dim)
        }
        Slot::RmsNorm => format!("h={}", local.hidden_size),
    };
    intentions
        .iter()
        .map(|intention| PlannedOp {
            op: intention.slot.name().to_owned(),
            implementation: intention
                .reference
                .as_ref()
                .map_or_else(|| DEFAULT.to_owned(), ToString::to_string),
            places: intention.slot.places(config),
            reason: intention.reason.clone(),
            shape: shape(intention.slot),
        })
        .collect()
}

/// The tensors of a plan.
struct Tensors<'a> {
    config: &'a ModelConfig,
    layout: &'a Layout,
    weights: Option<&'a Weights>,
    dtype: Dtype,
}

impl Tensors<'_> {
    /// Names and shapes; a tied model that stores its head too reads it to compare.
    fn stored(&self) -> Vec<(String, Vec<i64>)> {
        let mut all = expected_tensors(self.config);
        if self.config.tied && self.weights.is_some_and(|weights| weights.contains(HEAD)) {
            let shape = vec![self.config.vocab_size, self.config.hidden_size];
            all.push((HEAD.to_owned(), shape));
        }
        all
    }

    /// One entry a name, layers together.
    fn all(&self, rules: &Rules) -> Vec<PlannedTensor> {
        let mut order = Vec::new();
        let mut by_name: BTreeMap<String, PlannedTensor> = BTreeMap::new();
        for (name, shape) in expected_tensors(self.config) {
            let shard = self.layout.shard(self.config, &name, 0);
            let rank_shape = shard.held_shape(&shape);
            let values: i64 = rank_shape.iter().product();
            let bytes = values as u64 * self.dtype.bytes();
            let name = without_number(&name);
            let module = name
                .rsplit_once('.')
                .map_or(name.as_str(), |(module, _)| module);
            let style = if self.layout.ranks() == 1 {
                "replicate"
            } else {
                rules.style(module).name()
            };
            by_name
                .entry(name.clone())
                .and_modify(|entry| {
                    entry.count += 1;
                    entry.rank_bytes += bytes;
                })
                .or_insert_with(|| {
                    order.push(name.clone());
                    PlannedTensor {
                        name,
                        count: 1,
                        shape,
                        style: style.to_owned(),
                        part: shard.describe(),
                        rank_shape,
                        rank_bytes: bytes,
                    }
                });
        }
        order
            .iter()
            .filter_map(|name| by_name.remove(name))
            .collect()
    }

    fn rank(&self, rank: usize, cached_tokens: i64) -> PlannedRank {
        let share = self.layout.share(rank);
        let local = self.layout.local_config(self.config, rank);
        let mut read_bytes = 0;
        let mut weight_bytes = 0;
        for (name, shape) in self.stored() {
            let part = self.layout.shard(self.config, &name, rank);
            let stored = self
                .weights
                .and_then(|weights| weights.stored_bytes_of_value(&name))
                .unwrap_or(self.dtype.bytes());
            // A tied model that stores its head reads the embedding once more, to compare the two.
            let times = 1 + u64::from(self.config.tied && name == HEAD);
            read_bytes += part.read_values(&shape) as u64 * stored * times;
            if !(self.config.tied && name == HEAD) {
                let held: i64 = part.held_shape(&shape).iter().product();
                weight_bytes += held as u64 * self.dtype.bytes();
            }
        }
        let per_token = crate::cache::KvCache::bytes(&local, 1, 1, self.dtype.bytes());
        PlannedRank {
            rank,
            heads: [share.heads.start, share.heads.end],
            key_value_heads: [share.key_value_heads.start, share.key_value_heads.end],
            vocabulary: [share.embedding.range.start, share.embedding.range.end],
            read_bytes,
            weight_bytes,
            cache_bytes_per_token: per_token,
            cache_bytes: per_token * cached_tokens.max(0) as u64,
        }
    }
}

/// The name with `*` for the number of a layer.
fn without_number(name: &str) -> String {
    let part = |part: &str| match part.parse::<u32>() {
        Ok(_) => "*".to_owned(),
        Err(_) => part.to_owned(),
    };
    name.split('.').map(part).collect::<Vec<_>>().join(".")
}

fn pairs(shapes: &[(i64, i64)]) -> Vec<[i64; 2]> {
    shapes
        .iter()
        .map(|(rows, columns)| [*rows, *columns])
        .collect()
}

fn gibibytes(bytes: u64) -> String {
    format!("{:.2} GiB", bytes as f64 / f64::from(1 << 30))
}
