//! `check`: whether a kernel is right, whether it builds for each TPU, and what it may cost there.
//!
//! Nothing of the kernel runs in this process: a child process per step loads, compares, simulates and
//! compiles (`kernel_bridge::check`). What remains here are decisions: which shapes ([`plan`]), in which
//! order ([`runner`]), what an answer means ([`findings`], [`hint`]), and which figure may be believed
//! ([`builds`]).

pub(crate) mod builds;
mod collect;
mod findings;
mod hint;
pub(crate) mod plan;
pub(crate) mod runner;

use std::time::{Duration, Instant};

use kernel_bench::workload::OpShape;
use kernel_bridge::check::chip::Target;
use kernel_bridge::check::{Answer, BuildArm, CheckServer, Job, Limits, Offered, Signature};
use kernel_bridge::{BridgeError, Environment};
use kernel_model::kernelize::obtain;
use kernel_model::{Dtype, ModelConfig};
use kernel_registry::{Registry, VerifiedKernel};
use kernel_spec::protocol::check::{
    CheckRequest, CheckResponse, CheckedKernel, CheckedOp, Finding, Severity,
};
use kernel_spec::{DType, DeviceType, KernelRef, OpName};

use self::builds::{Builder, Row};
use self::collect::{Collector, Key, Subject};
use self::findings::Site;
use crate::Events;
use crate::failure::RuntimeError;
use crate::session;

/// Memory that one step may take.
const STEP_MEMORY: u64 = 8 << 30;
/// Parts of a check, as `--skip` names them.
const PARTS: [&str; 3] = ["parity", "races", "targets"];

/// Runs the request.
///
/// # Errors
/// Options that make no sense, kernels that cannot be had, an environment without JAX or libtpu. A
/// kernel that is wrong is a response that says so.
pub fn run(request: &CheckRequest, events: &Events) -> Result<CheckResponse, RuntimeError> {
    let started = Instant::now();
    let targets = read_targets(&request.targets)?;
    check_options(request)?;
    let reference: KernelRef = request
        .reference
        .parse()
        .map_err(|error: kernel_spec::Error| RuntimeError::Option {
            option: "REF",
            problem: error.to_string(),
            hint: error.hint(),
        })?;
    let registry = session::registry(&request.registry, events)?;
    let (kernel, described) = obtain_build(&registry, &reference, &request.reference)?;
    let environment = Environment::discover().map_err(BridgeError::from)?;
    events.progress("starting Python", 0, 0);
    let mut server = start(&environment, &kernel, request.time_limit_s)?;
    let mut response = CheckResponse {
        kernel: described,
        estimate: true,
        versions: versions(&environment),
        ..CheckResponse::default()
    };
    let wanted = wanted_op(request, &reference, &registry)?;
    match offered(&mut server, wanted.as_ref(), request.time_limit_s, events)? {
        Err(finding) => response.findings.push(*finding),
        Ok((signature, printed)) => {
            response.findings.extend(printed);
            let model = request
                .model
                .as_deref()
                .map(ModelConfig::from_directory)
                .transpose()?;
            let subjects = subjects(request, &reference, &registry, &signature, model.as_ref())?;
            for subject in &subjects {
                response
                    .findings
                    .extend(findings::signature(&subject.offered));
                response.ops.push(CheckedOp {
                    op: subject.offered.op.to_string(),
                    symbol: subject.offered.symbol.clone(),
                    kind: subject.offered.kind.clone(),
                    parameters: subject.offered.parameters.clone(),
                });
            }
            let mut collector = Collector::new(&subjects, &targets, request.time_limit_s);
            let jobs = jobs(request, &subjects, &targets, &collector.rows);
            let at_a_time = request.jobs.unwrap_or_else(processors);
            runner::run(
                &mut server,
                jobs,
                at_a_time,
                &mut collector,
                events,
                "checking",
            )?;
            collector.finish(&mut response)?;
        }
    }
    response.findings.sort_by_key(|finding| finding.severity);
    response.passed = !response
        .findings
        .iter()
        .any(|finding| finding.severity == Severity::Error);
    response.seconds = started.elapsed().as_secs_f64();
    Ok(response)
}

/// Steps at a time where nobody says how many.
pub(crate) fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Starts the child process for a kernel.
pub(crate) fn start(
    environment: &Environment,
    kernel: &VerifiedKernel,
    time_limit_s: f64,
) -> Result<CheckServer, BridgeError> {
    CheckServer::start(environment, Some(kernel), limits(time_limit_s))
}

/// What a step may use.
pub(crate) fn limits(time_limit_s: f64) -> Limits {
    Limits {
        seconds: time_limit_s,
        memory_bytes: STEP_MEMORY,
    }
}

pub(crate) fn versions(environment: &Environment) -> std::collections::BTreeMap<String, String> {
    ["torch", "jax", "jaxlib", "libtpu"]
        .into_iter()
        .filter_map(|name| Some((name.to_owned(), environment.installed(name)?)))
        .collect()
}

/// The generations of `--target`; all of them where none is named.
pub(crate) fn read_targets(names: &[String]) -> Result<Vec<Target>, RuntimeError> {
    if names.is_empty() {
        return Ok(Target::ALL.to_vec());
    }
    let mut targets = Vec::new();
    for name in names {
        let target = name.parse().map_err(|problem| RuntimeError::Option {
            option: "--target",
            problem,
            hint: None,
        })?;
        if !targets.contains(&target) {
            targets.push(target);
        }
    }
    Ok(targets)
}

fn check_options(request: &CheckRequest) -> Result<(), RuntimeError> {
    let refuse = |option, problem| {
        Err(RuntimeError::Option {
            option,
            problem,
            hint: None,
        })
    };
    if !(request.time_limit_s >= 1.0 && request.time_limit_s <= 86_400.0) {
        return refuse(
            "--time-limit",
            format!("{} s is not between 1 s and a day", request.time_limit_s),
        );
    }
    if let Some(part) = request
        .skip
        .iter()
        .find(|part| !PARTS.contains(&part.as_str()))
    {
        return refuse(
            "--skip",
            format!("`{part}` is not a part of a check ({})", PARTS.join(", ")),
        );
    }
    for dtype in &request.dtypes {
        Dtype::by_name(dtype)?;
    }
    Ok(())
}

/// The build for TPUs, else the one for CPUs.
pub(crate) fn obtain_build(
    registry: &Registry,
    reference: &KernelRef,
    text: &str,
) -> Result<(VerifiedKernel, CheckedKernel), RuntimeError> {
    let (resolved, verified) = obtain(registry, reference, DeviceType::Tpu, false)
        .or_else(|error| obtain(registry, reference, DeviceType::Cpu, false).map_err(|_| error))?;
    let described = CheckedKernel {
        reference: text.to_owned(),
        repo: resolved.repository.as_ref().map(ToString::to_string),
        commit: resolved.commit.as_ref().map(ToString::to_string),
        variant: resolved.variant,
    };
    Ok((verified, described))
}

/// The op and symbol that the call names; `None` where every op is meant.
fn wanted_op(
    request: &CheckRequest,
    reference: &KernelRef,
    registry: &Registry,
) -> Result<Option<(OpName, Option<String>)>, RuntimeError> {
    let symbol = reference.symbol.clone();
    let index = registry.index()?;
    let named = match &request.op {
        Some(op) => Some(read_op(op)?),
        None => match &symbol {
            None => return Ok(None),
            Some(symbol) => OpName::ALL
                .iter()
                .copied()
                .find(|op| {
                    index
                        .op_entry(reference, *op)
                        .is_some_and(|e| e.symbol == *symbol)
                })
                .or_else(|| read_op(symbol.trim_start_matches("layers.")).ok()),
        },
    };
    match named {
        Some(op) => {
            let entry = index.op_entry(reference, op);
            let symbol = symbol.or_else(|| entry.map(|entry| entry.symbol.clone()));
            // The usual name is looked up in all its spellings.
            Ok(Some((op, symbol.filter(|symbol| symbol != op.as_str()))))
        }
        None => Err(RuntimeError::Option {
            option: "--op",
            problem: format!(
                "is needed: `{}` does not say which op it computes",
                symbol.unwrap_or_default()
            ),
            hint: Some(format!("give one of {}", op_names())),
        }),
    }
}

/// An op by its own name or by that of reports.
pub(crate) fn read_op(name: &str) -> Result<OpName, RuntimeError> {
    match name {
        "mlp" => Ok(OpName::SwiGluMlp),
        "rms_norm" => Ok(OpName::RmsNorm),
        "rotary" => Ok(OpName::RotaryPosEmb),
        other => other
            .parse()
            .map_err(|error: kernel_spec::Error| RuntimeError::Option {
                option: "--op",
                problem: error.to_string(),
                hint: error.hint(),
            }),
    }
}

fn op_names() -> String {
    let names: Vec<&str> = OpName::ALL.iter().map(|op| op.as_str()).collect();
    names.join(", ")
}

type Found = Result<(Signature, Option<Finding>), Box<Finding>>;

/// Loads the kernel and asks which ops it offers; a kernel that cannot say so is a finding.
fn offered(
    server: &mut CheckServer,
    wanted: Option<&(OpName, Option<String>)>,
    limit_s: f64,
    events: &Events,
) -> Result<Found, RuntimeError> {
    let site = wanted.map_or_else(Site::default, |(op, _)| Site::of(&op));
    let job = Job::Signature {
        op: wanted.map(|(op, _)| *op),
        symbol: wanted.and_then(|(_, symbol)| symbol.clone()),
    };
    events.progress("loading the kernel", 0, 0);
    server.submit(&job)?;
    let answer = loop {
        if crate::interface::interrupted().load(std::sync::atomic::Ordering::Relaxed) {
            return Err(BridgeError::Interrupted.into());
        }
        if let Some((_, answer)) = server.next(Duration::from_millis(100))? {
            break answer;
        }
    };
    Ok(match answer {
        Answer::Done(value, account) => match serde_json::from_value::<Signature>(value) {
            Ok(signature) if signature.ops.is_empty() => {
                let there = match signature.callables.as_slice() {
                    [] => "it has no public functions".to_owned(),
                    names => format!("it has {}", names.join(", ")),
                };
                Err(Box::new(Finding {
                    hint: Some(format!(
                        "name the function with REF:NAME and the op that it computes with --op ({})",
                        op_names()
                    )),
                    ..site.finding(
                        Severity::Error,
                        "no-op",
                        format!("the kernel offers no op under its usual name; {there}"),
                    )
                }))
            }
            Ok(signature) => Ok((signature, findings::printed(&site, &account))),
            Err(error) => Err(Box::new(site.finding(
                Severity::Error,
                "internal",
                error.to_string(),
            ))),
        },
        Answer::Raised(exception, _) => Err(Box::new(findings::raised(&site, "load", &exception))),
        Answer::Ended { how, said, .. } => Err(Box::new(findings::ended(
            &site,
            "loading the kernel",
            &how,
            &said,
            limit_s,
        ))),
        Answer::Part(_) => Err(Box::new(site.finding(
            Severity::Error,
            "internal",
            "the child process answered out of turn",
        ))),
    })
}

/// What is checked of each op: shapes and dtypes.
fn subjects(
    request: &CheckRequest,
    reference: &KernelRef,
    registry: &Registry,
    signature: &Signature,
    model: Option<&ModelConfig>,
) -> Result<Vec<Subject>, RuntimeError> {
    if !request.shapes.is_empty() && signature.ops.len() > 1 {
        let names: Vec<&str> = signature
            .ops
            .iter()
            .map(|offered| offered.op.as_str())
            .collect();
        return Err(RuntimeError::Option {
            option: "--shape",
            problem: format!(
                "the kernel offers several ops ({}), whose sizes differ",
                names.join(", ")
            ),
            hint: Some("choose one with --op".to_owned()),
        });
    }
    let index = registry.index()?;
    let subject = |offered: &Offered| -> Result<Subject, RuntimeError> {
        let constraints = index
            .op_entry(reference, offered.op)
            .map(|entry| entry.constraints.clone())
            .unwrap_or_default();
        let named: Vec<String> = request
            .dtypes
            .iter()
            .map(|name| Ok(Dtype::by_name(name)?.name().to_owned()))
            .collect::<Result<_, RuntimeError>>()?;
        let from_index = || {
            constraints
                .dtypes
                .iter()
                .flatten()
                .filter_map(|dtype| spelling(*dtype))
                .collect::<Vec<_>>()
        };
        let promised = !named.is_empty() || constraints.dtypes.is_some();
        let dtypes = match (named, from_index()) {
            (named, _) if !named.is_empty() => named,
            (_, from_index) if !from_index.is_empty() => from_index,
            _ => vec!["float32".to_owned(), "bfloat16".to_owned()],
        };
        let built_in = model
            .and_then(|config| Some(config.dtype?.name().to_owned()))
            .filter(|name| dtypes.contains(name))
            .or_else(|| dtypes.iter().find(|name| *name == "bfloat16").cloned())
            .unwrap_or_else(|| dtypes[0].clone());
        Ok(Subject {
            offered: offered.clone(),
            shapes: plan::shapes(offered.op, &request.shapes, model)?,
            dtypes,
            promised,
            built_in,
        })
    };
    signature.ops.iter().map(subject).collect()
}

fn spelling(dtype: DType) -> Option<String> {
    Dtype::by_name(dtype.as_str())
        .ok()
        .map(|dtype| dtype.name().to_owned())
}

/// All steps: builds first, since they take longest.
fn jobs(
    request: &CheckRequest,
    subjects: &[Subject],
    targets: &[Target],
    rows: &[Row],
) -> Vec<(Key, Job)> {
    let does = |part: &str| !request.skip.iter().any(|skipped| skipped == part);
    let mut jobs = Vec::new();
    for (number, subject) in subjects.iter().enumerate() {
        if does("parity") {
            let job = Job::Parity {
                op: subject.offered.op,
                symbol: Some(subject.offered.symbol.clone()),
                cases: subject.cases(),
            };
            jobs.push((Key::Parity(number), job));
        }
        if does("races") {
            // Two cores share a grid on v4 and v5p.
            let shared = [Target::V4, Target::V5p]
                .iter()
                .any(|target| targets.contains(target));
            for cores in if shared { &[1, 2][..] } else { &[1] } {
                let job = Job::Races {
                    op: subject.offered.op,
                    symbol: Some(subject.offered.symbol.clone()),
                    sizes: subject.race_sizes(),
                    dtype: subject.dtypes[0].clone(),
                    cores: *cores,
                };
                jobs.push((Key::Races(number, *cores), job));
            }
        }
    }
    if does("targets") {
        for (number, row) in rows.iter().enumerate() {
            for arm in [BuildArm::Kernel, BuildArm::Default] {
                jobs.push((Key::Build(number, arm), Builder::job(row, arm)));
            }
        }
    }
    jobs
}

/// The shape of an op at which a build or a race check is made.
pub(crate) fn sizes_of(shape: &OpShape) -> plan::Sizes {
    plan::sizes(shape)
}
