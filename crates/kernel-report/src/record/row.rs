//! One workload: the two arms' samples, and what they give.

use serde::{Deserialize, Serialize};

use super::Limits;
use crate::correctness::Correctness;
use crate::statistics::{Distribution, Drift, Ratio, Summary, Verdict};

/// Samples of all arms, in the order of the rounds. Times are seconds a call.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Samples {
    /// First call of A: compile and set-up included. No part of any other figure.
    pub first_call_a: f64,
    /// First call of B: compile and set-up included. No part of any other figure.
    pub first_call_b: f64,
    /// Calls that one sample of A spans.
    pub batch_a: usize,
    /// Calls that one sample of B spans.
    pub batch_b: usize,
    /// A, one time a round.
    pub a: Vec<f64>,
    /// B, one time a round.
    pub b: Vec<f64>,
    /// The control: A once more, one time a round.
    pub control: Vec<f64>,
    /// The first round of each set of processes, where rounds were taken in several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub starts: Vec<usize>,
    /// Whether it ended early because the user asked for it.
    pub cut_short: bool,
}

impl Samples {
    /// These, and then those of another set of processes. First calls and batches stay those of the first
    /// set.
    #[must_use]
    pub fn then(mut self, next: &Self) -> Self {
        if self.starts.is_empty() {
            self.starts.push(0);
        }
        self.starts.push(self.a.len());
        self.a.extend(&next.a);
        self.b.extend(&next.b);
        self.control.extend(&next.control);
        self.cut_short |= next.cut_short;
        self
    }

    /// The ratio of B over A, `None` where there are too few samples for one.
    pub fn ratio(&self, seed: u64) -> Option<Distribution> {
        self.over_a(&self.b, seed)
    }

    /// The ratio of the control over A, which is 1 but for what this run cannot tell apart.
    pub fn control_ratio(&self, seed: u64) -> Option<Distribution> {
        self.over_a(&self.control, seed)
    }

    fn over_a(&self, times: &[f64], seed: u64) -> Option<Distribution> {
        if !self.starts.is_empty() {
            return Distribution::of_ratios_in_sets(&self.a, times, &self.starts, seed);
        }
        if !self.cut_short {
            return Distribution::of_ratios(&self.a, times, seed);
        }
        // Who stopped a run does not wait for its statistics: fewer rounds give a wider interval sooner.
        let step = self.a.len().div_ceil(MOST_ROUNDS_IN_HASTE).max(1);
        let thinned = |times: &[f64]| times.iter().copied().step_by(step).collect::<Vec<_>>();
        Distribution::of_ratios(&thinned(&self.a), &thinned(times), seed)
    }
}

/// What a call has to do whatever the implementation: the roofline's axes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Work {
    /// Floating-point operations a call; a multiplication with an addition counts as two.
    pub flops: f64,
    /// Bytes a call has to read and write at least: inputs, weights and outputs once.
    pub bytes: f64,
}

impl Work {
    /// Least seconds that a machine of these limits needs.
    pub fn least_seconds(&self, limits: &Limits) -> f64 {
        (self.flops / limits.flops_per_s).max(self.bytes / limits.bytes_per_s)
    }
}

/// What a compiler says of one arm.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ArmEstimate {
    /// Cycles of the chip.
    pub cycles: Option<f64>,
    /// Seconds, from cycles and clock.
    pub seconds: Option<f64>,
    /// Bytes between the chip's memory and its core.
    pub bytes: Option<f64>,
}

/// A compiler's figures for a chip that is not here.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// The chip.
    pub target: String,
    /// How the figures came about.
    pub method: String,
    /// Arm A.
    pub a: ArmEstimate,
    /// Arm B.
    pub b: ArmEstimate,
    /// The chip's own limits.
    pub limits: Option<Limits>,
}

impl Estimate {
    /// Time of B over time of A.
    pub fn ratio(&self) -> Option<f64> {
        let of = |a: Option<f64>, b: Option<f64>| a.filter(|a| *a > 0.0).and_then(|a| Some(b? / a));
        of(self.a.seconds, self.b.seconds).or_else(|| of(self.a.cycles, self.b.cycles))
    }
}

/// One row: the two arms on one workload.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The workload, for people: an op with its sizes, a layer, or a phase of a model.
    pub workload: String,
    /// Whether B computes what A computes.
    pub correctness: Correctness,
    /// Times; absent where the arms do not agree.
    pub measurement: Option<Samples>,
    /// Ratio of B over A; absent where nothing can be said.
    pub ratio: Option<Ratio>,
    /// The relative difference that the A/A control of this row shows.
    pub noise_floor: Option<f64>,
    /// The verdict on B; absent where nothing can be said.
    pub verdict: Option<Verdict>,
    /// Compiles within the timed span; more than none makes the timing void.
    pub compiles_in_span: usize,
    /// Times of an arm that runs in Pallas' interpret mode: they show that it works, and say nothing
    /// about speed.
    #[serde(default)]
    pub functional: bool,
    /// How the machine changed during the row.
    #[serde(default)]
    pub drift: Option<Drift>,
    /// Tokens that a call handles, where that is a rate worth telling.
    #[serde(default)]
    pub tokens: Option<f64>,
    /// What a call has to do at least.
    #[serde(default)]
    pub work: Option<Work>,
    /// What the machine could do with work of this size in these caches, where that is not what
    /// `environment.limits` says.
    #[serde(default)]
    pub limits: Option<Limits>,
    /// A compiler's figures in place of times.
    #[serde(default)]
    pub estimate: Option<Estimate>,
    /// Why there is no timing or verdict.
    pub reason: Option<String>,
    /// What a reader should know before trusting the row.
    #[serde(default)]
    pub warnings: Vec<String>,
    /// Bootstraps of the ratio and of the control, once made: they take long, and a verdict over many
    /// rows must not have to wait for them.
    #[serde(skip)]
    bootstraps: Option<(Distribution, Distribution)>,
}

/// Seed of the bootstrap of controls: another one than that of the ratios, so that what moves one
/// interval by chance does not move the other.
const CONTROL: u64 = 0x5eed;
/// Rounds that the interval of a stopped run comes from.
const MOST_ROUNDS_IN_HASTE: usize = 500;

impl Row {
    /// A row whose arms were compared and not yet timed.
    pub fn new(workload: String, correctness: Correctness) -> Self {
        Self {
            workload,
            correctness,
            measurement: None,
            ratio: None,
            noise_floor: None,
            verdict: None,
            compiles_in_span: 0,
            functional: false,
            drift: None,
            tokens: None,
            work: None,
            limits: None,
            estimate: None,
            reason: None,
            warnings: Vec::new(),
            bootstraps: None,
        }
    }

    /// The same row without timing, and why.
    #[must_use]
    pub fn untimed(self, reason: impl Into<String>) -> Self {
        Self {
            reason: Some(reason.into()),
            ..self
        }
    }

    /// The same row with its samples, and with the compiles that fell into their span. `seed` is that
    /// of the bootstrap.
    #[must_use]
    pub fn timed(self, samples: Samples, compiles_in_span: usize, seed: u64) -> Self {
        let mut row = Self {
            drift: Drift::of(&samples.a),
            measurement: Some(samples),
            compiles_in_span,
            ..self
        };
        if row.may_be_judged() {
            row.bootstraps = row.resampled(seed);
        }
        row.warnings
            .extend(row.drift.and_then(|drift| drift.warning()));
        if row.functional {
            row.reason =
                Some("functional only: Pallas' interpret mode says nothing about speed".into());
        } else if compiles_in_span > 0 {
            row.reason = Some(format!(
                "{compiles_in_span} {} within the timed span",
                if compiles_in_span == 1 {
                    "compile"
                } else {
                    "compiles"
                }
            ));
        }
        row
    }

    /// Whether the samples may be judged at all.
    pub(super) fn may_be_judged(&self) -> bool {
        self.correctness.ok && !self.functional && self.compiles_in_span == 0
    }

    /// The ratio of B over A, and of the control over A.
    pub(super) fn bootstraps(&self) -> Option<&(Distribution, Distribution)> {
        self.bootstraps.as_ref()
    }

    fn resampled(&self, seed: u64) -> Option<(Distribution, Distribution)> {
        let samples = self.measurement.as_ref()?;
        Some((samples.ratio(seed)?, samples.control_ratio(seed ^ CONTROL)?))
    }

    /// The limits that hold for this row: those of the estimate's chip, its own, or the machine's.
    pub fn limits<'a>(&'a self, machine: Option<&'a Limits>) -> Option<&'a Limits> {
        let of_chip = self
            .estimate
            .as_ref()
            .map(|estimate| estimate.limits.as_ref());
        match of_chip {
            Some(limits) => limits,
            None => self.limits.as_ref().or(machine),
        }
    }

    /// Seconds that A and B take: medians, or a compiler's figures.
    pub fn centres(&self) -> (Option<f64>, Option<f64>) {
        if let Some(estimate) = &self.estimate {
            return (estimate.a.seconds, estimate.b.seconds);
        }
        let median = |summary: Option<Summary>| summary.map(|summary| summary.median);
        (median(self.summary_a()), median(self.summary_b()))
    }

    /// Figures of A; the control is no part of them.
    pub fn summary_a(&self) -> Option<Summary> {
        Summary::of(&self.measurement.as_ref()?.a)
    }

    /// Figures of B.
    pub fn summary_b(&self) -> Option<Summary> {
        Summary::of(&self.measurement.as_ref()?.b)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_time_is_that_of_the_scarcer_resource() {
        let limits = Limits {
            flops_per_s: 100.0,
            bytes_per_s: 10.0,
            method: String::new(),
        };
        let of = |flops, bytes| Work { flops, bytes }.least_seconds(&limits);
        assert!((of(100.0, 1.0) - 1.0).abs() < 1e-12);
        assert!((of(100.0, 50.0) - 5.0).abs() < 1e-12);
    }
}
