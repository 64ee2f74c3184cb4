//! What a comparison leaves behind: one JSON document with all samples, and a table for people.

use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{Attribute, Cell, CellAlignment, Table};
use serde::{Deserialize, Serialize};

use crate::correctness::Correctness;
use crate::environment::MachineRecord;
use crate::measure::Measurement;
use crate::statistics::{self, Pair, Ratio, Verdict};

/// Version of the record's format.
pub const FORMAT: u32 = 1;

/// One arm of a comparison.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ArmRecord {
    /// As the user named it: a kernel reference, `default`, or `config`.
    pub name: String,
    /// Repository of the kernel, where it has one.
    pub repo: Option<String>,
    /// Commit of the kernel, where it has one.
    pub commit: Option<String>,
    /// How it runs: `libtorch`, `jax (compiled)`, `pallas (interpret)`, or `model`.
    pub execution: String,
}

/// One row: the two arms on one workload.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The workload, for people: an op with its sizes, or a phase of a model.
    pub workload: String,
    /// Whether B computes what A computes.
    pub correctness: Correctness,
    /// Times; absent where the arms do not agree, or one only runs in interpret mode.
    pub measurement: Option<Measurement>,
    /// Ratio of B over A; absent where nothing was timed.
    pub ratio: Option<Ratio>,
    /// The relative difference that the A/A control of this row shows.
    pub noise_floor: Option<f64>,
    /// The verdict on B; absent where nothing was timed.
    pub verdict: Option<Verdict>,
    /// Compiles within the timed span; more than none makes the timing void.
    pub compiles_in_span: usize,
    /// Why there is no timing or verdict.
    pub reason: Option<String>,
}

impl Row {
    /// A row of timed arms. `confidence` is that of this row's interval, already corrected for the
    /// number of rows.
    pub fn timed(
        workload: String,
        correctness: Correctness,
        measurement: Measurement,
        compiles_in_span: usize,
        confidence: f64,
        seed: u64,
    ) -> Self {
        let ratio = statistics::ratio_of_medians(&measurement.pairs, confidence, seed);
        let control = statistics::ratio_of_medians(&measurement.control, confidence, seed);
        let noise_floor = control.as_ref().map(statistics::noise_floor);
        let (verdict, reason) = match (&ratio, noise_floor) {
            _ if compiles_in_span > 0 => (
                None,
                Some(format!("{compiles_in_span} compiles within the timed span")),
            ),
            (Some(ratio), Some(floor)) => (Some(statistics::verdict(ratio, floor)), None),
            _ => (None, Some("too few samples for an interval".to_owned())),
        };
        Self {
            workload,
            correctness,
            measurement: Some(measurement),
            ratio,
            noise_floor,
            verdict,
            compiles_in_span,
            reason,
        }
    }

    /// A row without timing, and why.
    pub fn untimed(workload: String, correctness: Correctness, reason: String) -> Self {
        Self {
            workload,
            correctness,
            measurement: None,
            ratio: None,
            noise_floor: None,
            verdict: None,
            compiles_in_span: 0,
            reason: Some(reason),
        }
    }

    fn median(&self, arm: fn(&Pair) -> f64) -> Option<f64> {
        let pairs = &self.measurement.as_ref()?.pairs;
        statistics::median(&mut pairs.iter().map(arm).collect::<Vec<_>>())
    }
}

/// A whole comparison, as `--json` prints it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// [`FORMAT`].
    pub format: u32,
    /// The first arm.
    pub a: ArmRecord,
    /// The second arm.
    pub b: ArmRecord,
    /// Whether the arms agree on every workload, and the largest deviations.
    pub correctness: Correctness,
    /// Every workload with its samples.
    pub samples: Vec<Row>,
    /// The geometric mean of the rows' ratios, with an interval.
    pub ratio: Option<Ratio>,
    /// The verdict over all rows.
    pub verdict: Option<Verdict>,
    /// The largest noise floor of the rows.
    pub noise_floor: Option<f64>,
    /// Machine and versions.
    pub environment: MachineRecord,
    /// Always false here: every number was measured on the device named in `environment`.
    pub estimate: bool,
}

impl Comparison {
    /// Draws the overall ratio and verdict from the rows that have one.
    pub fn new(
        a: ArmRecord,
        b: ArmRecord,
        samples: Vec<Row>,
        environment: MachineRecord,
        confidence: f64,
        seed: u64,
    ) -> Self {
        let judged: Vec<&[Pair]> = samples
            .iter()
            .filter(|row| row.verdict.is_some())
            .filter_map(|row| row.measurement.as_ref())
            .map(|measurement| measurement.pairs.as_slice())
            .collect();
        let all_judged = judged.len() == samples.len();
        let ratio = statistics::overall_ratio(&judged, confidence, seed).filter(|_| all_judged);
        let noise_floor = samples
            .iter()
            .filter_map(|row| row.noise_floor)
            .max_by(f64::total_cmp);
        let verdict = ratio
            .as_ref()
            .map(|ratio| statistics::verdict(ratio, noise_floor.unwrap_or_default()));
        let correctness = Correctness::worst(samples.iter().map(|row| &row.correctness));
        Self {
            format: FORMAT,
            a,
            b,
            correctness,
            samples,
            ratio,
            verdict,
            noise_floor,
            environment,
            estimate: false,
        }
    }

    /// The table that a terminal shows.
    pub fn table(&self) -> String {
        let mut table = Table::new();
        table.load_preset(UTF8_FULL_CONDENSED);
        let header = [
            "workload".to_owned(),
            format!("A: {}", self.a.name),
            format!("B: {}", self.b.name),
            "B / A".to_owned(),
            "interval".to_owned(),
            "noise".to_owned(),
            "verdict on B".to_owned(),
            "agrees".to_owned(),
        ];
        table.set_header(header.map(|text| Cell::new(text).add_attribute(Attribute::Bold)));
        for row in &self.samples {
            let time =
                |seconds: Option<f64>| seconds.map_or_else(|| "-".to_owned(), format_seconds);
            let cells = [
                Cell::new(&row.workload),
                right(time(row.median(|pair| pair.a))),
                right(time(row.median(|pair| pair.b))),
                right(
                    row.ratio
                        .map_or_else(|| "-".to_owned(), |r| format!("{:.3}", r.estimate)),
                ),
                Cell::new(row.ratio.map_or_else(
                    || "-".to_owned(),
                    |r| format!("{:.3} .. {:.3}", r.low, r.high),
                )),
                right(
                    row.noise_floor
                        .map_or_else(|| "-".to_owned(), |floor| format!("{:.1}%", floor * 100.0)),
                ),
                Cell::new(match (&row.verdict, &row.reason) {
                    (Some(verdict), _) => verdict.to_string(),
                    (None, Some(reason)) => format!("none: {reason}"),
                    (None, None) => "none".to_owned(),
                }),
                Cell::new(row.correctness.to_string()),
            ];
            table.add_row(cells);
        }
        table.to_string()
    }
}

fn right(text: String) -> Cell {
    Cell::new(text).set_alignment(CellAlignment::Right)
}

/// A time in the unit that leaves one to three digits before the point.
pub fn format_seconds(seconds: f64) -> String {
    match seconds {
        s if s < 1e-6 => format!("{:.0} ns", s * 1e9),
        s if s < 1e-3 => format!("{:.1} us", s * 1e6),
        s if s < 1.0 => format!("{:.2} ms", s * 1e3),
        s => format!("{s:.2} s"),
    }
}
