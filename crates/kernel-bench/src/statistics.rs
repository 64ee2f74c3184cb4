//! The statistics behind a verdict: quantiles, and a bootstrap interval for a ratio of medians.
//!
//! Samples of two arms come in pairs taken one right after the other, so slow drift (heat, other
//! load) hits both. The bootstrap therefore resamples pairs, never the arms apart: what the pairs
//! share cancels in the ratio.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

/// Resamples of one bootstrap. The interval's ends then rest on at least 50 resamples each for a
/// confidence of 95%.
const RESAMPLES: usize = 2_000;

/// One pair of times, in seconds, taken one right after the other.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Pair {
    /// Time of arm A.
    pub a: f64,
    /// Time of arm B.
    pub b: f64,
}

/// A ratio with its interval: time of B over time of A, so below 1 means that B is faster.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Ratio {
    /// Median of B over median of A.
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

/// The quantile `q` (0 to 1) by linear interpolation between order statistics; `None` for no
/// samples. Sorts in place, so that a caller can keep one buffer.
pub fn quantile(samples: &mut [f64], q: f64) -> Option<f64> {
    samples.sort_unstable_by(f64::total_cmp);
    quantile_of_sorted(samples, q)
}

fn quantile_of_sorted(sorted: &[f64], q: f64) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    let position = q.clamp(0.0, 1.0) * last as f64;
    let below = position.floor() as usize;
    let above = position.ceil() as usize;
    let weight = position - below as f64;
    Some(sorted[below] * (1.0 - weight) + sorted[above] * weight)
}

/// The median; `None` for no samples.
pub fn median(samples: &mut [f64]) -> Option<f64> {
    quantile(samples, 0.5)
}

/// The ratio of medians with a percentile-bootstrap interval over resampled pairs; `None` with
/// fewer than two pairs or a median of zero.
pub fn ratio_of_medians(pairs: &[Pair], confidence: f64, seed: u64) -> Option<Ratio> {
    overall_ratio(&[pairs], confidence, seed)
}

/// The geometric mean, over several workloads, of their ratios of medians, with a bootstrap
/// interval that resamples the pairs of each workload. The geometric mean is the only mean of
/// ratios that does not depend on which arm is called A (Fleming and Wallace, CACM 1986).
pub fn overall_ratio(workloads: &[&[Pair]], confidence: f64, seed: u64) -> Option<Ratio> {
    if workloads.is_empty() || workloads.iter().any(|pairs| pairs.len() < 2) {
        return None;
    }
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut mean_of = |draw: &mut dyn FnMut(&[Pair], usize, &mut ChaCha8Rng) -> Pair| {
        let mut sum = 0.0;
        for pairs in workloads {
            let (mut a, mut b): (Vec<f64>, Vec<f64>) = (0..pairs.len())
                .map(|index| draw(pairs, index, &mut random))
                .map(|pair| (pair.a, pair.b))
                .unzip();
            sum += ratio(&mut a, &mut b)?.ln();
        }
        Some((sum / workloads.len() as f64).exp())
    };
    let estimate = mean_of(&mut |pairs, index, _| pairs[index])?;
    let mut ratios = Vec::with_capacity(RESAMPLES);
    for _ in 0..RESAMPLES {
        ratios.push(mean_of(&mut |pairs, _, random| {
            pairs[random.random_range(0..pairs.len())]
        })?);
    }
    ratios.sort_unstable_by(f64::total_cmp);
    let tail = (1.0 - confidence) / 2.0;
    Some(Ratio {
        estimate,
        low: quantile_of_sorted(&ratios, tail)?,
        high: quantile_of_sorted(&ratios, 1.0 - tail)?,
        confidence,
    })
}

fn ratio(a: &mut [f64], b: &mut [f64]) -> Option<f64> {
    let below = median(a)?;
    (below > 0.0).then_some(median(b)? / below)
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

/// The noise floor that an A/A control shows: the distance of its interval's farther end from 1.
/// Where the interval leaves 1 out, the machine itself favours a place in the pair, and nothing
/// smaller than that can be told.
pub fn noise_floor(control: &Ratio) -> f64 {
    (control.estimate - 1.0)
        .abs()
        .max(if control.low > 1.0 || control.high < 1.0 {
            (control.high - 1.0).abs().max((control.low - 1.0).abs())
        } else {
            0.0
        })
}

/// The confidence for each of `comparisons` intervals so that all hold together with `confidence`
/// (Bonferroni).
pub fn corrected_confidence(confidence: f64, comparisons: usize) -> f64 {
    1.0 - (1.0 - confidence) / comparisons.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noisy_pairs(count: usize, factor: f64, seed: u64) -> Vec<Pair> {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        (0..count)
            .map(|_| {
                let shared = 1.0 + random.random_range(0.0..0.3);
                let mut own = || 1.0 + random.random_range(-0.02..0.02);
                Pair {
                    a: shared * own(),
                    b: shared * factor * own(),
                }
            })
            .collect()
    }

    #[test]
    fn quantiles_interpolate_between_order_statistics() {
        let mut samples = [4.0, 1.0, 3.0, 2.0];
        assert_eq!(median(&mut samples), Some(2.5));
        assert_eq!(quantile(&mut samples, 0.25), Some(1.75));
        assert_eq!(quantile(&mut samples, 1.0), Some(4.0));
        assert_eq!(median(&mut []), None);
    }

    #[test]
    fn equal_arms_are_called_different_in_at_most_one_run_of_twenty() {
        let wrong = (0..200)
            .filter(|seed| {
                let ratio = ratio_of_medians(&noisy_pairs(60, 1.0, *seed), 0.95, *seed).unwrap();
                verdict(&ratio, 0.0) != Verdict::NoDifference
            })
            .count();
        assert!(
            wrong <= 16,
            "{wrong} of 200 runs called equal arms different"
        );
    }

    #[test]
    fn a_slowdown_far_beyond_the_noise_is_found() {
        let ratio = ratio_of_medians(&noisy_pairs(200, 1.5, 7), 0.95, 7).unwrap();
        assert!(ratio.low <= 1.5 && 1.5 <= ratio.high, "{ratio:?}");
        assert_eq!(verdict(&ratio, 0.0), Verdict::Slower);
        let swapped: Vec<Pair> = noisy_pairs(200, 1.5, 7)
            .iter()
            .map(|pair| Pair {
                a: pair.b,
                b: pair.a,
            })
            .collect();
        let ratio = ratio_of_medians(&swapped, 0.95, 7).unwrap();
        assert_eq!(verdict(&ratio, 0.0), Verdict::Faster);
    }

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
    }

    #[test]
    fn a_control_off_one_raises_the_noise_floor() {
        let centred = Ratio {
            estimate: 1.01,
            low: 0.98,
            high: 1.02,
            confidence: 0.95,
        };
        let biased = Ratio {
            estimate: 1.05,
            low: 1.03,
            high: 1.08,
            confidence: 0.95,
        };
        assert!((noise_floor(&centred) - 0.01).abs() < 1e-12);
        assert!((noise_floor(&biased) - 0.08).abs() < 1e-12);
    }

    #[test]
    fn workloads_that_cancel_out_have_an_overall_ratio_of_one() {
        let (slower, faster) = (noisy_pairs(100, 2.0, 1), noisy_pairs(100, 0.5, 2));
        let ratio = overall_ratio(&[&slower, &faster], 0.95, 3).unwrap();
        assert!((ratio.estimate - 1.0).abs() < 0.02, "{ratio:?}");
        assert!(ratio.low < 1.0 && 1.0 < ratio.high, "{ratio:?}");
    }

    #[test]
    fn too_few_pairs_give_no_ratio() {
        assert_eq!(ratio_of_medians(&[Pair { a: 1.0, b: 1.0 }], 0.95, 0), None);
    }
}
