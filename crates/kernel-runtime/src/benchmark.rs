//! `bench ab`: two arms on the same inputs, compared for correctness first and time second.

use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use kernel_bench::correctness::{self, Correctness};
use kernel_bench::environment::MachineRecord;
use kernel_bench::measure::{Budget, Measurement, measure};
use kernel_bench::record::{ArmRecord, Comparison, Row};
use kernel_bench::statistics::corrected_confidence;
use kernel_bench::workload::{OpCase, OpKind, OpShape, Subject};
use kernel_bridge::LoadedKernel;
use kernel_model::kernelize::{SingleKernel, obtain};
use kernel_model::{Device, Dtype, Model, ModelConfig};
use kernel_spec::protocol::{BenchmarkRequest, KernelChoice, Workload};
use kernel_spec::{DeviceType, KernelRef, OpName};
use tch::{Kind, Tensor};

use crate::Events;
use crate::failure::RuntimeError;
use crate::generate::{Loaded, Wanted, load, set_threads};
use crate::interface::interrupted;
use crate::session;

/// Name of the arm that is no kernel.
const DEFAULT: &str = "default";
/// Name of the arm that is a model with the kernels of its config.
const CONFIG: &str = "config";
/// Seeds of the inputs that arms are compared on before they are timed.
const SEEDS: [u64; 3] = [1, 2, 3];
/// Time for warming up each arm of a row.
const WARM_UP: Duration = Duration::from_millis(200);
/// Prompt length at which a model's ops are compared.
const MODEL_TOKENS: i64 = 256;

/// Runs the request.
///
/// # Errors
/// Options that do not go together, kernels that cannot be had, ops that fail. An arm that is wrong
/// is a row without a timing, not an error.
pub fn run(request: &BenchmarkRequest, events: &Events) -> Result<Comparison, RuntimeError> {
    check(request)?;
    set_threads(request.threads)?;
    match &request.workload {
        Workload::Op { op, shapes } => {
            let op = OpKind::by_name(op)?;
            let shapes = match shapes.as_slice() {
                [] => vec![OpShape::new(op, &std::collections::BTreeMap::new())?],
                given => given
                    .iter()
                    .map(|sizes| OpShape::new(op, sizes))
                    .collect::<Result<_, _>>()?,
            };
            ops(request, op, &shapes, events)
        }
        Workload::OpOfModel { op, model } => {
            let op = OpKind::by_name(op)?;
            let config = ModelConfig::from_directory(model)?;
            ops(
                request,
                op,
                &OpShape::of_model(op, &config, MODEL_TOKENS)?,
                events,
            )
        }
        Workload::Model {
            model,
            prompt_tokens,
            new_tokens,
        } => models(request, model, *prompt_tokens, *new_tokens, events),
    }
}

fn check(request: &BenchmarkRequest) -> Result<(), RuntimeError> {
    let refuse = |option, problem: String| {
        Err(RuntimeError::Option {
            option,
            problem,
            hint: None,
        })
    };
    if !(request.confidence > 0.0 && request.confidence < 1.0) {
        return refuse(
            "--confidence",
            format!("{} is not between 0 and 1", request.confidence),
        );
    }
    if !(request.budget_s > 0.0 && request.budget_s <= 86_400.0) {
        return refuse(
            "--budget",
            format!("{} s is not between 0 s and a day", request.budget_s),
        );
    }
    Ok(())
}

fn budget(request: &BenchmarkRequest) -> Budget {
    Budget {
        measuring: Duration::from_secs_f64(request.budget_s),
        warm_up: WARM_UP,
        seed: request.seed,
    }
}

/// One side of a comparison of ops.
enum Arm {
    Default,
    Kernel {
        reference: KernelRef,
        op: OpName,
        symbol: Option<String>,
        loaded: LoadedKernel,
    },
}

impl Arm {
    fn subject(&self, kind: OpKind, case: &OpCase) -> Result<Subject, RuntimeError> {
        Ok(match self {
            Self::Default => Subject::default_of(kind),
            Self::Kernel {
                reference,
                op,
                symbol,
                loaded,
            } => {
                let kernel = SingleKernel::new(loaded, reference, *op, symbol.as_deref());
                Subject::of_kernel(kind, &kernel, case)?
            }
        })
    }
}

/// Fetches, verifies and loads an arm, and says what it is.
fn arm(
    name: &str,
    kind: OpKind,
    request: &BenchmarkRequest,
    events: &Events,
) -> Result<(Arm, ArmRecord), RuntimeError> {
    let mut record = ArmRecord {
        name: name.to_owned(),
        repo: None,
        commit: None,
        execution: "libtorch".to_owned(),
    };
    if name == DEFAULT {
        return Ok((Arm::Default, record));
    }
    let reference: KernelRef =
        name.parse()
            .map_err(|error: kernel_spec::Error| RuntimeError::Option {
                option: "A or B",
                problem: error.to_string(),
                hint: Some("give a kernel reference, or `default`".to_owned()),
            })?;
    events.progress(&format!("loading {name}"), 0, 0);
    let registry = session::registry(&request.registry, events)?;
    let (resolved, verified) = obtain(&registry, &reference, DeviceType::Cpu, request.interpret)?;
    record.repo = resolved.repository.as_ref().map(ToString::to_string);
    record.commit = resolved.commit.as_ref().map(ToString::to_string);
    record.execution = format!("kernel build {}", resolved.variant);
    let index = registry.index()?;
    let entry = kind
        .ops()
        .iter()
        .find_map(|op| Some((*op, index.op_entry(&reference, *op)?)));
    let (op, symbol) = if let Some((op, entry)) = entry {
        (op, Some(entry.symbol.clone()))
    } else {
        // Not in the index: the symbol tells which of the slot's ops it is.
        let named = |op: &&OpName| {
            let symbol = reference.symbol.as_deref().unwrap_or_default();
            symbol == op.as_str() || symbol.ends_with(&format!(".{}", op.as_str()))
        };
        let op = kind.ops().iter().find(named).or_else(|| kind.ops().first());
        (op.copied().unwrap_or(OpName::Attention), None)
    };
    let loaded = session::bridge(Device::Cpu)?.load(&verified)?;
    Ok((
        Arm::Kernel {
            reference,
            op,
            symbol,
            loaded,
        },
        record,
    ))
}

fn ops(
    request: &BenchmarkRequest,
    kind: OpKind,
    shapes: &[OpShape],
    events: &Events,
) -> Result<Comparison, RuntimeError> {
    let dtype = request
        .dtype
        .as_deref()
        .map_or(Ok(Dtype::Float32), Dtype::by_name)?;
    let (a, a_record) = arm(&request.a, kind, request, events)?;
    let (b, b_record) = arm(&request.b, kind, request, events)?;
    let _guard = tch::no_grad_guard();
    let confidence = corrected_confidence(request.confidence, shapes.len());
    let mut rows = Vec::new();
    for shape in shapes {
        if interrupted().load(Ordering::Relaxed) {
            break;
        }
        rows.push(op_row(
            request,
            kind,
            shape,
            dtype.kind(),
            (&a, &b),
            confidence,
            events,
        )?);
    }
    Ok(finish(request, a_record, b_record, rows))
}

fn op_row(
    request: &BenchmarkRequest,
    kind: OpKind,
    shape: &OpShape,
    dtype: Kind,
    (a, b): (&Arm, &Arm),
    confidence: f64,
    events: &Events,
) -> Result<Row, RuntimeError> {
    let workload = shape.to_string();
    events.progress(&format!("checking {workload}"), 0, 0);
    let interpreted_before = interpreted_compiles()?;
    let mut comparisons = Vec::new();
    let mut first_calls = None;
    for seed in SEEDS {
        let case = OpCase::random(shape, dtype, seed.wrapping_add(request.seed))?;
        let (of_a, of_b) = (a.subject(kind, &case)?, b.subject(kind, &case)?);
        let started = Instant::now();
        let expected = case.run(&of_a)?;
        let time_a = started.elapsed();
        let started = Instant::now();
        let got = case.run(&of_b)?;
        first_calls.get_or_insert((time_a, started.elapsed()));
        let (Some(expected), Some(got)) = (expected, got) else {
            continue;
        };
        for (expected, got) in expected.iter().zip(&got) {
            comparisons.push(Correctness::compare(expected, got)?);
        }
    }
    let correctness = Correctness::worst(&comparisons);
    if !correctness.ok {
        let reason = "the arms do not agree, so no time is shown".to_owned();
        return Ok(Row::untimed(workload, correctness, reason));
    }
    if interpreted_compiles()? > interpreted_before {
        let reason = "an arm runs in Pallas' interpret mode: functional, not timed".to_owned();
        return Ok(Row::untimed(workload, correctness, reason));
    }
    let case = OpCase::random(shape, dtype, request.seed)?;
    let (of_a, of_b) = (a.subject(kind, &case)?, b.subject(kind, &case)?);
    let mut run_a = || case.run(&of_a).map(drop);
    let mut run_b = || case.run(&of_b).map(drop);
    let (measurement, compiles) = watched(
        &workload,
        request,
        first_calls,
        events,
        &mut run_a,
        &mut run_b,
    )?;
    Ok(Row::timed(
        workload,
        correctness,
        measurement,
        compiles,
        confidence,
        request.seed,
    ))
}

/// Measures with progress, and counts the compiles that fall into the timed span.
fn watched<E>(
    workload: &str,
    request: &BenchmarkRequest,
    first_calls: Option<(Duration, Duration)>,
    events: &Events,
    a: &mut dyn FnMut() -> Result<(), E>,
    b: &mut dyn FnMut() -> Result<(), E>,
) -> Result<(Measurement, usize), RuntimeError>
where
    RuntimeError: From<E>,
{
    let stage = format!("measuring {workload}");
    let started = Instant::now();
    let total = (request.budget_s * 1e3) as u64;
    let told = std::cell::Cell::new(u64::MAX);
    let stop = || {
        // Ten times a second: telling more often would be part of what is measured.
        let done = started.elapsed().as_millis() as u64;
        if told.get() != done / 100 {
            told.set(done / 100);
            events.progress(&stage, done.min(total), total);
        }
        interrupted().load(Ordering::Relaxed)
    };
    let before = compile_count()?;
    let mut measurement = measure(a, b, &budget(request), &stop)?;
    if let Some((first_a, first_b)) = first_calls {
        measurement.first_call_a = first_a.as_secs_f64();
        measurement.first_call_b = first_b.as_secs_f64();
    }
    Ok((measurement, compile_count()? - before))
}

fn compile_count() -> Result<usize, RuntimeError> {
    Ok(session::running_bridge()
        .map(kernel_bridge::Bridge::compile_count)
        .transpose()?
        .unwrap_or(0))
}

fn interpreted_compiles() -> Result<usize, RuntimeError> {
    let Some(bridge) = session::running_bridge() else {
        return Ok(0);
    };
    Ok(bridge
        .compiles()?
        .iter()
        .filter(|compile| compile.interpreted)
        .count())
}

fn finish(request: &BenchmarkRequest, a: ArmRecord, b: ArmRecord, rows: Vec<Row>) -> Comparison {
    let versions = match session::running_bridge() {
        Some(bridge) => bridge.versions(),
        None => {
            std::iter::once(("torch".to_owned(), kernel_bridge::TORCH_VERSION.to_owned())).collect()
        }
    };
    let machine = MachineRecord::read("cpu", versions);
    Comparison::new(a, b, rows, machine, request.confidence, request.seed)
}

/// A model under measurement: its kernels, and a cache of its own.
struct Subjected {
    model: Model,
    cache: kernel_model::cache::KvCache,
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

    /// The logits after the prompt, [1, V].
    fn prefill(&mut self) -> Result<Tensor, RuntimeError> {
        let hidden = self.model.prefill(&self.ids, &mut self.cache, None)?;
        Ok(self.model.logits(&hidden.f_select(1, self.prompt - 1)?)?)
    }

    /// The logits of one step, [1, V]. Steps go through the free columns again and again, so that
    /// each reads a cache that is filled.
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

fn models(
    request: &BenchmarkRequest,
    directory: &Path,
    prompt_tokens: usize,
    new_tokens: usize,
    events: &Events,
) -> Result<Comparison, RuntimeError> {
    let config = ModelConfig::from_directory(directory)?;
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
    // Any ids do: the time of a dense model does not depend on them.
    let ids: Vec<i64> = (0..prompt_tokens as i64)
        .map(|n| (n * 7919 + 13) % config.vocab_size)
        .collect();
    let a = model_arm(&request.a, request, directory, events)?;
    let b = model_arm(&request.b, request, directory, events)?;
    let mut first = Subjected::new(a.0.model, &ids, new_tokens)?;
    let mut second = Subjected::new(b.0.model, &ids, new_tokens)?;
    let confidence = corrected_confidence(request.confidence, 2);
    let interpreted = interpreted_compiles()? > 0;

    let mut rows = Vec::new();
    let phases: [(String, bool); 2] = [
        (format!("prefill, {prompt_tokens} tokens"), true),
        (
            format!(
                "decode, 1 token after {prompt_tokens} to {}",
                prompt_tokens + new_tokens
            ),
            false,
        ),
    ];
    for (workload, prefill) in phases {
        if interrupted().load(Ordering::Relaxed) {
            break;
        }
        let call = |arm: &mut Subjected| {
            if prefill {
                arm.prefill()
            } else {
                arm.decode(1)
            }
        };
        events.progress(&format!("checking {workload}"), 0, 0);
        let started = Instant::now();
        let expected = call(&mut first)?;
        let time_a = started.elapsed();
        let started = Instant::now();
        let got = call(&mut second)?;
        let first_calls = Some((time_a, started.elapsed()));
        let correctness = agree(&expected, &got, first.model.dtype())?;
        if !correctness.ok || interpreted {
            let reason = if interpreted {
                "an op runs in Pallas' interpret mode: functional, not timed"
            } else {
                "the arms do not agree, so no time is shown"
            };
            rows.push(Row::untimed(workload, correctness, reason.to_owned()));
            continue;
        }
        let mut run_a = || call(&mut first).map(drop);
        let mut run_b = || call(&mut second).map(drop);
        let (measurement, compiles) = watched(
            &workload,
            request,
            first_calls,
            events,
            &mut run_a,
            &mut run_b,
        )?;
        rows.push(Row::timed(
            workload,
            correctness,
            measurement,
            compiles,
            confidence,
            request.seed,
        ));
    }
    Ok(finish(request, a.1, b.1, rows))
}

/// Compares logits of whole models: the tolerance of one op, times four for what adds up over the
/// layers, of the largest logit.
fn agree(expected: &Tensor, got: &Tensor, dtype: Dtype) -> Result<Correctness, RuntimeError> {
    const LAYERS: f64 = 4.0;
    let largest = expected.f_abs()?.f_max()?.f_double_value(&[])?;
    let (absolute, relative) = correctness::tolerance(dtype.kind());
    Ok(Correctness::compare_within(
        expected,
        got,
        (absolute * LAYERS * largest.max(1.0), relative * LAYERS),
    )?)
}

fn model_arm(
    name: &str,
    request: &BenchmarkRequest,
    directory: &Path,
    events: &Events,
) -> Result<(Loaded, ArmRecord), RuntimeError> {
    let kernels = match name {
        DEFAULT => KernelChoice {
            off: true,
            ..KernelChoice::default()
        },
        CONFIG => KernelChoice {
            interpret: request.interpret,
            ..KernelChoice::default()
        },
        other => {
            return Err(RuntimeError::Option {
                option: "A or B",
                problem: format!("`{other}` is not an arm of a whole model"),
                hint: Some(
                    "give `default` and `config`, or name an op with `--op` to compare a kernel by itself"
                        .to_owned(),
                ),
            });
        }
    };
    let loaded = load(
        &Wanted {
            model: directory,
            dtype: request.dtype.as_deref(),
            device: Device::Cpu,
            kernels: &kernels,
            registry: &request.registry,
        },
        events,
    )?;
    let used: Vec<&str> = loaded
        .report
        .entries
        .iter()
        .filter(|entry| entry.replaced > 0)
        .map(|entry| entry.op.as_str())
        .collect();
    if name == CONFIG {
        let used = if used.is_empty() {
            "none".to_owned()
        } else {
            used.join(", ")
        };
        events.info(format!("arm `config` runs kernels for: {used}"));
    }
    let record = ArmRecord {
        name: name.to_owned(),
        repo: None,
        commit: None,
        execution: "model".to_owned(),
    };
    Ok((loaded, record))
}
