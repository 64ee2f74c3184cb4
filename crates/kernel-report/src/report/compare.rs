//! Several records against the first of them: before and after, machine and machine.

use std::collections::BTreeMap;

use serde::Serialize;

use super::Named;
use crate::record::{Comparison, PeerRecord, Record, Row};
use crate::statistics::{Distribution, Ratio, Verdict, judge_together};

/// What a change was computed from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Basis {
    /// Both runs measured B against the same A: the machine's state cancels.
    AgainstTheSameA,
    /// Times of B, in two runs on one kind of machine: the machine's state is part of the change.
    Times,
    /// Times of B, on two kinds of machines: the change is that of the machines, too.
    TimesOfTwoMachines,
    /// Means that `kernels benchmark` wrote, without samples: outliers and the machine's state are part
    /// of the change.
    Means,
    /// A compiler's figures.
    Estimates,
}

impl Basis {
    /// For a table.
    pub fn words(self) -> &'static str {
        match self {
            Self::AgainstTheSameA => "B / A of each run",
            Self::Times => "times of B in two runs",
            Self::TimesOfTwoMachines => "times of B on two machines",
            Self::Means => "means without samples",
            Self::Estimates => "estimates",
        }
    }
}

/// One workload of two records.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Change {
    /// The workload.
    pub workload: String,
    /// Name of the first record.
    pub before: String,
    /// Name of the second record.
    pub after: String,
    /// Second over first: below 1 is faster.
    pub ratio: Ratio,
    /// What may be said; for estimates always "no difference".
    pub verdict: Verdict,
    /// What it was computed from.
    pub basis: Basis,
}

/// One workload as a record tells it.
struct Observed<'a> {
    row: Option<&'a Row>,
    /// Time of B.
    time: Option<Distribution>,
    /// B over A.
    ratio: Option<Distribution>,
    floor: f64,
    is_mean: bool,
}

/// Seed of bootstraps here: a report of the same files says the same each time.
const SEED: u64 = 0;

/// Every later record against the first, on the workloads that both have. All verdicts hold together
/// with the given confidence.
pub fn changes(records: &[Named], confidence: f64) -> Vec<Change> {
    let Some((first, others)) = records.split_first() else {
        return Vec::new();
    };
    let before = observed(&first.record);
    let mut found = Vec::new();
    for other in others {
        let after = observed(&other.record);
        // In the order of the first record.
        for workload in workloads(&first.record) {
            let (Some(before), Some(after)) = (before.get(workload), after.get(workload)) else {
                continue;
            };
            if let Some((ratio, basis)) = change(before, after, &first.record, &other.record) {
                let floor = before.floor + after.floor;
                found.push((workload.to_owned(), other.name.clone(), ratio, floor, basis));
            }
        }
    }
    let comparisons: Vec<_> = found
        .iter()
        .map(|(_, _, ratio, floor, _)| (ratio, *floor))
        .collect();
    judge_together(&comparisons, confidence)
        .into_iter()
        .zip(&found)
        .map(|(judged, (workload, after, _, _, basis))| Change {
            workload: workload.clone(),
            before: first.name.clone(),
            after: after.clone(),
            ratio: judged.ratio,
            verdict: judged.verdict,
            basis: *basis,
        })
        .collect()
}

fn change(
    before: &Observed<'_>,
    after: &Observed<'_>,
    first: &Record,
    second: &Record,
) -> Option<(Distribution, Basis)> {
    if let (Record::Comparison(first), Record::Comparison(second)) = (first, second)
        && first.a.same_code(&second.a)
        && let (Some(one), Some(other)) = (&before.ratio, &after.ratio)
    {
        return Some((other.over(one), Basis::AgainstTheSameA));
    }
    let basis = if before.is_mean || after.is_mean {
        Basis::Means
    } else if let (Record::Comparison(first), Record::Comparison(second)) = (first, second) {
        let estimated = |row: Option<&Row>| row.is_some_and(|row| row.estimate.is_some());
        if estimated(before.row) || estimated(after.row) {
            Basis::Estimates
        } else if first.environment.comparable(&second.environment) {
            Basis::Times
        } else {
            Basis::TimesOfTwoMachines
        }
    } else {
        Basis::Means
    };
    Some((after.time.as_ref()?.over(before.time.as_ref()?), basis))
}

fn workloads(record: &Record) -> Vec<&str> {
    match record {
        Record::Comparison(comparison) => comparison
            .samples
            .iter()
            .map(|row| row.workload.as_str())
            .collect(),
        Record::Peer(peer) => peer
            .results
            .iter()
            .map(|row| row.workload.as_str())
            .collect(),
    }
}

fn observed(record: &Record) -> BTreeMap<&str, Observed<'_>> {
    match record {
        Record::Comparison(comparison) => ours(comparison),
        Record::Peer(peer) => theirs(peer),
    }
}

fn ours(comparison: &Comparison) -> BTreeMap<&str, Observed<'_>> {
    comparison
        .samples
        .iter()
        .map(|row| {
            let usable = row.verdict.is_some();
            let samples = row.measurement.as_ref().filter(|_| usable);
            let observed = Observed {
                row: Some(row),
                time: samples
                    .and_then(|samples| Distribution::of_times(&samples.b, SEED))
                    .or_else(|| {
                        Distribution::of_mean(row.estimate.as_ref()?.b.seconds?, 0.0, SEED)
                    }),
                ratio: samples.and_then(|samples| samples.ratio(SEED)),
                floor: row.noise_floor.unwrap_or_default(),
                is_mean: false,
            };
            (row.workload.as_str(), observed)
        })
        .collect()
}

fn theirs(peer: &PeerRecord) -> BTreeMap<&str, Observed<'_>> {
    peer.results
        .iter()
        .map(|row| {
            let timing = &row.timing_results;
            let error = timing.std_ms / (timing.iterations.max(1) as f64).sqrt();
            let observed = Observed {
                row: None,
                time: Distribution::of_mean(timing.mean_ms / 1e3, error / 1e3, SEED),
                ratio: None,
                floor: 0.0,
                is_mean: true,
            };
            (row.workload.as_str(), observed)
        })
        .collect()
}
