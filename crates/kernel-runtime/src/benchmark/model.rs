//! Whole models: prefill, time to the first token, and decode.

use std::path::Path;
use std::time::Instant;

use kernel_bench::correctness;
use kernel_bench::measure::Calls;
use kernel_model::cache::KvCache;
use kernel_model::{Device, Dtype, Model, ModelConfig};
use kernel_report::Correctness;
use kernel_report::record::{ArmRecord, Comparison, Level, ReplacedOp, Row};
use kernel_spec::protocol::KernelChoice;
use tch::{Kind, Tensor};

use super::watched::{interpreted_compiles, watched};
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

/// Compares two set-ups of a model.
pub(super) fn compare(
    run: &Run<'_>,
    directory: &Path,
    (prompt_tokens, new_tokens): (usize, usize),
) -> Result<Comparison, RuntimeError> {
    let config = ModelConfig::from_directory(directory)?;
    check_room(&config, prompt_tokens, new_tokens)?;
    let ids = prompt(&config, prompt_tokens);
    let (a, a_record) = model_arm(run, &run.request.a, directory)?;
    let (b, b_record) = model_arm(run, &run.request.b, directory)?;
    let dtype = a.model.dtype();
    let mut first = Subjected::new(a.model, &ids, new_tokens)?;
    let mut second = Subjected::new(b.model, &ids, new_tokens)?;
    let phases = [
        (format!("prefill, {prompt_tokens} tokens"), Phase::Prefill),
        (
            format!("time to first token, {prompt_tokens} tokens"),
            Phase::FirstToken,
        ),
        (
            format!(
                "decode, 1 token after {prompt_tokens} to {}",
                prompt_tokens + new_tokens
            ),
            Phase::Decode,
        ),
    ];
    let rows = Run::rows(phases.len(), |index| {
        let (workload, phase) = &phases[index];
        row(
            run,
            workload,
            *phase,
            prompt_tokens,
            (&mut first, &mut second),
        )
    })?;
    Ok(run.finish(
        (Level::Model, Some(dtype)),
        (a_record, b_record),
        (rows, phases.len()),
    ))
}

fn row(
    run: &Run<'_>,
    workload: &str,
    phase: Phase,
    prompt_tokens: usize,
    (first, second): (&mut Subjected, &mut Subjected),
) -> Result<Row, RuntimeError> {
    run.events.progress(&format!("checking {workload}"), 0, 0);
    let started = Instant::now();
    let expected = first.call(phase)?;
    let time_a = started.elapsed().as_secs_f64();
    let started = Instant::now();
    let got = second.call(phase)?;
    let time_b = started.elapsed().as_secs_f64();
    let correctness = agree(&expected, &got, first.model.dtype())?;
    let mut row = Row::new(workload.to_owned(), correctness);
    row.tokens = match phase {
        Phase::Prefill => Some(prompt_tokens as f64),
        Phase::Decode => Some(1.0),
        Phase::FirstToken => None,
    };
    if !row.correctness.ok {
        return Ok(row.untimed("the arms do not agree, so no time is shown"));
    }
    row.functional = interpreted_compiles()? > 0;
    let flusher = run.flusher.as_ref();
    watched(
        run,
        row,
        (time_a, time_b),
        &mut Calls::new(|| first.call(phase).map(drop), flusher),
        &mut Calls::new(|| second.call(phase).map(drop), flusher),
    )
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

/// Compares results of many ops in a row: the tolerance of one op, times four for what adds up over
/// them, of the largest value.
pub(super) fn agree(
    expected: &Tensor,
    got: &Tensor,
    dtype: Dtype,
) -> Result<Correctness, RuntimeError> {
    const OPS: f64 = 4.0;
    let largest = expected
        .f_abs()?
        .f_max()?
        .f_to_kind(Kind::Double)?
        .f_double_value(&[])?;
    let (absolute, relative) = correctness::tolerance(dtype.kind());
    Ok(correctness::compare_within(
        expected,
        got,
        (absolute * OPS * largest.max(1.0), relative * OPS),
    )?)
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
