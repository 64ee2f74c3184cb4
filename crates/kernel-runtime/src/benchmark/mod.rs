//! `bench ab`: two arms on the same inputs, compared for correctness first and time second.

mod apart;
mod arm;
mod compare;
mod layer;
mod model;
mod op;
mod script;
mod side;
mod task;
mod watched;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use kernel_bench::cache::Flusher;
use kernel_bench::limits;
use kernel_bench::measure::{Budget, overhead};
use kernel_model::Dtype;
use kernel_report::record::{
    About, ArmRecord, CacheState, Comparison, Level, Limits, MachineRecord, Method, Row, Work,
};
use kernel_spec::protocol::{BenchmarkRequest, Workload};

use crate::Events;
use crate::failure::RuntimeError;
use crate::generate::set_threads;
use task::Task;

/// Name of the arm that is no kernel.
const DEFAULT: &str = "default";
/// Name of the arm that is a model with the kernels of its config.
const CONFIG: &str = "config";
/// Time for warming up each arm of a row.
const WARM_UP: Duration = Duration::from_millis(200);
/// Prompt length at which a model's ops are compared.
const MODEL_TOKENS: i64 = 256;
/// Share of the budget for an arm in interpret mode: enough to show that it works.
const FUNCTIONAL: f64 = 0.1;

/// Runs the request.
///
/// # Errors
/// Options that do not go together, kernels that cannot be had, ops that fail. An arm that is wrong
/// is a row without a timing, not an error.
pub fn run(request: &BenchmarkRequest, events: &Events) -> Result<Comparison, RuntimeError> {
    check(request)?;
    set_threads(request.threads)?;
    let run = Run::new(request, events);
    if let Workload::Script { scripts } = &request.workload {
        return script::compare(&run, scripts);
    }
    let task = Task::of(&request.workload, request.dtype.as_deref())?;
    compare::compare(&run, &task)
}

/// Is one arm of a comparison, for the process at the other end of standard input, until that has no
/// further question.
///
/// # Errors
/// Where standard input is no such connection. What fails in the arm is an answer.
pub fn serve_arm() -> Result<(), RuntimeError> {
    apart::serve()
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

/// What all rows of a request share.
struct Run<'a> {
    request: &'a BenchmarkRequest,
    events: &'a Events,
    /// The machine as it was before anything was measured.
    machine: MachineRecord,
    flusher: Option<RefCell<Flusher>>,
    /// Operations a second that this machine can do, once that was asked.
    flops_per_s: Cell<Option<f64>>,
    /// What processes of arms have told: each loads the same, and says so.
    told: RefCell<BTreeSet<String>>,
}

impl<'a> Run<'a> {
    fn new(request: &'a BenchmarkRequest, events: &'a Events) -> Self {
        let threads = i64::from(tch::get_num_threads());
        let machine = MachineRecord::read("cpu", threads, BTreeMap::new());
        let flusher = request
            .flush_caches
            .then(|| RefCell::new(Flusher::new(machine.cache_bytes)));
        Self {
            request,
            events,
            machine,
            flusher,
            flops_per_s: Cell::new(None),
            told: RefCell::default(),
        }
    }

    /// What this machine can do with work of this size.
    fn limits(&self, dtype: Dtype, work: Option<Work>) -> Result<Limits, RuntimeError> {
        let flops_per_s = match self.flops_per_s.get() {
            Some(known) => known,
            None => limits::flops_per_s(dtype.kind())?,
        };
        self.flops_per_s.set(Some(flops_per_s));
        let bytes = match (self.cache(), work) {
            (CacheState::Hot, Some(work)) => work.bytes as u64,
            _ => limits::beyond_caches(self.machine.cache_bytes),
        };
        Ok(limits::measure(flops_per_s, bytes)?)
    }

    fn budget(&self, functional: bool) -> Budget {
        let share = if functional { FUNCTIONAL } else { 1.0 };
        Budget {
            measuring: Duration::from_secs_f64(self.request.budget_s * share),
            warm_up: WARM_UP,
            seed: self.request.seed,
            cache: self.cache(),
            batches: None,
        }
    }

    fn cache(&self) -> CacheState {
        if self.flusher.is_some() {
            CacheState::Flushed
        } else {
            CacheState::Hot
        }
    }

    /// The record of the rows.
    fn finish(&self, level: Level, arms: Arms, (rows, all_rows): (Vec<Row>, bool)) -> Comparison {
        let mut machine = self.machine.clone();
        machine.versions = arms.versions;
        machine.versions.insert(
            "kernel-cli".to_owned(),
            env!("CARGO_PKG_VERSION").to_owned(),
        );
        let method = Method {
            budget_s: self.request.budget_s,
            warm_up_s: WARM_UP.as_secs_f64(),
            confidence: self.request.confidence,
            seed: self.request.seed,
            cache: self.cache(),
            processes: arms.processes,
            harness_overhead_s: overhead(),
        };
        let about = About {
            level,
            dtype: arms
                .dtype
                .map_or("as the script says", Dtype::name)
                .to_owned(),
            a: arms.a,
            b: arms.b,
            method,
            environment: machine.ended(),
            all_rows,
        };
        Comparison::new(about, rows)
    }
}

/// What is known of two arms in the end.
struct Arms {
    a: ArmRecord,
    b: ArmRecord,
    /// Without one, each workload has its own.
    dtype: Option<Dtype>,
    /// Versions by package, of all processes.
    versions: BTreeMap<String, String>,
    processes: u8,
}
