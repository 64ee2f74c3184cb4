//! The table that a terminal shows.

mod histogram;

use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{Attribute, Cell, CellAlignment, ContentArrangement, Table};

use super::compare::Change;
use super::{Named, format_count, format_ratio, format_seconds};
use crate::record::{ArmRecord, CacheState, Comparison, PeerRecord, Record, Row};
use crate::statistics::{Ratio, Summary};

pub use histogram::histogram;

/// Characters of a distribution.
const WIDTH: usize = 16;

/// A record: what was compared, one block of lines a workload, and what to know about it.
pub fn record(named: &Named) -> String {
    match &named.record {
        Record::Comparison(comparison) => {
            format!("{}\n{}", named.name, self::comparison(comparison))
        }
        Record::Peer(peer) => format!("{}\n{}", named.name, self::peer(peer)),
    }
}

/// A comparison of our own.
pub fn comparison(comparison: &Comparison) -> String {
    let mut lines = vec![
        format!("A: {}", arm(&comparison.a)),
        format!("B: {}", arm(&comparison.b)),
        conditions(comparison),
    ];
    lines.push(rows(comparison).to_string());
    if comparison.samples.len() > 1
        && let (Some(ratio), Some(verdict)) = (comparison.ratio, comparison.verdict)
    {
        lines.push(format!(
            "all rows: B / A {}: B is {}",
            interval(&ratio),
            verdict_words(&verdict.to_string())
        ));
    }
    for row in &comparison.samples {
        lines.extend(
            row.warnings
                .iter()
                .map(|text| format!("warning: {}: {text}", row.workload)),
        );
    }
    if !comparison.complete {
        lines.push("incomplete: stopped before every workload had its time".to_owned());
    }
    lines.join("\n")
}

/// What was measured by `kernels benchmark`: one arm, and no samples.
fn peer(record: &PeerRecord) -> String {
    let mut table = new_table(&[
        "workload",
        "mean",
        "std",
        "quartiles",
        "least .. greatest",
        "n",
        "agrees",
    ]);
    for row in &record.results {
        let timing = &row.timing_results;
        let time = |milliseconds: f64| format_seconds(milliseconds / 1e3);
        table.add_row([
            Cell::new(&row.workload),
            right(time(timing.mean_ms)),
            right(time(timing.std_ms)),
            Cell::new(format!("{} .. {}", time(timing.q1_ms), time(timing.q3_ms))),
            Cell::new(format!(
                "{} .. {}",
                time(timing.min_ms),
                time(timing.max_ms)
            )),
            right(timing.iterations.to_string()),
            Cell::new(match row.verified {
                Some(true) => "yes",
                Some(false) => "NO",
                None => "not checked",
            }),
        ]);
    }
    let machine = &record.machine_info;
    format!(
        "`kernels benchmark`: build {}, {}, {}, torch {}; figures only, it keeps no samples\n{table}",
        record.kernel_commit_sha, machine.backend, machine.cpu, machine.pytorch_version
    )
}

/// Records against the first of them.
pub fn changes(changes: &[Change]) -> String {
    let mut table = new_table(&[
        "workload",
        "before",
        "after",
        "after / before",
        "verdict",
        "from",
    ]);
    for change in changes {
        table.add_row([
            Cell::new(&change.workload),
            Cell::new(&change.before),
            Cell::new(&change.after),
            Cell::new(interval(&change.ratio)),
            Cell::new(change.verdict.to_string()),
            Cell::new(change.basis.words()),
        ]);
    }
    table.to_string()
}

fn arm(arm: &ArmRecord) -> String {
    let mut parts = vec![arm.name.clone()];
    if let Some(commit) = &arm.commit {
        parts.push(format!("commit {}", commit.get(..12).unwrap_or(commit)));
    }
    if let Some(variant) = &arm.variant {
        parts.push(format!("build {variant}"));
    }
    let replaced: Vec<String> = arm
        .ops
        .iter()
        .filter(|op| op.replaced > 0)
        .map(|op| {
            format!(
                "{} ({} of {}: {})",
                op.op, op.replaced, op.total, op.implementation
            )
        })
        .collect();
    if !replaced.is_empty() {
        parts.push(format!("replaced: {}", replaced.join(", ")));
    }
    parts.join(", ")
}

fn conditions(comparison: &Comparison) -> String {
    let machine = &comparison.environment;
    let method = &comparison.method;
    let mut text = vec![
        comparison.dtype.clone(),
        format!(
            "{} ({} CPUs, {} threads)",
            machine.cpu, machine.cpus, machine.torch_threads
        ),
    ];
    if let Some(load) = machine.load_average {
        text.push(format!("load {load:.1}"));
    }
    text.push(match method.cache {
        CacheState::Hot => "caches hot".to_owned(),
        CacheState::Flushed => "caches flushed".to_owned(),
    });
    text.push(format!(
        "harness {}/call",
        format_seconds(method.harness_overhead_s)
    ));
    if method.processes > 1 {
        text.push(format!("{} processes", method.processes));
    }
    text.join(", ")
}

fn rows(comparison: &Comparison) -> Table {
    let estimated = comparison.estimate;
    let mut table = new_table(&[
        "workload",
        "",
        if estimated { "estimate" } else { "median" },
        "5% .. 95%",
        "distribution",
        "B / A",
        "verdict on B",
        "agrees",
    ]);
    for row in &comparison.samples {
        let (a, b) = (row.summary_a(), row.summary_b());
        let [of_a, of_b] = distributions(row);
        table.add_row([
            Cell::new(workload(row, comparison)),
            Cell::new("A\nB"),
            right(two(&time_of(row, a, true), &time_of(row, b, false))),
            Cell::new(two(&tails(a), &tails(b))),
            Cell::new(format!("{of_a}\n{of_b}")),
            Cell::new(ratio_of(row)),
            Cell::new(judgement(row)),
            Cell::new(row.correctness.to_string()),
        ]);
    }
    table
}

fn workload(row: &Row, comparison: &Comparison) -> String {
    let mut lines = vec![row.workload.clone()];
    if let Some(estimate) = &row.estimate {
        lines.push(format!("{} ({})", estimate.target, estimate.method));
    }
    let limits = row.limits(comparison.environment.limits.as_ref());
    if let (Some(work), Some(limits)) = (row.work, limits) {
        let least = work.least_seconds(limits);
        let share = |seconds: Option<f64>| {
            seconds.map_or_else(
                || "-".to_owned(),
                |seconds| format!("{:.0}%", least / seconds * 100.0),
            )
        };
        let (a, b) = row.centres();
        lines.push(format!(
            "of the limit ({}): A {}, B {}",
            format_seconds(least),
            share(a),
            share(b)
        ));
    }
    if let (Some(tokens), (Some(a), Some(b))) = (row.tokens, row.centres()) {
        lines.push(format!(
            "tokens/s: A {}, B {}",
            rate(tokens / a),
            rate(tokens / b)
        ));
    }
    lines.join("\n")
}

fn rate(value: f64) -> String {
    if value < 1e5 {
        format!("{value:.1}")
    } else {
        format_count(value).trim_end().to_owned()
    }
}

fn time_of(row: &Row, summary: Option<Summary>, of_a: bool) -> String {
    let (a, b) = row.centres();
    let seconds = summary.map(|s| s.median).or(if of_a { a } else { b });
    let cycles = row.estimate.as_ref().and_then(|estimate| {
        if of_a {
            estimate.a.cycles
        } else {
            estimate.b.cycles
        }
    });
    match (seconds, cycles) {
        (Some(seconds), _) => format_seconds(seconds),
        (None, Some(cycles)) => format!("{cycles:.0} cycles"),
        (None, None) => "-".to_owned(),
    }
}

fn tails(summary: Option<Summary>) -> String {
    summary.map_or_else(
        || "-".to_owned(),
        |s| {
            let outliers = match s.outliers {
                0 => String::new(),
                count => format!(" ({count} far out)"),
            };
            format!(
                "{} .. {}{outliers}",
                format_seconds(s.p05),
                format_seconds(s.p95)
            )
        },
    )
}

fn distributions(row: &Row) -> [String; 2] {
    row.measurement.as_ref().map_or_else(
        || ["-".to_owned(), "-".to_owned()],
        |samples| {
            let [a, b] = histogram([&samples.a, &samples.b], WIDTH);
            [a, b]
        },
    )
}

fn ratio_of(row: &Row) -> String {
    match (
        &row.ratio,
        row.estimate
            .as_ref()
            .and_then(crate::record::Estimate::ratio),
    ) {
        (Some(ratio), _) => {
            let noise = row.noise_floor.map_or_else(String::new, |floor| {
                format!("\nnoise {:.2}%", floor * 100.0)
            });
            interval(ratio) + &noise
        }
        (None, Some(ratio)) => format!("{} (estimate)", format_ratio(ratio)),
        (None, None) => "-".to_owned(),
    }
}

fn judgement(row: &Row) -> String {
    match (&row.verdict, &row.reason) {
        (Some(verdict), _) => verdict.to_string(),
        (None, Some(reason)) => format!("none: {reason}"),
        (None, None) => "none".to_owned(),
    }
}

fn verdict_words(verdict: &str) -> String {
    match verdict {
        "no difference" => "not told apart from A".to_owned(),
        other => other.to_owned(),
    }
}

/// A ratio with its interval.
pub fn interval(ratio: &Ratio) -> String {
    format!(
        "{} [{}, {}]",
        format_ratio(ratio.estimate),
        format_ratio(ratio.low),
        format_ratio(ratio.high)
    )
}

fn two(a: &str, b: &str) -> String {
    format!("{a}\n{b}")
}

fn new_table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table
        .load_preset(UTF8_FULL_CONDENSED)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_header(
            header
                .iter()
                .map(|text| Cell::new(text).add_attribute(Attribute::Bold)),
        );
    table
}

fn right(text: String) -> Cell {
    Cell::new(text).set_alignment(CellAlignment::Right)
}
