//! A comparison for TPUs that are not there: the compiler's figures in place of timings.
//!
//! The report has the keys of a measured one. It says `estimate: true`, gives no interval and no
//! verdict (the figures of a model have no spread), and shows each arm beside the roofline of the chip.

use std::collections::BTreeMap;

use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{Attribute, Cell, CellAlignment, Table};
use kernel_spec::protocol::check::{BuildEntry, Roofline};
use serde::{Deserialize, Serialize};

use crate::record::{ArmRecord, FORMAT};

/// One row: the two arms at one shape on one target.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EstimatedRow {
    /// The op with its sizes and element type.
    pub workload: String,
    /// The TPU generation.
    pub target: String,
    /// What the compiler says of the first arm.
    pub a: BuildEntry,
    /// What the compiler says of the second arm.
    pub b: BuildEntry,
    /// Estimated cycles of B over those of A, where the two may be compared.
    pub ratio: Option<f64>,
    /// Why there is no ratio.
    pub reason: Option<String>,
    /// The least that the shape needs on the chip, and the chip's peaks.
    pub roofline: Roofline,
}

/// Whether the kernels of the arms compute the op, by comparison with float64 on the CPU.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct EstimatedCorrectness {
    /// Whether every case of every kernel is within its tolerance.
    pub ok: bool,
    /// Cases that were compared.
    pub cases: usize,
    /// What is wrong, one line for each kind.
    pub problems: Vec<String>,
}

/// A whole comparison, as `--json` prints it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EstimatedComparison {
    /// [`FORMAT`].
    pub format: u32,
    /// The first arm.
    pub a: ArmRecord,
    /// The second arm.
    pub b: ArmRecord,
    /// Whether the kernels are right.
    pub correctness: EstimatedCorrectness,
    /// Every shape on every target.
    pub samples: Vec<EstimatedRow>,
    /// Always absent: ratios of different chips have no common mean.
    pub ratio: Option<f64>,
    /// Always absent: an estimate has no interval to go by.
    pub verdict: Option<String>,
    /// Always absent: the same program always gets the same figure.
    pub noise_floor: Option<f64>,
    /// Versions of what took part.
    pub environment: BTreeMap<String, String>,
    /// Always true.
    pub estimate: bool,
}

impl EstimatedComparison {
    /// Puts a record together.
    pub fn new(
        a: ArmRecord,
        b: ArmRecord,
        correctness: EstimatedCorrectness,
        samples: Vec<EstimatedRow>,
        environment: BTreeMap<String, String>,
    ) -> Self {
        Self {
            format: FORMAT,
            a,
            b,
            correctness,
            samples,
            ratio: None,
            verdict: None,
            noise_floor: None,
            environment,
            estimate: true,
        }
    }

    /// The table that a terminal shows.
    pub fn table(&self) -> String {
        let mut table = Table::new();
        table.load_preset(UTF8_FULL_CONDENSED);
        let header = [
            "workload".to_owned(),
            "target".to_owned(),
            format!("A: {}", self.a.name),
            format!("B: {}", self.b.name),
            "B / A".to_owned(),
            "roofline".to_owned(),
            "A, B of it".to_owned(),
        ];
        table.set_header(header.map(|text| Cell::new(text).add_attribute(Attribute::Bold)));
        for row in &self.samples {
            let floor = row
                .roofline
                .arithmetic_cycles
                .max(row.roofline.memory_cycles);
            let share = |entry: &BuildEntry| {
                entry
                    .of_roofline
                    .map_or_else(|| "-".to_owned(), |share| format!("{:.0}%", share * 100.0))
            };
            table.add_row([
                Cell::new(&row.workload),
                Cell::new(&row.target),
                right(figure(&row.a, row.roofline.clock_hz)),
                right(figure(&row.b, row.roofline.clock_hz)),
                Cell::new(match (row.ratio, &row.reason) {
                    (Some(ratio), _) => format!("{ratio:.2}"),
                    (None, Some(reason)) => format!("none: {reason}"),
                    (None, None) => "none".to_owned(),
                }),
                right(format!(
                    "{} {}",
                    duration(floor, row.roofline.clock_hz),
                    row.roofline.bound
                )),
                right(format!("{}, {}", share(&row.a), share(&row.b))),
            ]);
        }
        let mut lines = vec![
            "ESTIMATES by the compiler for TPUs; nothing was measured on a TPU.".to_owned(),
            table.to_string(),
        ];
        let methods: std::collections::BTreeSet<&str> = self
            .samples
            .iter()
            .flat_map(|row| [&row.a, &row.b])
            .filter_map(|entry| entry.method.as_deref())
            .collect();
        if !methods.is_empty() {
            lines.push(format!(
                "Method: {}. `<` marks a figure below the roofline, which no program can reach: it is not believed.",
                methods.into_iter().collect::<Vec<_>>().join(", ")
            ));
        }
        for (target, roofline) in self.peaks() {
            lines.push(format!(
                "{target}: {:.0} TFLOP/s bf16 and {:.0} GB/s of HBM at {:.2} GHz (Google Cloud's published peaks).",
                roofline.peak_flops_per_second / 1e12,
                roofline.peak_bytes_per_second / 1e9,
                roofline.clock_hz / 1e9
            ));
        }
        lines.push(if self.correctness.ok {
            format!(
                "Right on {} cases against float64, Pallas bodies interpreted on the CPU.",
                self.correctness.cases
            )
        } else {
            format!("WRONG: {}", self.correctness.problems.join("; "))
        });
        lines.join("\n")
    }

    fn peaks(&self) -> BTreeMap<&str, &Roofline> {
        self.samples
            .iter()
            .map(|row| (row.target.as_str(), &row.roofline))
            .collect()
    }
}

fn figure(entry: &BuildEntry, clock: f64) -> String {
    match (
        entry.compiles,
        entry.estimated_cycles,
        entry.modelled_cycles,
    ) {
        (false, ..) => "does not compile".to_owned(),
        (_, Some(cycles), _) => format!("{} ({cycles} cycles)", duration(cycles as f64, clock)),
        (_, None, Some(cycles)) => format!("< ({cycles} cycles)"),
        (_, None, None) => "not modelled".to_owned(),
    }
}

fn duration(cycles: f64, clock: f64) -> String {
    format!("{:.1} us", cycles / clock * 1e6)
}

fn right(text: String) -> Cell {
    Cell::new(text).set_alignment(CellAlignment::Right)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arm(name: &str) -> ArmRecord {
        ArmRecord {
            name: name.to_owned(),
            execution: "TPU (estimated)".to_owned(),
            ..ArmRecord::default()
        }
    }

    fn built(estimated: Option<u64>, modelled: u64) -> BuildEntry {
        BuildEntry {
            compiles: true,
            estimated_cycles: estimated,
            modelled_cycles: Some(modelled),
            method: Some("static profile".to_owned()),
            of_roofline: estimated.map(|cycles| 1_000.0 / cycles as f64),
            ..BuildEntry::default()
        }
    }

    #[test]
    fn the_table_says_that_nothing_was_measured_and_marks_what_is_not_believed() {
        let row = EstimatedRow {
            workload: "rms_norm R=8 H=128 bfloat16".to_owned(),
            target: "v5e".to_owned(),
            a: built(Some(2_000), 2_000),
            b: built(None, 500),
            ratio: None,
            reason: Some("below the HBM floor".to_owned()),
            roofline: Roofline {
                memory_cycles: 1_000.0,
                bound: "HBM".to_owned(),
                peak_flops_per_second: 197e12,
                peak_bytes_per_second: 819e9,
                clock_hz: 1.5e9,
                ..Roofline::default()
            },
        };
        let correctness = EstimatedCorrectness {
            ok: true,
            cases: 9,
            problems: Vec::new(),
        };
        let comparison = EstimatedComparison::new(
            arm("default"),
            arm("org/x"),
            correctness,
            vec![row],
            BTreeMap::new(),
        );
        let table = comparison.table();
        for text in [
            "ESTIMATES",
            "1.3 us (2000 cycles)",
            "< (500 cycles)",
            "197 TFLOP/s",
            "50%, -",
            "0.7 us HBM",
        ] {
            assert!(table.contains(text), "{text} is missing in\n{table}");
        }
        let json = serde_json::to_value(&comparison).unwrap();
        assert_eq!(json["estimate"], true);
        assert!(json["verdict"].is_null());
    }
}
