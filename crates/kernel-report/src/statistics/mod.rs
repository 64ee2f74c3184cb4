//! The statistics behind a verdict.
//!
//! Samples of the arms come in rounds taken one right after the other, so slow drift (heat, other
//! load) hits all of them. Every estimate here is therefore of the ratio within a round, and the
//! bootstrap resamples rounds, in blocks of neighbours, never the arms apart: what a round shares
//! cancels, and what neighbouring rounds share is not taken for independent evidence.

mod bootstrap;
mod drift;
mod multiple;
mod quantile;

use serde::{Deserialize, Serialize};

pub use bootstrap::{Distribution, RESAMPLES};
pub use drift::Drift;
pub use multiple::{Judged, judge_together};
pub use quantile::{Summary, median, quantile, quantile_of_sorted};

/// A ratio with its interval: time of B over time of A, so below 1 means that B is faster.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Ratio {
    /// The median, over rounds, of the time of B over the time of A.
    pub estimate: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
    /// Confidence of the interval, between 0 and 1.
    pub confidence: f64,
}

/// What may be said of B against A.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verdict {
    /// The whole interval lies below 1, by more than the noise floor.
    #[serde(rename = "faster")]
    Faster,
    /// The whole interval lies above 1, by more than the noise floor.
    #[serde(rename = "slower")]
    Slower,
    /// The interval contains 1, or lies within the noise floor.
    #[serde(rename = "no difference")]
    NoDifference,
}

impl std::fmt::Display for Verdict {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Self::Faster => "faster",
            Self::Slower => "slower",
            Self::NoDifference => "no difference",
        })
    }
}

/// The verdict on B: by the interval, never by the estimate alone, and only beyond the noise
/// floor (the relative distance from 1 that the A/A control of the same run showed).
pub fn verdict(ratio: &Ratio, noise_floor: f64) -> Verdict {
    if ratio.high < 1.0 - noise_floor {
        Verdict::Faster
    } else if ratio.low > 1.0 + noise_floor {
        Verdict::Slower
    } else {
        Verdict::NoDifference
    }
}

/// The noise floor that an A/A control shows: the distance from 1 of the farther end of its interval.
/// So large a difference could this run show between two arms that are equal, so nothing smaller is one.
pub fn noise_floor(control: &Ratio) -> f64 {
    (control.low - 1.0).abs().max((control.high - 1.0).abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    const CENTRED: Ratio = Ratio {
        estimate: 1.01,
        low: 0.98,
        high: 1.02,
        confidence: 0.95,
    };

    #[test]
    fn a_difference_within_the_noise_floor_is_no_verdict() {
        let ratio = Ratio {
            estimate: 1.02,
            low: 1.01,
            high: 1.03,
            confidence: 0.95,
        };
        assert_eq!(verdict(&ratio, 0.05), Verdict::NoDifference);
        assert_eq!(verdict(&ratio, 0.005), Verdict::Slower);
        let ratio = Ratio {
            estimate: 0.98,
            low: 0.97,
            high: 0.99,
            confidence: 0.95,
        };
        assert_eq!(verdict(&ratio, 0.005), Verdict::Faster);
        assert_eq!(verdict(&CENTRED, 0.0), Verdict::NoDifference);
    }

    #[test]
    fn the_noise_floor_is_the_farther_end_of_the_control() {
        let biased = Ratio {
            estimate: 1.05,
            low: 1.03,
            high: 1.08,
            confidence: 0.95,
        };
        assert!((noise_floor(&CENTRED) - 0.02).abs() < 1e-12);
        assert!((noise_floor(&biased) - 0.08).abs() < 1e-12);
    }
}
