//! `bench ab --target`: the comparison by estimates of the compiler for TPUs.

use std::path::Path;
use std::process::ExitCode;

use kernel_report::estimate::EstimatedComparison;
use kernel_spec::protocol::{BenchmarkRequest, BenchmarkResponse, EstimateRequest, Request};

use super::super::{Context, shown};
use super::measured::without_format;
use crate::failure::Failure;
use crate::interrupt;
use crate::runtime::{Runtime, RuntimeError};

/// Seconds that one build for a TPU may take.
const BUILD_LIMIT_S: f64 = 300.0;

/// Runs the request, writes the record where asked, and shows it.
pub(super) fn run(
    comparison: BenchmarkRequest,
    targets: &[String],
    path: Option<&Path>,
    context: &Context<'_>,
) -> Result<ExitCode, Failure> {
    let output = context.output;
    let runtime = Runtime::open()?;
    interrupt::before_exit(runtime.interrupter());
    let request = Request::Estimate(EstimateRequest {
        comparison,
        targets: targets.to_vec(),
        time_limit_s: BUILD_LIMIT_S,
    });
    let answer = shown::request(&runtime, &request, output, |done, total| {
        format!(", {done} of {total}")
    });
    let protocol = |error: serde_json::Error| RuntimeError::Protocol(error.to_string());
    let answer: BenchmarkResponse = serde_json::from_value(answer?).map_err(protocol)?;
    if let Some(path) = path {
        let text = serde_json::to_vec_pretty(&answer.record).map_err(protocol)?;
        std::fs::write(path, text).map_err(|error| Failure::io("write", path, &error))?;
    }
    if output.json {
        output.json(&without_format(answer.record))?;
    } else {
        let record: EstimatedComparison =
            serde_json::from_value(answer.record).map_err(protocol)?;
        output.line(record.table())?;
    }
    Ok(if answer.agree {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
