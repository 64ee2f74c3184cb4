//! `--fail-if-slower`: a limit that CI can enforce.
//!
//! The gate fails on what is certain, by the interval, and names what it cannot rule out. A gate that
//! failed on estimates would fail by chance.

use serde::Serialize;

use super::Named;
use super::compare::Change;
use crate::record::Record;
use crate::statistics::Ratio;

/// What the gate says of one workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Certainly not slower than allowed.
    Within,
    /// The interval reaches beyond the limit: a longer run could tell.
    CannotTell,
    /// Certainly slower than allowed.
    Slower,
    /// The results are wrong, so that no time counts.
    Wrong,
    /// Nothing was timed, or the timing is void.
    NotMeasured,
}

/// One workload and what the gate says of it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Check {
    /// Name of the record.
    pub record: String,
    /// The workload.
    pub workload: String,
    /// The ratio that was looked at.
    pub ratio: Option<Ratio>,
    /// What the gate says.
    pub outcome: Outcome,
}

/// The whole gate.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Gate {
    /// The slowdown that is allowed: 0.03 is 3%.
    pub limit: f64,
    /// Whether nothing is certainly slower or wrong, and something was measured.
    pub passed: bool,
    /// Every workload.
    pub checks: Vec<Check>,
}

impl Gate {
    /// One record: its B against its A. Several: every later one against the first.
    pub fn new(limit: f64, records: &[Named], changes: &[Change]) -> Self {
        let mut checks = if records.len() == 1 {
            records
                .iter()
                .flat_map(|named| of_rows(named, limit))
                .collect()
        } else {
            let judged = changes.iter().map(|change| Check {
                record: change.after.clone(),
                workload: change.workload.clone(),
                ratio: Some(change.ratio),
                outcome: outcome(&change.ratio, limit),
            });
            judged.collect::<Vec<_>>()
        };
        if records.len() > 1 {
            // A workload that is wrong has no time, and would else be passed over in silence.
            let rows = records
                .iter()
                .skip(1)
                .flat_map(|named| of_rows(named, limit));
            let known = |check: &Check| {
                checks.iter().any(|other: &Check| {
                    other.record == check.record && other.workload == check.workload
                })
            };
            let missing: Vec<Check> = rows
                .filter(|check| matches!(check.outcome, Outcome::Wrong | Outcome::NotMeasured))
                .filter(|check| !known(check))
                .collect();
            checks.extend(missing);
        }
        let failed = |check: &Check| matches!(check.outcome, Outcome::Slower | Outcome::Wrong);
        let measured =
            |check: &Check| matches!(check.outcome, Outcome::Within | Outcome::CannotTell);
        Self {
            limit,
            passed: !checks.iter().any(failed) && checks.iter().any(measured),
            checks,
        }
    }

    /// Sentences for people: what failed, and what could not be told.
    pub fn findings(&self) -> Vec<String> {
        let limit = format!("{}%", (self.limit * 1e4).round() / 1e2);
        let mut lines: Vec<String> = self
            .checks
            .iter()
            .filter_map(|check| {
                let name = format!("{}: {}", check.record, check.workload);
                let interval = check.ratio.as_ref().map(super::text::interval).unwrap_or_default();
                Some(match check.outcome {
                    Outcome::Within => return None,
                    Outcome::Slower => format!("{name}: slower than the {limit} allowed: {interval}"),
                    Outcome::CannotTell => {
                        format!("{name}: cannot rule out more than {limit}: {interval}; a larger --budget can")
                    }
                    Outcome::Wrong => format!("{name}: the results do not agree"),
                    Outcome::NotMeasured => format!("{name}: not measured"),
                })
            })
            .collect();
        if self.checks.is_empty() {
            lines.push("the records have no workload in common".to_owned());
        }
        lines
    }
}

fn of_rows(named: &Named, limit: f64) -> Vec<Check> {
    match &named.record {
        Record::Comparison(comparison) => comparison
            .samples
            .iter()
            .map(|row| Check {
                record: named.name.clone(),
                workload: row.workload.clone(),
                ratio: row.ratio,
                outcome: match &row.ratio {
                    _ if !row.correctness.ok => Outcome::Wrong,
                    Some(ratio) => outcome(ratio, limit),
                    None => Outcome::NotMeasured,
                },
            })
            .collect(),
        Record::Peer(peer) => peer
            .results
            .iter()
            .map(|row| Check {
                record: named.name.clone(),
                workload: row.workload.clone(),
                ratio: None,
                outcome: match row.verified {
                    Some(false) => Outcome::Wrong,
                    _ => Outcome::NotMeasured,
                },
            })
            .collect(),
    }
}

fn outcome(ratio: &Ratio, limit: f64) -> Outcome {
    let most = 1.0 + limit;
    if ratio.low > most {
        Outcome::Slower
    } else if ratio.high > most {
        Outcome::CannotTell
    } else {
        Outcome::Within
    }
}
