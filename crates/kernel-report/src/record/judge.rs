//! From samples to verdicts, over all rows of a record.

use super::{ArmRecord, Comparison, FORMAT, Level, MachineRecord, Method, Row};
use crate::correctness::Correctness;
use crate::statistics::{Distribution, judge_together, noise_floor, verdict};

/// What a record says besides its rows.
#[derive(Debug, Clone, PartialEq)]
pub struct About {
    /// What the arms are.
    pub level: Level,
    /// Dtype of inputs and weights.
    pub dtype: String,
    /// The first arm.
    pub a: ArmRecord,
    /// The second arm.
    pub b: ArmRecord,
    /// How it was measured.
    pub method: Method,
    /// Machine and versions.
    pub environment: MachineRecord,
    /// Whether every workload that was asked for is among the rows.
    pub all_rows: bool,
}

impl Comparison {
    /// Judges the rows together and draws the overall ratio.
    pub fn new(about: About, mut rows: Vec<Row>) -> Self {
        let overall = judge(&mut rows, &about.method);
        let floor = rows
            .iter()
            .filter_map(|row| row.noise_floor)
            .max_by(f64::total_cmp);
        let ratio = overall.map(|overall| overall.interval(about.method.confidence));
        let cut_short = |row: &Row| row.measurement.as_ref().is_some_and(|m| m.cut_short);
        Self {
            format: FORMAT,
            recorded_at: chrono::Utc::now().to_rfc3339_opts(chrono::SecondsFormat::Secs, true),
            level: about.level,
            dtype: about.dtype,
            a: about.a,
            b: about.b,
            correctness: Correctness::worst(rows.iter().map(|row| &row.correctness)),
            ratio,
            verdict: ratio.map(|ratio| verdict(&ratio, floor.unwrap_or_default())),
            noise_floor: floor,
            complete: about.all_rows && !rows.iter().any(cut_short),
            estimate: rows.iter().any(|row| row.estimate.is_some()),
            samples: rows,
            method: about.method,
            environment: about.environment,
        }
    }
}

/// Fills in ratio, noise floor and verdict of each row; gives the overall ratio where every row has
/// one.
fn judge(rows: &mut [Row], method: &Method) -> Option<Distribution> {
    let mut of_rows = Vec::new();
    for (index, row) in rows.iter_mut().enumerate() {
        match row.bootstraps().cloned() {
            Some(distributions) => of_rows.push((index, distributions)),
            None if row.measurement.is_some() && row.may_be_judged() => {
                row.reason = Some("too few samples for an interval".to_owned());
            }
            None => {}
        }
    }
    // The control is no question of ours that could be answered wrongly, so it is not corrected.
    let floors: Vec<f64> = of_rows
        .iter()
        .map(|(_, (_, control))| noise_floor(&control.interval(method.confidence)))
        .collect();
    let comparisons: Vec<_> = of_rows
        .iter()
        .zip(&floors)
        .map(|((_, (ratio, _)), floor)| (ratio, *floor))
        .collect();
    let judged = judge_together(&comparisons, method.confidence);
    for (((index, _), floor), judged) in of_rows.iter().zip(&floors).zip(judged) {
        let row = &mut rows[*index];
        row.noise_floor = Some(*floor);
        row.ratio = Some(judged.ratio);
        row.verdict = Some(judged.verdict);
    }
    let ratios: Vec<&Distribution> = comparisons.iter().map(|(ratio, _)| *ratio).collect();
    (ratios.len() == rows.len())
        .then(|| Distribution::geometric_mean(&ratios))
        .flatten()
}
