//! What all commands share that measure: progress, Ctrl-C, the record and its table.

use std::path::Path;
use std::process::ExitCode;

use kernel_report::record::Comparison;
use kernel_report::report::text;
use kernel_spec::protocol::{BenchmarkRequest, BenchmarkResponse, Request};
use serde_json::Value;

use super::super::{Context, shown};
use crate::failure::Failure;
use crate::interrupt;
use crate::runtime::{Runtime, RuntimeError};

/// Runs the request, writes the record where asked, and shows it. What was measured before Ctrl-C is
/// kept.
pub(super) fn run(
    request: BenchmarkRequest,
    path: Option<&Path>,
    context: &Context<'_>,
) -> Result<ExitCode, Failure> {
    let output = context.output;
    let runtime = Runtime::open()?;
    let stopped = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let interrupt_runtime = runtime.interrupter();
    let flag = stopped.clone();
    interrupt::before_exit(move || {
        flag.store(true, std::sync::atomic::Ordering::Relaxed);
        interrupt_runtime();
    });
    let answer = shown::request(
        &runtime,
        &Request::Benchmark(request),
        output,
        |done, total| {
            // Milliseconds of measuring.
            format!(", {}%", done * 100 / total)
        },
    );
    let answer: BenchmarkResponse = serde_json::from_value(answer?)
        .map_err(|error| RuntimeError::Protocol(error.to_string()))?;
    if let Some(path) = path {
        let text = serde_json::to_vec_pretty(&answer.record)
            .map_err(|error| RuntimeError::Protocol(error.to_string()))?;
        std::fs::write(path, text).map_err(|error| Failure::io("write", path, &error))?;
    }
    if output.json {
        output.json(&without_format(answer.record))?;
    } else {
        let record: Comparison = serde_json::from_value(answer.record)
            .map_err(|error| RuntimeError::Protocol(error.to_string()))?;
        output.line(text::comparison(&record))?;
    }
    if stopped.load(std::sync::atomic::Ordering::Relaxed) {
        return Ok(ExitCode::from(interrupt::EXIT_CODE));
    }
    Ok(if answer.agree {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// The record without its own `format`, which the document of `--json` has in front.
pub(super) fn without_format(record: Value) -> Value {
    match record {
        Value::Object(mut fields) => {
            fields.shift_remove("format");
            Value::Object(fields)
        }
        other => other,
    }
}
