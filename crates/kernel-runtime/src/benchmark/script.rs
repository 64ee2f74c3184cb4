//! The benchmark scripts that kernels ship, with our timing: A is the script's reference, B the kernel.

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Instant;

use kernel_bench::correctness;
use kernel_bench::measure::{self, Calls};
use kernel_bridge::ScriptWorkload;
use kernel_report::Correctness;
use kernel_report::record::{ArmRecord, Comparison, Level, Row};

use super::arm::{kernel, reference};
use super::side::Compiles;
use super::watched::watched;
use super::{Arms, Run};
use crate::failure::RuntimeError;
use crate::interface::interrupted;
use crate::session;

/// Seeds, added to the script's own, of the inputs that results are compared on.
const SEEDS: [u64; 3] = [0, 1, 2];

/// Compares the kernel with the reference on every workload of the scripts.
pub(super) fn compare(run: &Run<'_>, scripts: &[PathBuf]) -> Result<Comparison, RuntimeError> {
    let name = &run.request.b;
    let (loaded, b, _) = kernel(run, name, &reference(name)?)?;
    let a = ArmRecord {
        name: run.request.a.clone(),
        execution: "torch, in Python".to_owned(),
        ..ArmRecord::default()
    };
    let mut workloads = Vec::new();
    for path in scripts {
        workloads.extend(loaded.benchmark_script(&read(path)?, &path.display().to_string())?);
    }
    let mut rows = Vec::new();
    for workload in &workloads {
        let stopped = || interrupted().load(Ordering::Relaxed);
        match row(run, workload) {
            Ok(row) => rows.push(row),
            // The stop reaches a kernel in the middle of a call, as an error of the call.
            Err(_) if stopped() && !rows.is_empty() => {}
            Err(error) => return Err(error),
        }
        if stopped() {
            break;
        }
    }
    let complete = rows.len() == workloads.len();
    let arms = Arms {
        a,
        b,
        dtype: None,
        versions: session::versions(),
        processes: 1,
    };
    Ok(run.finish(Level::Script, arms, (rows, complete)))
}

fn read(path: &Path) -> Result<String, RuntimeError> {
    std::fs::read_to_string(path).map_err(|source| RuntimeError::Read {
        path: path.to_owned(),
        source,
    })
}

fn row(run: &Run<'_>, workload: &ScriptWorkload) -> Result<Row, RuntimeError> {
    let name = workload.name().to_owned();
    run.events.progress(&format!("checking {name}"), 0, 0);
    let interpreted_before = Compiles::here()?.interpreted;
    if !workload.has_reference() {
        let row = Row::new(name, Correctness::worst([]));
        return Ok(row.untimed("the script has no reference to compare it with"));
    }
    let mut comparisons = Vec::new();
    let mut first_calls = None;
    for seed in SEEDS {
        workload.prepare(seed.wrapping_add(run.request.seed))?;
        let started = Instant::now();
        let expected = workload.reference()?;
        let time_a = started.elapsed().as_secs_f64();
        let started = Instant::now();
        workload.run()?;
        first_calls.get_or_insert((time_a, started.elapsed().as_secs_f64()));
        comparisons.push(correctness::compare(&expected, &workload.output()?)?);
    }
    let mut row = Row::new(name, Correctness::worst(&comparisons));
    if !row.correctness.ok {
        return Ok(row.untimed("the kernel does not agree with the script's reference"));
    }
    row.functional = Compiles::here()?.interpreted > interpreted_before;
    let flusher = run.flusher.as_ref();
    let (mut samples, compiles) = watched(
        run,
        row.workload.clone(),
        &run.budget(row.functional),
        measure::Arms::together(
            &mut Calls::new(|| workload.run_reference(), flusher),
            &mut Calls::new(|| workload.run(), flusher),
        ),
        &|| Ok(Compiles::here()?.all),
    )?;
    // The loop's own first call comes after the comparison of results, when all is compiled.
    (samples.first_call_a, samples.first_call_b) = first_calls.unwrap_or_default();
    Ok(row.timed(samples, compiles, run.request.seed))
}
