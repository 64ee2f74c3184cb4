//! Builds by the compiler for TPUs: with its cost model where that knows the program, without it else.

use std::collections::{BTreeMap, HashMap};

use kernel_bridge::check::chip::Target;
use kernel_bridge::check::cost::{Cost, Floor};
use kernel_bridge::check::estimate::{Estimate, estimate};
use kernel_bridge::check::{Answer, Build, BuildArm, Exception, Job, Work};
use kernel_model::Dtype;
use kernel_spec::OpName;
use kernel_spec::protocol::check::{BuildEntry, Roofline};

use super::hint::{Diagnosis, abort_reason, brief, diagnose};
use super::plan::Sizes;
use crate::failure::RuntimeError;

/// One shape on one target.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    pub(crate) op: OpName,
    pub(crate) symbol: Option<String>,
    pub(crate) sizes: Sizes,
    pub(crate) dtype: String,
    pub(crate) target: Target,
}

/// A build that is over.
#[derive(Debug, Clone)]
pub(crate) enum Outcome {
    /// It compiles; `unmodelled` says why the cost model did not run.
    Built {
        build: Build,
        unmodelled: Option<String>,
        seconds: f64,
    },
    /// It does not.
    Failed {
        diagnosis: Diagnosis,
        message: String,
        place: Option<String>,
        detail: String,
        seconds: f64,
    },
}

/// Asks for builds, and asks again without the cost model where that ended the process.
#[derive(Debug, Default)]
pub(crate) struct Builder {
    /// Why the cost model did not run, by row and arm.
    unmodelled: HashMap<(usize, BuildArm), String>,
    /// Programs whose operations the cost model knows on no target.
    hopeless: HashMap<(OpName, Sizes, String, BuildArm), String>,
}

impl Builder {
    /// The job of an arm.
    pub(crate) fn job(row: &Row, arm: BuildArm) -> Job {
        Job::Build(Work {
            op: row.op,
            symbol: row.symbol.clone(),
            arm,
            sizes: row.sizes.clone(),
            dtype: row.dtype.clone(),
            target: row.target.name().to_owned(),
            profile: row.target.has_cost_model(),
        })
    }

    /// Leaves out the cost model where an earlier answer said that it does not know the program.
    pub(crate) fn prepare(&mut self, number: usize, row: &Row, arm: BuildArm, job: &mut Job) {
        let Job::Build(work) = job else { return };
        if !row.target.has_cost_model() {
            let reason = format!("the compiler has no cost model for {}", row.target);
            self.unmodelled.insert((number, arm), reason);
        } else if work.profile
            && let Some(reason) = self.hopeless.get(&program(row, arm))
        {
            work.profile = false;
            self.unmodelled.insert((number, arm), reason.clone());
        }
    }

    /// Takes the answer of a build: what came of it, or the job that is to be asked instead.
    pub(crate) fn answer(
        &mut self,
        number: usize,
        row: &Row,
        arm: BuildArm,
        answer: Answer,
    ) -> Result<Option<Outcome>, Box<Job>> {
        let modelled = row.target.has_cost_model() && !self.unmodelled.contains_key(&(number, arm));
        let unmodelled = self.unmodelled.get(&(number, arm)).cloned();
        Ok(match answer {
            Answer::Part(_) => None,
            Answer::Done(value, account) => Some(match serde_json::from_value::<Build>(value) {
                Ok(build) => Outcome::Built {
                    build,
                    unmodelled,
                    seconds: account.seconds,
                },
                Err(error) => failed("internal", &error.to_string(), account.seconds),
            }),
            Answer::Raised(exception, account) => {
                Some(raised(&exception, row.target, account.seconds))
            }
            Answer::Ended { how, said, .. } if modelled => {
                // The cost model ends the process on what it does not know; the compiler alone may not.
                let reason = if how.starts_with("signal") {
                    let reason = abort_reason(&said);
                    format!("the cost model does not know it ({})", model_words(&reason))
                } else {
                    format!("the cost model ran into the {how}")
                };
                if said.contains("dma-general") {
                    self.hopeless.insert(program(row, arm), reason.clone());
                }
                self.unmodelled.insert((number, arm), reason);
                let mut again = Self::job(row, arm);
                if let Job::Build(work) = &mut again {
                    work.profile = false;
                }
                return Err(Box::new(again));
            }
            Answer::Ended { how, said, account } => Some(ended(&how, said, account.seconds)),
        })
    }
}

fn program(row: &Row, arm: BuildArm) -> (OpName, Sizes, String, BuildArm) {
    (row.op, row.sizes.clone(), row.dtype.clone(), arm)
}

/// The end of the cost model's complaint, which begins with the operation's name.
fn model_words(reason: &str) -> &str {
    reason
        .rsplit_once("INVALID_ARGUMENT: ")
        .map_or(reason, |(_, words)| words)
}

fn raised(exception: &Exception, target: Target, seconds: f64) -> Outcome {
    Outcome::Failed {
        diagnosis: diagnose(&exception.class, &exception.message, target),
        message: format!("{}: {}", exception.class, brief(&exception.message)),
        place: exception.place.clone(),
        detail: exception.traceback.clone(),
        seconds,
    }
}

fn ended(how: &str, said: String, seconds: f64) -> Outcome {
    let (kind, message, hint) = match how {
        "time limit" => (
            "time-limit",
            format!("the compiler was not done after {seconds:.0} s"),
            Some("raise `--time-limit`, or look for a loop that Python unrolls while it traces"),
        ),
        "memory limit" => (
            "memory-limit",
            "the compiler took more memory than a step may".to_owned(),
            Some("check smaller shapes"),
        ),
        other => (
            "compiler-abort",
            format!(
                "the compiler ended its process ({other}): {}",
                abort_reason(&said)
            ),
            Some(
                "a compiler must not do that: report it to libtpu with the kernel; a change of block shapes often avoids it",
            ),
        ),
    };
    Outcome::Failed {
        diagnosis: Diagnosis {
            kind,
            hint: hint.map(str::to_owned),
        },
        message,
        place: None,
        detail: said,
        seconds,
    }
}

fn failed(kind: &'static str, message: &str, seconds: f64) -> Outcome {
    Outcome::Failed {
        diagnosis: Diagnosis { kind, hint: None },
        message: message.to_owned(),
        place: None,
        detail: String::new(),
        seconds,
    }
}

/// The least that a row needs on its chip.
pub(crate) fn floor(row: &Row) -> Result<(Floor, Roofline), RuntimeError> {
    let width = Dtype::by_name(&row.dtype)?.bytes();
    let cost = Cost::of(row.op, &row.sizes, width);
    let chip = row.target.chip();
    let floor = cost.floor(&chip);
    let roofline = Roofline {
        flops: cost.flops,
        bytes: cost.bytes,
        arithmetic_cycles: floor.arithmetic,
        memory_cycles: floor.memory,
        bound: floor.bound().to_owned(),
        peak_flops_per_second: chip.flops_per_second,
        peak_bytes_per_second: chip.hbm_bytes_per_second,
        clock_hz: chip.clock(),
    };
    Ok((floor, roofline))
}

/// What a build gave, and its figure judged.
pub(crate) fn entry(outcome: &Outcome, floor: &Floor) -> (BuildEntry, Estimate) {
    match outcome {
        Outcome::Failed {
            message, seconds, ..
        } => {
            let entry = BuildEntry {
                error: Some(message.clone()),
                seconds: *seconds,
                ..BuildEntry::default()
            };
            let none = Estimate {
                modelled: None,
                cycles: None,
                method: None,
                reason: Some("it does not compile".to_owned()),
            };
            (entry, none)
        }
        Outcome::Built {
            build,
            unmodelled,
            seconds,
        } => {
            let figure = estimate(build, floor, unmodelled.as_deref());
            let operations = || build.launches.iter().flat_map(|launch| &launch.operations);
            let entry = BuildEntry {
                compiles: true,
                error: None,
                estimated_cycles: figure.cycles,
                modelled_cycles: figure.modelled,
                method: figure.method.map(|method| method.name().to_owned()),
                method_reason: figure.reason.clone(),
                of_roofline: figure.cycles.map(|cycles| floor.cycles() / cycles as f64),
                bundles: Some(operations().map(|operation| operation.bundles).sum()),
                spills: Some(used(build, "VSTORE:SPILL")),
                utilisation: utilisation(build),
                vmem_bytes: operations().map(|operation| operation.vmem_bytes).max(),
                temp_bytes: Some(build.launches.iter().map(|launch| launch.temp_bytes).sum()),
                code_bytes: Some(build.launches.iter().map(|launch| launch.code_bytes).sum()),
                torch_ops: build.torch_ops.clone(),
                seconds: *seconds,
            };
            (entry, figure)
        }
    }
}

fn used(build: &Build, unit: &str) -> u64 {
    build
        .launches
        .iter()
        .flat_map(|launch| &launch.operations)
        .filter_map(|operation| operation.units.get(unit))
        .map(|unit| unit.used)
        .sum()
}

/// Share of the slots that each unit uses, over the bundles of all operations.
fn utilisation(build: &Build) -> BTreeMap<String, f64> {
    let mut sums: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for operation in build.launches.iter().flat_map(|launch| &launch.operations) {
        for (name, unit) in &operation.units {
            let sum = sums.entry(name).or_default();
            sum.0 += unit.used;
            sum.1 += unit.capacity * operation.bundles;
        }
    }
    sums.into_iter()
        // Fills and spills are uses of the load and store slots that are counted already.
        .filter(|(name, (_, slots))| !name.contains(':') && *slots > 0)
        .map(|(name, (used, slots))| (name.to_owned(), used as f64 / slots as f64))
        .collect()
}

#[cfg(test)]
mod tests {
    use kernel_bridge::check::{Account, Launch, Operation, Unit};

    use super::*;

    fn row(target: Target) -> Row {
        Row {
            op: OpName::RmsNorm,
            symbol: None,
            sizes: [("R".to_owned(), 8), ("H".to_owned(), 128)].into(),
            dtype: "bfloat16".to_owned(),
            target,
        }
    }

    fn abort() -> Answer {
        Answer::Ended {
            how: "signal 6".to_owned(),
            said: "F1 llo_dumper.cc:1778] Static LLO profiling of k failed: INVALID_ARGUMENT: dma-general".to_owned(),
            account: Account::default(),
        }
    }

    fn profiles(job: &Job) -> bool {
        matches!(job, Job::Build(work) if work.profile)
    }

    #[test]
    fn an_abort_of_the_cost_model_leads_to_a_build_without_it_and_is_remembered() {
        let mut builder = Builder::default();
        let (v5e, v6e) = (row(Target::V5e), row(Target::V6e));
        let mut job = Builder::job(&v5e, BuildArm::Kernel);
        builder.prepare(0, &v5e, BuildArm::Kernel, &mut job);
        assert!(profiles(&job));
        let again = builder
            .answer(0, &v5e, BuildArm::Kernel, abort())
            .unwrap_err();
        assert!(!profiles(&again));
        // The same abort without the cost model is the compiler's own.
        let outcome = builder
            .answer(0, &v5e, BuildArm::Kernel, abort())
            .unwrap()
            .unwrap();
        assert!(
            matches!(outcome, Outcome::Failed { diagnosis, .. } if diagnosis.kind == "compiler-abort")
        );
        let mut other = Builder::job(&v6e, BuildArm::Kernel);
        builder.prepare(1, &v6e, BuildArm::Kernel, &mut other);
        assert!(!profiles(&other));
        let mut default = Builder::job(&v6e, BuildArm::Default);
        builder.prepare(2, &v6e, BuildArm::Default, &mut default);
        assert!(profiles(&default));
    }

    #[test]
    fn units_are_summed_over_operations_by_their_slots() {
        let operation = |bundles, used| Operation {
            bundles,
            units: [
                ("VALU".to_owned(), Unit { used, capacity: 4 }),
                (
                    "VSTORE:SPILL".to_owned(),
                    Unit {
                        used: 3,
                        capacity: 1,
                    },
                ),
            ]
            .into(),
            ..Operation::default()
        };
        let launch = Launch {
            operations: vec![operation(10, 20), operation(30, 60)],
            ..Launch::default()
        };
        let build = Build {
            launches: vec![launch],
            torch_ops: Vec::new(),
        };
        assert_eq!(utilisation(&build), [("VALU".to_owned(), 0.5)].into());
        assert_eq!(used(&build, "VSTORE:SPILL"), 6);
    }
}
