//! `bench report`: records as a table and as one HTML page, changes between them, and a gate.
//!
//! It needs neither libtorch nor Python, so a record can be looked at on any machine.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use kernel_report::record::{ReadError, Record};
use kernel_report::report::compare::{Change, changes};
use kernel_report::report::gate::Gate;
use kernel_report::report::{Named, html, text};
use serde::Serialize;
use serde_json::{Value, json};

use super::super::Context;
use crate::failure::Failure;

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Records of `bench ab --output`, or of `kernels benchmark --output`; the first is what the others
    /// are compared with
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Write one self-contained HTML page to this file
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Exit with 1 where something is certainly slower by more than this, such as 3%
    #[arg(long, value_name = "PERCENT", value_parser = parse_percent)]
    fail_if_slower: Option<f64>,
    /// Confidence of all changes between files together
    #[arg(long, value_name = "P", default_value_t = 0.95, value_parser = parse_confidence)]
    confidence: f64,
}

fn parse_percent(text: &str) -> Result<f64, String> {
    let number = text.trim().strip_suffix('%').unwrap_or(text).trim();
    match number.parse::<f64>() {
        Ok(percent) if (0.0..1000.0).contains(&percent) => Ok(percent / 100.0),
        _ => Err(format!("`{text}` is not a percentage such as 3%")),
    }
}

fn parse_confidence(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value > 0.0 && value < 1.0 => Ok(value),
        _ => Err(format!("`{text}` is not between 0 and 1")),
    }
}

#[derive(Debug, Serialize)]
struct Document<'a> {
    records: Vec<Value>,
    changes: &'a [Change],
    gate: Option<&'a Gate>,
    html: Option<&'a PathBuf>,
}

pub(crate) fn run(arguments: &Arguments, context: &Context<'_>) -> Result<ExitCode, Failure> {
    let output = context.output;
    let records = Named::read_all(&arguments.files)?;
    let changes = changes(&records, arguments.confidence);
    let gate = arguments
        .fail_if_slower
        .map(|limit| Gate::new(limit, &records, &changes));
    if let Some(path) = &arguments.html {
        let page = html::page(&records, &changes, gate.as_ref())
            .map_err(|error| Failure::new("internal", error.to_string()))?;
        std::fs::write(path, page).map_err(|error| Failure::io("write", path, &error))?;
    }
    if output.json {
        output.json(&Document {
            records: records.iter().map(brief).collect(),
            changes: &changes,
            gate: gate.as_ref(),
            html: arguments.html.as_ref(),
        })?;
    } else {
        for named in &records {
            output.line(text::record(named) + "\n")?;
        }
        if !changes.is_empty() {
            output.line(text::changes(&changes))?;
        } else if records.len() > 1 {
            output.warning("the records have no workload in common");
        }
        for finding in gate.iter().flat_map(Gate::findings) {
            output.warning(finding);
        }
        if let Some(path) = &arguments.html {
            output.note(format!("wrote `{}`", path.display()));
        }
    }
    Ok(match gate {
        Some(gate) if !gate.passed => ExitCode::FAILURE,
        _ => ExitCode::SUCCESS,
    })
}

/// A record without its samples.
fn brief(named: &Named) -> Value {
    match &named.record {
        Record::Comparison(record) => json!({
            "name": named.name,
            "kind": "bench-ab",
            "a": record.a,
            "b": record.b,
            "ratio": record.ratio,
            "verdict": record.verdict,
            "complete": record.complete,
            "estimate": record.estimate,
            "rows": record.samples.iter().map(|row| json!({
                "workload": row.workload,
                "a": row.summary_a(),
                "b": row.summary_b(),
                "ratio": row.ratio,
                "noise_floor": row.noise_floor,
                "verdict": row.verdict,
                "reason": row.reason,
                "warnings": row.warnings,
            })).collect::<Vec<_>>(),
        }),
        Record::Peer(record) => json!({
            "name": named.name,
            "kind": "kernels-benchmark",
            "rows": record.results.iter().map(|row| json!({
                "workload": row.workload,
                "mean_s": row.timing_results.mean_ms / 1e3,
                "std_s": row.timing_results.std_ms / 1e3,
                "verified": row.verified,
            })).collect::<Vec<_>>(),
        }),
    }
}

impl From<ReadError> for Failure {
    fn from(error: ReadError) -> Self {
        let failure = Self::new(error.kind(), error.to_string());
        let cause = std::error::Error::source(&error).map(ToString::to_string);
        let failure = match cause {
            Some(cause) => failure.caused_by(cause),
            None => failure,
        };
        match error.hint() {
            Some(hint) => failure.with_hint(hint),
            None => failure,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_a_percentage_with_or_without_its_sign() {
        assert_eq!(parse_percent("3%"), Ok(0.03));
        assert_eq!(parse_percent("0.5"), Ok(0.005));
        assert!(parse_percent("-1%").is_err());
        assert!(parse_percent("much").unwrap_err().contains("`much`"));
    }
}
