//! `bench ab --target`: two arms compared by what the compiler for TPUs says of them.

use std::collections::HashMap;

use kernel_bench::workload::{OpKind, OpShape};
use kernel_bridge::check::estimate::ratio;
use kernel_bridge::check::{Answer, BuildArm, CheckServer, Job, ParityPart};
use kernel_bridge::{BridgeError, Environment};
use kernel_model::{Dtype, ModelConfig};
use kernel_report::estimate::{EstimatedComparison, EstimatedCorrectness, EstimatedRow};
use kernel_report::record::ArmRecord;
use kernel_spec::protocol::{BenchmarkResponse, EstimateRequest, Workload};
use kernel_spec::{KernelRef, OpName};

use crate::Events;
use crate::check::builds::{self, Builder, Outcome, Row};
use crate::check::runner::{self, Handler};
use crate::check::{self, plan};
use crate::failure::RuntimeError;
use crate::session;

/// Name of the arm that is no kernel.
const DEFAULT: &str = "default";

/// Runs the request.
///
/// # Errors
/// Options that do not go together, kernels that cannot be had, an environment without libtpu.
pub fn run(request: &EstimateRequest, events: &Events) -> Result<BenchmarkResponse, RuntimeError> {
    let comparison = &request.comparison;
    let targets = check::read_targets(&request.targets)?;
    let (op, shapes) = workload(&comparison.workload)?;
    let dtype = comparison
        .dtype
        .as_deref()
        .map_or(Ok(Dtype::BFloat16), Dtype::by_name)?;
    let rows: Vec<Row> = shapes
        .iter()
        .flat_map(|shape| {
            targets.iter().map(|target| Row {
                op,
                symbol: None,
                sizes: check::sizes_of(shape),
                dtype: dtype.name().to_owned(),
                target: *target,
            })
        })
        .collect();
    let a = arm(&comparison.a, op, &shapes, &rows, request, events)?;
    let b = arm(&comparison.b, op, &shapes, &rows, request, events)?;
    let mut samples = Vec::new();
    for (number, row) in rows.iter().enumerate() {
        let (Some(of_a), Some(of_b)) = (a.outcomes.get(&number), b.outcomes.get(&number)) else {
            continue;
        };
        let (floor, roofline) = builds::floor(row)?;
        let (entry_a, figure_a) = builds::entry(of_a, &floor);
        let (entry_b, figure_b) = builds::entry(of_b, &floor);
        let compared = ratio(&figure_a, &figure_b);
        samples.push(EstimatedRow {
            workload: format!("{op} {} {}", plan::describe(op, &row.sizes), row.dtype),
            target: row.target.to_string(),
            a: entry_a,
            b: entry_b,
            ratio: compared.as_ref().ok().copied(),
            reason: compared.err(),
            roofline,
        });
    }
    let problems = [a.problems, b.problems].concat();
    let correctness = EstimatedCorrectness {
        ok: problems.is_empty(),
        cases: a.cases + b.cases,
        problems,
    };
    let environment = Environment::discover().map_err(BridgeError::from)?;
    let record = EstimatedComparison::new(
        a.record,
        b.record,
        correctness,
        samples,
        check::versions(&environment),
    );
    Ok(BenchmarkResponse {
        agree: record.correctness.ok,
        record: serde_json::to_value(record).map_err(RuntimeError::Response)?,
    })
}

fn workload(workload: &Workload) -> Result<(OpName, Vec<OpShape>), RuntimeError> {
    Ok(match workload {
        Workload::Op { op, shapes } => {
            let op = check::read_op(op)?;
            (op, plan::shapes(op, shapes, None)?)
        }
        Workload::OpOfModel { op, model } => {
            let op = check::read_op(op)?;
            let config = ModelConfig::from_directory(model)?;
            (
                op,
                OpShape::of_model(OpKind::of(op), &config, plan::MODEL_TOKENS)?,
            )
        }
        _ => {
            return Err(RuntimeError::Option {
                option: "--target",
                problem: "estimates are of single ops, not of layers, scripts or whole models"
                    .to_owned(),
                hint: Some("name an op with `--op`; `--model` then gives its shapes".to_owned()),
            });
        }
    })
}

/// What the compiler says of one arm on all rows.
struct Arm<'a> {
    record: ArmRecord,
    rows: &'a [Row],
    kind: BuildArm,
    builder: Builder,
    outcomes: HashMap<usize, Outcome>,
    cases: usize,
    problems: Vec<String>,
}

fn arm<'a>(
    name: &str,
    op: OpName,
    shapes: &[OpShape],
    rows: &'a [Row],
    request: &EstimateRequest,
    events: &Events,
) -> Result<Arm<'a>, RuntimeError> {
    let environment = Environment::discover().map_err(BridgeError::from)?;
    let comparison = &request.comparison;
    let mut record = ArmRecord {
        name: name.to_owned(),
        execution: "TPU, XLA's own code (estimated)".to_owned(),
        ..ArmRecord::default()
    };
    let mut jobs = Vec::new();
    let (kind, mut server, symbol) = if name == DEFAULT {
        events.progress("starting Python", 0, 0);
        let server = CheckServer::start(&environment, None, check::limits(request.time_limit_s))?;
        (BuildArm::Default, server, None)
    } else {
        let reference: KernelRef =
            name.parse()
                .map_err(|error: kernel_spec::Error| RuntimeError::Option {
                    option: "A or B",
                    problem: error.to_string(),
                    hint: Some("give a kernel reference, or `default`".to_owned()),
                })?;
        let registry = session::registry(&comparison.registry, events)?;
        let (kernel, described) = check::obtain_build(&registry, &reference, name)?;
        record.repo = described.repo;
        record.commit = described.commit;
        "TPU, kernel (estimated)".clone_into(&mut record.execution);
        record.variant = Some(described.variant);
        let entry = registry.index()?.op_entry(&reference, op);
        let symbol = reference
            .symbol
            .clone()
            .or_else(|| entry.map(|entry| entry.symbol.clone()))
            .filter(|symbol| symbol != op.as_str());
        events.progress("starting Python", 0, 0);
        let server = check::start(&environment, &kernel, request.time_limit_s)?;
        let dtypes = [rows
            .first()
            .map(|row| row.dtype.clone())
            .unwrap_or_default()];
        let job = Job::Parity {
            op,
            symbol: symbol.clone(),
            cases: plan::cases(op, shapes, &dtypes, false),
        };
        jobs.push((Key::Parity, job));
        (BuildArm::Kernel, server, symbol)
    };
    let named = |row: &Row| Row {
        symbol: symbol.clone(),
        ..row.clone()
    };
    jobs.extend(
        rows.iter()
            .enumerate()
            .map(|(number, row)| (Key::Build(number), Builder::job(&named(row), kind))),
    );
    let mut arm = Arm {
        record,
        rows,
        kind,
        builder: Builder::default(),
        outcomes: HashMap::new(),
        cases: 0,
        problems: Vec::new(),
    };
    let stage = format!("compiling {name}");
    runner::run(
        &mut server,
        jobs,
        check::processors(),
        &mut arm,
        events,
        &stage,
    )?;
    Ok(arm)
}

/// What a job is about.
#[derive(Debug, Clone, Copy)]
enum Key {
    Parity,
    Build(usize),
}

impl Handler for Arm<'_> {
    type Key = Key;

    fn prepare(&mut self, key: &Key, job: &mut Job) {
        if let Key::Build(number) = key {
            self.builder
                .prepare(*number, &self.rows[*number], self.kind, job);
        }
    }

    fn answer(&mut self, key: &Key, answer: Answer) -> Vec<(Key, Job)> {
        match key {
            Key::Build(number) => {
                match self
                    .builder
                    .answer(*number, &self.rows[*number], self.kind, answer)
                {
                    Ok(Some(outcome)) => {
                        self.outcomes.insert(*number, outcome);
                    }
                    Ok(None) => {}
                    Err(again) => return vec![(*key, *again)],
                }
            }
            Key::Parity => match answer {
                Answer::Part(value) => self.compared(value),
                Answer::Done(..) => {}
                Answer::Raised(exception, _) => {
                    self.problem(&format!("{}: {}", exception.class, exception.message));
                }
                Answer::Ended { how, .. } => {
                    self.problem(&format!("a run on the CPU ended ({how})"));
                }
            },
        }
        Vec::new()
    }
}

impl Arm<'_> {
    fn compared(&mut self, value: serde_json::Value) {
        self.cases += 1;
        match serde_json::from_value::<ParityPart>(value) {
            Ok(part) if part.ok => {}
            Ok(part) => {
                let reason = match (&part.failure, &part.form, &part.explanation) {
                    (Some(exception), ..) => format!("it raised {}", exception.class),
                    (_, Some(form), _) => format!("it {form}"),
                    (.., Some(explanation)) => explanation.clone(),
                    _ => format!("off by {:.1e}", part.error.unwrap_or(f64::NAN)),
                };
                self.problem(&reason);
            }
            Err(error) => self.problem(&error.to_string()),
        }
    }

    fn problem(&mut self, reason: &str) {
        let line = format!("{}: {reason}", self.record.name);
        if !self.problems.contains(&line) {
            self.problems.push(line);
        }
    }
}
