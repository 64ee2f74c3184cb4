//! What the page shows, ready to be written: every number is text, every chart is drawn.

use serde::Serialize;

use super::charts::{ChartError, Interval, Point, course, distribution, forest, roofline};
use crate::record::{ArmRecord, CacheState, Comparison, PeerRecord, Record, ReplacedOp, Row};
use crate::report::compare::Change;
use crate::report::gate::{Gate, Outcome};
use crate::report::{Named, format_count, format_ratio, format_seconds, text};
use crate::statistics::Summary;

/// The whole page.
#[derive(Debug, Serialize)]
pub(super) struct Page {
    title: String,
    records: Vec<Section>,
    changes: Vec<[String; 6]>,
    change_chart: String,
    gate: Option<GateView>,
}

#[derive(Debug, Serialize)]
struct GateView {
    passed: bool,
    limit: String,
    findings: Vec<String>,
    checks: Vec<[String; 3]>,
}

/// One record.
#[derive(Debug, Serialize)]
struct Section {
    name: String,
    id: String,
    /// The answer in one sentence.
    summary: String,
    estimate: bool,
    incomplete: bool,
    arms: Vec<Facts>,
    ratio_chart: String,
    rows: Vec<RowView>,
    workloads: Vec<Workload>,
    roofline: String,
    roofline_rows: Vec<[String; 5]>,
    replaced: Vec<Replaced>,
    warnings: Vec<String>,
    facts: Vec<Facts>,
    peer: Vec<[String; 7]>,
}

#[derive(Debug, Serialize)]
struct Facts {
    title: String,
    entries: Vec<(String, String)>,
}

#[derive(Debug, Serialize)]
struct RowView {
    workload: String,
    a: String,
    b: String,
    ratio: String,
    interval: String,
    noise: String,
    verdict: String,
    tone: &'static str,
    agrees: String,
    wrong: bool,
}

#[derive(Debug, Serialize)]
struct Workload {
    name: String,
    distribution: String,
    course: String,
    figures: Vec<[String; 9]>,
}

#[derive(Debug, Serialize)]
struct Replaced {
    arm: &'static str,
    op: ReplacedOp,
}

impl Page {
    pub(super) fn new(
        records: &[Named],
        changes: &[Change],
        gate: Option<&Gate>,
    ) -> Result<Self, ChartError> {
        let sections = records
            .iter()
            .enumerate()
            .map(|(index, named)| Section::new(named, index))
            .collect::<Result<Vec<_>, _>>()?;
        let title = match records {
            [
                Named {
                    record: Record::Comparison(only),
                    ..
                },
            ] => format!("{} against {}", only.b.name, only.a.name),
            [only] => only.name.clone(),
            several => format!("{} records of benchmarks", several.len()),
        };
        let intervals: Vec<Interval> = changes
            .iter()
            .map(|change| Interval {
                name: format!("{}, {}", change.workload, change.after),
                ratio: change.ratio,
                noise_floor: 0.0,
                verdict: Some(change.verdict),
            })
            .collect();
        Ok(Self {
            title,
            records: sections,
            changes: changes.iter().map(change_cells).collect(),
            change_chart: if intervals.is_empty() {
                String::new()
            } else {
                forest(&intervals, "after / before")?
            },
            gate: gate.map(GateView::new),
        })
    }
}

impl GateView {
    fn new(gate: &Gate) -> Self {
        Self {
            passed: gate.passed,
            limit: format!("{}%", (gate.limit * 1e4).round() / 1e2),
            findings: gate.findings(),
            checks: gate
                .checks
                .iter()
                .map(|check| {
                    [
                        format!("{}: {}", check.record, check.workload),
                        check
                            .ratio
                            .as_ref()
                            .map_or_else(|| "–".to_owned(), text::interval),
                        match check.outcome {
                            Outcome::Within => "within the limit",
                            Outcome::CannotTell => "cannot tell",
                            Outcome::Slower => "slower than allowed",
                            Outcome::Wrong => "wrong results",
                            Outcome::NotMeasured => "not measured",
                        }
                        .to_owned(),
                    ]
                })
                .collect(),
        }
    }
}

fn change_cells(change: &Change) -> [String; 6] {
    [
        change.workload.clone(),
        change.before.clone(),
        change.after.clone(),
        text::interval(&change.ratio),
        change.verdict.to_string(),
        change.basis.words().to_owned(),
    ]
}

impl Section {
    fn new(named: &Named, index: usize) -> Result<Self, ChartError> {
        let mut section = match &named.record {
            Record::Comparison(comparison) => Self::of_comparison(comparison)?,
            Record::Peer(peer) => Self::of_peer(peer),
        };
        section.name.clone_from(&named.name);
        section.id = format!("record-{index}");
        Ok(section)
    }

    fn of_comparison(comparison: &Comparison) -> Result<Self, ChartError> {
        let intervals: Vec<Interval> = comparison
            .samples
            .iter()
            .filter_map(|row| {
                Some(Interval {
                    name: row.workload.clone(),
                    ratio: row.ratio?,
                    noise_floor: row.noise_floor.unwrap_or_default(),
                    verdict: row.verdict,
                })
            })
            .collect();
        let (roofline, roofline_rows) = roof(comparison)?;
        Ok(Self {
            name: String::new(),
            id: String::new(),
            summary: summary(comparison),
            estimate: comparison.estimate,
            incomplete: !comparison.complete,
            arms: vec![arm_facts("A", &comparison.a), arm_facts("B", &comparison.b)],
            ratio_chart: if intervals.is_empty() {
                String::new()
            } else {
                forest(
                    &intervals,
                    "time of B over time of A (below 1: B is faster)",
                )?
            },
            rows: comparison.samples.iter().map(RowView::new).collect(),
            workloads: comparison
                .samples
                .iter()
                .filter(|row| row.measurement.is_some())
                .map(Workload::new)
                .collect::<Result<_, _>>()?,
            roofline,
            roofline_rows,
            replaced: [("A", &comparison.a), ("B", &comparison.b)]
                .into_iter()
                .flat_map(|(arm, record)| {
                    record.ops.iter().map(move |op| Replaced {
                        arm,
                        op: op.clone(),
                    })
                })
                .collect(),
            warnings: comparison
                .samples
                .iter()
                .flat_map(|row| {
                    row.warnings
                        .iter()
                        .map(|text| format!("{}: {text}", row.workload))
                })
                .collect(),
            facts: vec![method(comparison), environment(comparison)],
            peer: Vec::new(),
        })
    }

    fn of_peer(peer: &PeerRecord) -> Self {
        let time = |milliseconds: f64| format_seconds(milliseconds / 1e3);
        let machine = &peer.machine_info;
        Self {
            name: String::new(),
            id: String::new(),
            summary: format!(
                "Figures that `kernels benchmark` of the Python library wrote for build {}. It keeps no samples, so there is no interval of a ratio and no distribution.",
                peer.kernel_commit_sha
            ),
            estimate: false,
            incomplete: false,
            arms: Vec::new(),
            ratio_chart: String::new(),
            rows: Vec::new(),
            workloads: Vec::new(),
            roofline: String::new(),
            roofline_rows: Vec::new(),
            replaced: Vec::new(),
            warnings: Vec::new(),
            facts: vec![Facts {
                title: "Environment".to_owned(),
                entries: vec![
                    ("processor".to_owned(), machine.cpu.clone()),
                    ("accelerator".to_owned(), machine.gpu.clone()),
                    ("backend".to_owned(), machine.backend.clone()),
                    ("system".to_owned(), machine.os.clone()),
                    ("torch".to_owned(), machine.pytorch_version.clone()),
                ],
            }],
            peer: peer
                .results
                .iter()
                .map(|row| {
                    let timing = &row.timing_results;
                    [
                        row.workload.clone(),
                        time(timing.mean_ms),
                        time(timing.std_ms),
                        format!("{} to {}", time(timing.q1_ms), time(timing.q3_ms)),
                        format!("{} to {}", time(timing.min_ms), time(timing.max_ms)),
                        timing.iterations.to_string(),
                        match row.verified {
                            Some(true) => "yes",
                            Some(false) => "no",
                            None => "not checked",
                        }
                        .to_owned(),
                    ]
                })
                .collect(),
        }
    }
}

fn summary(comparison: &Comparison) -> String {
    if !comparison.correctness.ok {
        return "The arms do not compute the same, so nothing is said about speed where they differ.".to_owned();
    }
    let several = comparison.samples.len() > 1;
    match (&comparison.ratio, comparison.verdict) {
        (Some(ratio), Some(verdict)) => format!(
            "B is {}{}: its time is {} of A's (interval {} to {}, confidence {}%).",
            match verdict.to_string().as_str() {
                "no difference" => "not told apart from A",
                "faster" => "faster than A",
                _ => "slower than A",
            },
            if several {
                " over all workloads together"
            } else {
                ""
            },
            format_ratio(ratio.estimate),
            format_ratio(ratio.low),
            format_ratio(ratio.high),
            (ratio.confidence * 1e3).round() / 10.0
        ),
        _ if comparison.estimate => {
            "A compiler's estimates for a chip that is not here.".to_owned()
        }
        _ => "There is no overall verdict: not every workload could be judged.".to_owned(),
    }
}

fn arm_facts(name: &str, arm: &ArmRecord) -> Facts {
    let mut entries = vec![("name".to_owned(), arm.name.clone())];
    let optional = [
        ("repository", &arm.repo),
        ("commit", &arm.commit),
        ("digest", &arm.digest),
        ("build", &arm.variant),
    ];
    for (key, value) in optional {
        entries.extend(value.iter().map(|value| (key.to_owned(), value.clone())));
    }
    entries.push(("runs as".to_owned(), arm.execution.clone()));
    Facts {
        title: format!("Arm {name}"),
        entries,
    }
}

impl RowView {
    fn new(row: &Row) -> Self {
        let dash = || "–".to_owned();
        let (a, b) = row.centres();
        let time = |seconds: Option<f64>| seconds.map_or_else(dash, format_seconds);
        let estimated = row
            .estimate
            .as_ref()
            .and_then(crate::record::Estimate::ratio);
        Self {
            workload: row.estimate.as_ref().map_or_else(
                || row.workload.clone(),
                |estimate| format!("{}, {}", row.workload, estimate.target),
            ),
            a: time(a),
            b: time(b),
            ratio: row
                .ratio
                .map(|ratio| ratio.estimate)
                .or(estimated)
                .map_or_else(dash, format_ratio),
            interval: row.ratio.map_or_else(dash, |ratio| {
                format!(
                    "{} to {} ({}%)",
                    format_ratio(ratio.low),
                    format_ratio(ratio.high),
                    (ratio.confidence * 1e4).round() / 1e2
                )
            }),
            noise: row
                .noise_floor
                .map_or_else(dash, |floor| format!("{:.2}%", floor * 100.0)),
            verdict: match (&row.verdict, &row.reason) {
                (Some(verdict), _) => verdict.to_string(),
                (None, Some(reason)) => format!("none: {reason}"),
                (None, None) => "none".to_owned(),
            },
            tone: match row.verdict.map(|verdict| verdict.to_string()).as_deref() {
                Some("faster") => "faster",
                Some("slower") => "slower",
                _ => "neither",
            },
            agrees: row.correctness.to_string(),
            wrong: !row.correctness.ok,
        }
    }
}

impl Workload {
    fn new(row: &Row) -> Result<Self, ChartError> {
        let empty = Vec::new();
        let (a, b) = row
            .measurement
            .as_ref()
            .map_or((&empty, &empty), |samples| (&samples.a, &samples.b));
        let figures = [("A", row.summary_a()), ("B", row.summary_b())];
        Ok(Self {
            name: row.workload.clone(),
            distribution: distribution(&row.workload, a, b)?,
            course: course(&row.workload, a, b)?,
            figures: figures
                .into_iter()
                .filter_map(|(arm, summary)| Some(figure_cells(arm, &summary?)))
                .collect(),
        })
    }
}

fn figure_cells(arm: &str, summary: &Summary) -> [String; 9] {
    [
        arm.to_owned(),
        summary.samples.to_string(),
        format_seconds(summary.minimum),
        format_seconds(summary.p05),
        format_seconds(summary.p25),
        format_seconds(summary.median),
        format_seconds(summary.p75),
        format_seconds(summary.p95),
        format!(
            "{} (up to {})",
            summary.outliers,
            format_seconds(summary.maximum)
        ),
    ]
}

/// Chart and table of the roofline; empty where work or limits are not known.
fn roof(comparison: &Comparison) -> Result<(String, Vec<[String; 5]>), ChartError> {
    let machine = comparison.environment.limits.as_ref();
    let points: Vec<Point> = comparison
        .samples
        .iter()
        .filter_map(|row| {
            let (a, b) = row.centres();
            a.or(b)?;
            Some(Point {
                name: row.workload.clone(),
                work: row.work?,
                limits: row.limits(machine)?.clone(),
                a,
                b,
            })
        })
        .collect();
    let rows = points
        .iter()
        .map(|point| {
            let least = point.work.least_seconds(&point.limits);
            let share = |seconds: Option<f64>| {
                seconds.map_or_else(|| "–".to_owned(), |s| format!("{:.0}%", least / s * 100.0))
            };
            [
                point.name.clone(),
                format!(
                    "{}FLOP, {}B",
                    format_count(point.work.flops),
                    format_count(point.work.bytes)
                ),
                format_seconds(least),
                share(point.a),
                share(point.b),
            ]
        })
        .collect();
    Ok((roofline(&points)?, rows))
}

fn method(comparison: &Comparison) -> Facts {
    let method = &comparison.method;
    let entry = |key: &str, value: String| (key.to_owned(), value);
    Facts {
        title: "Method".to_owned(),
        entries: vec![
            entry("recorded", comparison.recorded_at.clone()),
            entry("dtype", comparison.dtype.clone()),
            entry(
                "order",
                "rounds of A, B and a second A in an order drawn anew each time".to_owned(),
            ),
            entry("time for each workload", format!("{} s", method.budget_s)),
            entry("warm-up", format!("{} s or longer, until stable", method.warm_up_s)),
            entry(
                "interval",
                "block bootstrap of the median ratio within rounds; several workloads corrected after Holm"
                    .to_owned(),
            ),
            entry("confidence", format!("{}%", method.confidence * 100.0)),
            entry(
                "caches",
                match method.cache {
                    CacheState::Hot => "hot: as the call before left them",
                    CacheState::Flushed => "flushed before each sample, outside its span",
                }
                .to_owned(),
            ),
            entry("processes", method.processes.to_string()),
            entry(
                "harness",
                format!("{} a call, part of every time", format_seconds(method.harness_overhead_s)),
            ),
            entry("seed", method.seed.to_string()),
        ],
    }
}

fn environment(comparison: &Comparison) -> Facts {
    let machine = &comparison.environment;
    let unknown = || "not told by the system".to_owned();
    let mut entries = vec![
        ("device".to_owned(), machine.device.clone()),
        (
            "processor".to_owned(),
            format!("{}, {} logical", machine.cpu, machine.cpus),
        ),
        ("threads".to_owned(), machine.torch_threads.to_string()),
        (
            "governor".to_owned(),
            machine.governor.clone().unwrap_or_else(unknown),
        ),
        (
            "load at start, at end".to_owned(),
            [machine.load_average, machine.load_average_end]
                .map(|load| load.map_or_else(unknown, |load| format!("{load:.2}")))
                .join(", "),
        ),
        ("system".to_owned(), machine.os.clone()),
    ];
    if let Some(limits) = &machine.limits {
        entries.push((
            "limits".to_owned(),
            format!(
                "{}FLOP/s, {}B/s ({})",
                format_count(limits.flops_per_s),
                format_count(limits.bytes_per_s),
                limits.method
            ),
        ));
    }
    entries.extend(
        machine
            .versions
            .iter()
            .map(|(name, version)| (name.clone(), version.clone())),
    );
    Facts {
        title: "Environment".to_owned(),
        entries,
    }
}
