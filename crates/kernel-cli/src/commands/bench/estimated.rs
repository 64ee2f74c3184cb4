//! `bench ab --target`: the comparison by estimates of the compiler for TPUs.

use std::path::Path;
use std::process::ExitCode;

use indicatif::ProgressBar;
use kernel_report::estimate::EstimatedComparison;
use kernel_spec::protocol::{BenchmarkRequest, BenchmarkResponse, EstimateRequest, Event, Request};

use super::super::Context;
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
    let mut bar: Option<ProgressBar> = None;
    let answer = runtime.request(&request, &mut |event| match event {
        Event::Progress { stage, done, total } => {
            let bar = bar.get_or_insert_with(|| output.step_bar("", 0));
            bar.set_message(match total {
                0 => stage,
                _ => format!("{stage}, {done} of {total}"),
            });
        }
        Event::Note { level, message } if level == "warning" => output.warning(message),
        Event::Note { message, .. } => output.note(message),
        _ => {}
    });
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
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
