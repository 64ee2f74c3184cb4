//! The rows of a comparison: results first, then times.

use std::collections::BTreeMap;

use kernel_report::Correctness;
use kernel_report::record::{Comparison, Row};

use super::side::{Outputs, Sides, Timed};
use super::task::{RowPlan, Task};
use super::watched::watched;
use super::{Arms, Run};
use crate::failure::RuntimeError;

/// Compares two loaded arms on every row of the task.
pub(super) fn compare(
    run: &Run<'_>,
    task: &Task,
    sides: &Sides<'_>,
) -> Result<Comparison, RuntimeError> {
    let inputs = sides.a.borrow_mut().shared_inputs()?;
    sides.a.borrow_mut().take_inputs(&inputs)?;
    sides.b.borrow_mut().take_inputs(&inputs)?;
    drop(inputs);
    let plans = task.rows();
    let rows = Run::rows(plans.len(), |index| {
        row(run, task, sides, (index, &plans[index]))
    })?;
    let (a, b) = (
        sides.a.borrow().about().clone(),
        sides.b.borrow().about().clone(),
    );
    let mut versions: BTreeMap<String, String> = a.versions.clone();
    versions.extend(b.versions);
    let arms = Arms {
        dtype: Some(a.dtype()?),
        a: a.record,
        b: b.record,
        versions,
        processes: if sides.apart { 2 } else { 1 },
    };
    Ok(run.finish(task.level(), arms, (rows, plans.len())))
}

fn row(
    run: &Run<'_>,
    task: &Task,
    sides: &Sides<'_>,
    (index, plan): (usize, &RowPlan),
) -> Result<Row, RuntimeError> {
    run.events
        .progress(&format!("checking {}", plan.name), 0, 0);
    let dtype = sides.a.borrow().about().dtype()?;
    let mut compared = Vec::new();
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
        first_calls.get_or_insert((time_a, time_b));
        compared.extend(task.compare(&expected, &got, dtype)?);
    }
    let mut row = Row::new(plan.name.clone(), Correctness::worst(&compared));
    (row.tokens, row.work) = (plan.tokens, plan.work);
    if !row.correctness.ok {
        return Ok(row.untimed("the arms do not agree, so no time is shown"));
    }
    row.functional = sides.compiles()?.interpreted > 0;
    if plan.work.is_some() {
        row.limits = Some(run.limits(dtype, plan.work)?);
    }
    watched(
        run,
        row,
        first_calls.unwrap_or_default(),
        (&mut Timed(&sides.a), &mut Timed(&sides.b)),
        &|| Ok(sides.compiles()?.all),
    )
}
