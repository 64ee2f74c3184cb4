//! The rows of a comparison: results first, then times, in one set of processes or several.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::Ordering;

use kernel_bench::measure::{self, Budget};
use kernel_report::Correctness;
use kernel_report::record::{Comparison, Row, Samples};

use super::side::{About, Outputs, Sides, Timed};
use super::task::{RowPlan, Task};
use super::watched::watched;
use super::{Arms, Run, apart};
use crate::failure::RuntimeError;
use crate::interface::interrupted;

/// Sets of processes for arms that are apart. One process is a little faster than another on the same code,
/// by 0.6% as seen on a virtual machine; five sets give an interval of 1.2 times such a deviation.
const SETS: usize = 5;

/// Compares the arms of the request on every row of the task.
pub(super) fn compare(run: &Run<'_>, task: &Task) -> Result<Comparison, RuntimeError> {
    let program = run.request.apart.as_deref();
    let sets = if program.is_some() { SETS } else { 1 };
    let plans = task.rows();
    let mut taken: Vec<Taken> = Vec::new();
    let mut about = None;
    let mut complete = true;
    for number in 0..sets {
        let set = Set { number, of: sets };
        let outcome = set.take(run, task, program, (&plans, &mut taken), &mut about);
        let stopped = interrupted().load(Ordering::Relaxed);
        match outcome {
            Ok(()) => {}
            // The stop reaches a kernel in the middle of a call, as an error of the call.
            Err(_) if stopped && !taken.is_empty() => complete = false,
            Err(error) => return Err(error),
        }
        if stopped {
            complete &= number + 1 == sets;
            break;
        }
    }
    let Some((a, b)) = about else {
        return Err(RuntimeError::OutOfTurn("no arm was loaded"));
    };
    complete &= taken.len() == plans.len();
    let mut versions: BTreeMap<String, String> = a.versions.clone();
    versions.extend(b.versions);
    let arms = Arms {
        dtype: Some(a.dtype()?),
        a: a.record,
        b: b.record,
        versions,
        processes: if program.is_some() { 3 } else { 1 },
    };
    for row in &mut taken {
        row.settle(run.request.seed);
    }
    let rows = taken.into_iter().map(|taken| taken.row).collect();
    Ok(run.finish(task.level(), arms, (rows, complete)))
}

/// A row with what was measured so far.
struct Taken {
    row: Row,
    measured: Option<(Samples, usize)>,
}

impl Taken {
    /// Makes the row's statistics of what was measured.
    fn settle(&mut self, seed: u64) {
        if let Some((samples, compiles)) = self.measured.take() {
            self.row = self.row.clone().timed(samples, compiles, seed);
        }
    }
}

/// A set of processes in which the arms are: this one, or one for each.
#[derive(Debug, Clone, Copy)]
struct Set {
    number: usize,
    of: usize,
}

impl Set {
    /// Loads the arms and takes every row. The first set compares results, and finds out what the rows are.
    fn take(
        self,
        run: &Run<'_>,
        task: &Task,
        program: Option<&Path>,
        (plans, taken): (&[RowPlan], &mut Vec<Taken>),
        about: &mut Option<(About, About)>,
    ) -> Result<(), RuntimeError> {
        let sides = match program {
            Some(program) => apart::sides(run, program)?,
            None => task.sides(run)?,
        };
        about.get_or_insert_with(|| {
            let about = |side: &super::side::SharedSide<'_>| side.borrow().about().clone();
            (about(&sides.a), about(&sides.b))
        });
        // Every arm makes them, though A's are taken: processes that did different things before lay out
        // their memory differently, which alone made one 2% slower than another.
        let made = sides
            .all()
            .map(|side| side.borrow_mut().shared_inputs())
            .collect::<Result<Vec<_>, _>>()?;
        for side in sides.all() {
            side.borrow_mut().take_inputs(&made[0])?;
        }
        drop(made);
        for (index, plan) in plans.iter().enumerate() {
            if interrupted().load(Ordering::Relaxed) {
                break;
            }
            let compared = compared(run, task, &sides, (index, plan))?;
            if self.number == 0 {
                taken.push(Taken {
                    row: compared.row,
                    measured: None,
                });
            } else if let (Some(taken), false) = (taken.get_mut(index), compared.row.correctness.ok)
            {
                // What is right in one process and wrong in another is wrong.
                taken.row = compared.row;
                taken.measured = None;
            }
            let Some(taken) = taken.get_mut(index) else {
                break;
            };
            if !taken.row.correctness.ok {
                continue;
            }
            if taken.row.work.is_some() && taken.row.limits.is_none() {
                let dtype = sides.a.borrow().about().dtype()?;
                taken.row.limits = Some(run.limits(dtype, taken.row.work)?);
            }
            let batches = taken
                .measured
                .as_ref()
                .map(|(samples, _)| [samples.batch_a, samples.batch_b]);
            let (mut samples, compiles) = self.timed(run, &sides, &taken.row, batches)?;
            taken.measured = Some(match taken.measured.take() {
                None => {
                    // The loop's own first call comes after the comparison of results, when all is
                    // compiled.
                    (samples.first_call_a, samples.first_call_b) = compared.first_calls;
                    (samples, compiles)
                }
                Some((before, compiles_before)) => {
                    (before.then(&samples), compiles_before + compiles)
                }
            });
            if self.number + 1 == self.of {
                // At once: statistics of many rows would keep somebody waiting who stops the run later.
                taken.settle(run.request.seed);
            }
        }
        Ok(())
    }

    fn timed(
        self,
        run: &Run<'_>,
        sides: &Sides<'_>,
        row: &Row,
        batches: Option<[usize; 2]>,
    ) -> Result<(Samples, usize), RuntimeError> {
        let budget = run.budget(row.functional);
        let budget = Budget {
            measuring: budget.measuring / u32::try_from(self.of).unwrap_or(u32::MAX),
            seed: budget.seed.wrapping_add(self.number as u64),
            batches,
            ..budget
        };
        let stage = if self.of == 1 {
            row.workload.clone()
        } else {
            format!("{} ({} of {})", row.workload, self.number + 1, self.of)
        };
        let mut control = sides.control.as_ref().map(Timed);
        let arms = measure::Arms {
            a: &mut Timed(&sides.a),
            b: &mut Timed(&sides.b),
            control: control.as_mut().map(|control| control as _),
        };
        watched(run, stage, &budget, arms, &|| Ok(sides.compiles()?.all))
    }
}

/// A row whose results were compared, and the seconds of the first call of A and of B.
struct Compared {
    row: Row,
    first_calls: (f64, f64),
}

fn compared(
    run: &Run<'_>,
    task: &Task,
    sides: &Sides<'_>,
    (index, plan): (usize, &RowPlan),
) -> Result<Compared, RuntimeError> {
    run.events
        .progress(&format!("checking {}", plan.name), 0, 0);
    let dtype = sides.a.borrow().about().dtype()?;
    let mut results = Vec::new();
    let mut first_calls = None;
    for seed in plan.seeds {
        let seed = seed.wrapping_add(run.request.seed);
        let Outputs {
            tensors: expected,
            seconds: time_a,
        } = sides.a.borrow_mut().outputs(index, seed)?;
        let Outputs {
            tensors: got,
            seconds: time_b,
        } = sides.b.borrow_mut().outputs(index, seed)?;
        if let Some(control) = &sides.control {
            control.borrow_mut().outputs(index, seed)?;
        }
        first_calls.get_or_insert((time_a, time_b));
        results.extend(task.compare(&expected, &got, dtype)?);
    }
    let mut row = Row::new(plan.name.clone(), Correctness::worst(&results));
    (row.tokens, row.work) = (plan.tokens, plan.work);
    if row.correctness.ok {
        row.functional = sides.compiles()?.interpreted > 0;
    } else {
        row = row.untimed("the arms do not agree, so no time is shown");
    }
    Ok(Compared {
        row,
        first_calls: first_calls.unwrap_or_default(),
    })
}
