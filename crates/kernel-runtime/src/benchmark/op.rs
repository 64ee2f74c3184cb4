//! One op at several shapes.

use std::time::Instant;

use kernel_bench::correctness;
use kernel_bench::measure::Calls;
use kernel_bench::workload::{OpCase, OpKind, OpShape};
use kernel_model::Dtype;
use kernel_report::Correctness;
use kernel_report::record::{Comparison, Level, Row};

use super::Run;
use super::arm::{Arm, arm};
use super::watched::{interpreted_compiles, watched};
use crate::failure::RuntimeError;

/// Seeds of the inputs that arms are compared on before they are timed.
const SEEDS: [u64; 3] = [1, 2, 3];

/// Compares the arms of the request on every shape.
pub(super) fn compare(
    run: &Run<'_>,
    kind: OpKind,
    shapes: &[OpShape],
) -> Result<Comparison, RuntimeError> {
    let dtype = run
        .request
        .dtype
        .as_deref()
        .map_or(Ok(Dtype::Float32), Dtype::by_name)?;
    let (a, a_record) = arm(run, &run.request.a, kind)?;
    let (b, b_record) = arm(run, &run.request.b, kind)?;
    let _guard = tch::no_grad_guard();
    let rows = Run::rows(shapes.len(), |index| {
        row(run, kind, &shapes[index], dtype, (&a, &b))
    })?;
    Ok(run.finish(
        (Level::Op, Some(dtype)),
        (a_record, b_record),
        (rows, shapes.len()),
    ))
}

fn row(
    run: &Run<'_>,
    kind: OpKind,
    shape: &OpShape,
    dtype: Dtype,
    (a, b): (&Arm, &Arm),
) -> Result<Row, RuntimeError> {
    let request = run.request;
    let workload = shape.to_string();
    run.events.progress(&format!("checking {workload}"), 0, 0);
    let interpreted_before = interpreted_compiles()?;
    let mut comparisons = Vec::new();
    let mut first_calls = None;
    for seed in SEEDS {
        let case = OpCase::random(shape, dtype.kind(), seed.wrapping_add(request.seed))?;
        let (of_a, of_b) = (a.subject(kind, &case)?, b.subject(kind, &case)?);
        let started = Instant::now();
        let expected = case.run(&of_a)?;
        let time_a = started.elapsed().as_secs_f64();
        let started = Instant::now();
        let got = case.run(&of_b)?;
        first_calls.get_or_insert((time_a, started.elapsed().as_secs_f64()));
        let (Some(expected), Some(got)) = (expected, got) else {
            continue;
        };
        for (expected, got) in expected.iter().zip(&got) {
            comparisons.push(correctness::compare(expected, got)?);
        }
    }
    let mut row = Row::new(workload, Correctness::worst(&comparisons));
    row.work = Some(shape.work(dtype.kind()));
    if !row.correctness.ok {
        return Ok(row.untimed("the arms do not agree, so no time is shown"));
    }
    row.functional = interpreted_compiles()? > interpreted_before;
    row.limits = Some(run.limits(dtype, row.work)?);
    let case = OpCase::random(shape, dtype.kind(), request.seed)?;
    let (of_a, of_b) = (a.subject(kind, &case)?, b.subject(kind, &case)?);
    let flusher = run.flusher.as_ref();
    watched(
        run,
        row,
        first_calls.unwrap_or_default(),
        &mut Calls::new(|| case.run(&of_a).map(drop), flusher),
        &mut Calls::new(|| case.run(&of_b).map(drop), flusher),
    )
}
