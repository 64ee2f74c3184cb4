//! Whole models: prefill, time to the first token, and decode.

use std::path::{Path, PathBuf};

use kernel_bench::measure::{Arm as _, Calls};
use kernel_model::cache::KvCache;
use kernel_model::{Device, Model, ModelConfig};
use kernel_report::record::{ArmRecord, ReplacedOp};
use kernel_spec::protocol::KernelChoice;
use tch::Tensor;

use super::side::{About, Compiles, Outputs, Side};
use super::task::RowPlan;
use super::{CONFIG, DEFAULT, Run};
use crate::failure::RuntimeError;
use crate::generate::{Loaded, Wanted, load};

/// What is measured of a model.
#[derive(Debug, Clone, Copy)]
enum Phase {
    /// The prompt, into a cache that is there.
    Prefill,
    /// From the ids to the id of the first new token: a new cache, the prompt, the choice.
    FirstToken,
    /// One step.
    Decode,
}

/// A model and how long a prompt it gets.
pub(super) struct ModelTask {
    directory: PathBuf,
    ids: Vec<i64>,
    new_tokens: usize,
}

impl ModelTask {
    const PHASES: [Phase; 3] = [Phase::Prefill, Phase::FirstToken, Phase::Decode];

    pub(super) fn new(
        directory: &Path,
        prompt_tokens: usize,
        new_tokens: usize,
    ) -> Result<Self, RuntimeError> {
        let config = ModelConfig::from_directory(directory)?;
        check_room(&config, prompt_tokens, new_tokens)?;
        Ok(Self {
            directory: directory.to_owned(),
            ids: prompt(&config, prompt_tokens),
            new_tokens,
        })
    }

    pub(super) fn rows(&self) -> Vec<RowPlan> {
        let prompt = self.ids.len();
        let end = prompt + self.new_tokens;
        Self::PHASES
            .map(|phase| {
                let (name, tokens) = match phase {
                    Phase::Prefill => (format!("prefill, {prompt} tokens"), Some(prompt as f64)),
                    Phase::FirstToken => (format!("time to first token, {prompt} tokens"), None),
                    Phase::Decode => (
                        format!("decode, 1 token after {prompt} to {end}"),
                        Some(1.0),
                    ),
                };
                RowPlan {
                    name,
                    seeds: &[0],
                    tokens,
                    work: None,
                }
            })
            .into()
    }

    pub(super) fn side<'a>(
        &'a self,
        run: &'a Run<'_>,
        name: &str,
    ) -> Result<ModelSide<'a>, RuntimeError> {
        let (loaded, record) = model_arm(run, name, &self.directory)?;
        Ok(ModelSide {
            run,
            about: About::here(record, loaded.model.dtype()),
            subject: Subjected::new(loaded.model, &self.ids, self.new_tokens)?,
            phase: Phase::Prefill,
        })
    }
}

/// A set-up of the model, in this process.
pub(super) struct ModelSide<'a> {
    run: &'a Run<'a>,
    about: About,
    subject: Subjected,
    phase: Phase,
}

impl Side for ModelSide<'_> {
    fn about(&self) -> &About {
        &self.about
    }

    fn outputs(&mut self, workload: usize, _seed: u64) -> Result<Outputs, RuntimeError> {
        self.phase = ModelTask::PHASES[workload];
        Outputs::of(|| Ok(vec![self.subject.call(self.phase)?]))
    }

    fn sample(&mut self, calls: usize) -> Result<f64, RuntimeError> {
        let (subject, phase) = (&mut self.subject, self.phase);
        let flusher = self.run.flusher.as_ref();
        Calls::new(|| subject.call(phase).map(drop), flusher).sample(calls)
    }

    fn compiles(&mut self) -> Result<Compiles, RuntimeError> {
        Compiles::here()
    }
}

/// Fails where prompt and steps do not fit the model's context.
pub(super) fn check_room(
    config: &ModelConfig,
    prompt_tokens: usize,
    new_tokens: usize,
) -> Result<(), RuntimeError> {
    let room = usize::try_from(config.max_positions).unwrap_or(usize::MAX);
    if prompt_tokens == 0 || prompt_tokens.saturating_add(new_tokens) > room {
        return Err(RuntimeError::Option {
            option: "--prompt-tokens",
            problem: format!(
                "{prompt_tokens} prompt tokens and {new_tokens} new ones do not fit a context of {room}"
            ),
            hint: None,
        });
    }
    Ok(())
}

/// Any ids do: the time of a dense model does not depend on them.
pub(super) fn prompt(config: &ModelConfig, tokens: usize) -> Vec<i64> {
    (0..tokens as i64)
        .map(|n| (n * 7919 + 13) % config.vocab_size)
        .collect()
}

/// A model under measurement: its kernels, and a cache of its own.
struct Subjected {
    model: Model,
    cache: KvCache,
    ids: Tensor,
    prompt: i64,
    /// Column that the next decode step writes, between the prompt's end and the cache's.
    column: i64,
    limit: i64,
}

impl Subjected {
    fn new(model: Model, ids: &[i64], new_tokens: usize) -> Result<Self, RuntimeError> {
        let prompt = ids.len() as i64;
        let limit = prompt + new_tokens.max(1) as i64;
        let cache = model.new_cache(1, limit)?;
        let ids = Tensor::f_from_slice(ids)?.f_unsqueeze(0)?;
        Ok(Self {
            model,
            cache,
            ids,
            prompt,
            column: prompt,
            limit,
        })
    }

    /// The logits of the phase's last position, [1, V].
    fn call(&mut self, phase: Phase) -> Result<Tensor, RuntimeError> {
        match phase {
            Phase::Prefill => self.prefill(),
            Phase::FirstToken => {
                self.cache = self.model.new_cache(1, self.limit)?;
                let logits = self.prefill()?;
                // Reading the id is what a user waits for.
                logits.f_argmax(-1, false)?.f_int64_value(&[0])?;
                Ok(logits)
            }
            Phase::Decode => self.decode(1),
        }
    }

    fn prefill(&mut self) -> Result<Tensor, RuntimeError> {
        let hidden = self.model.prefill(&self.ids, &mut self.cache, None)?;
        Ok(self.model.logits(&hidden.f_select(1, self.prompt - 1)?)?)
    }

    /// Steps go through the free columns again and again, so that each reads a cache that is filled.
    fn decode(&mut self, id: i64) -> Result<Tensor, RuntimeError> {
        let hidden = self
            .model
            .decode(&[id], &[self.column], &mut self.cache, None)?;
        self.column += 1;
        if self.column == self.limit {
            self.column = self.prompt;
        }
        Ok(self.model.logits(&hidden.f_select(1, 0)?)?)
    }
}

/// A model as an arm: `default`, `config`, or its config with kernels in place of it as
/// `OP=REF,OP=REF`.
pub(super) fn model_arm(
    run: &Run<'_>,
    name: &str,
    directory: &Path,
) -> Result<(Loaded, ArmRecord), RuntimeError> {
    let kernels = match name {
        DEFAULT => KernelChoice {
            off: true,
            ..KernelChoice::default()
        },
        CONFIG => KernelChoice {
            interpret: run.request.interpret,
            ..KernelChoice::default()
        },
        pairs if pairs.contains('=') => KernelChoice {
            interpret: run.request.interpret,
            overrides: pairs
                .split(',')
                .filter_map(|pair| pair.split_once('='))
                .map(|(op, reference)| (op.trim().to_owned(), reference.trim().to_owned()))
                .collect(),
            ..KernelChoice::default()
        },
        other => {
            return Err(RuntimeError::Option {
                option: "A or B",
                problem: format!("`{other}` is not an arm of a whole model"),
                hint: Some(
                    "give `default`, `config` or `OP=REF`, or name an op with `--op` to compare a kernel by itself"
                        .to_owned(),
                ),
            });
        }
    };
    let loaded = load(
        &Wanted {
            model: directory,
            dtype: run.request.dtype.as_deref(),
            device: Device::Cpu,
            kernels: &kernels,
            registry: &run.request.registry,
            group: None,
        },
        run.events,
    )?;
    if name != DEFAULT && !loaded.report.any_replaced() {
        run.events
            .warning(format!("arm `{name}` runs no kernel, so it is the default"));
    }
    let ops = loaded.report.entries.iter().map(|entry| ReplacedOp {
        op: entry.op.clone(),
        implementation: entry.implementation.clone(),
        repo: entry.repo.clone(),
        commit: entry.commit.clone(),
        replaced: entry.replaced,
        total: entry.total,
        reason: entry.reason.clone(),
    });
    let record = ArmRecord {
        name: name.to_owned(),
        execution: "model".to_owned(),
        ops: ops.collect(),
        ..ArmRecord::default()
    };
    Ok((loaded, record))
}
