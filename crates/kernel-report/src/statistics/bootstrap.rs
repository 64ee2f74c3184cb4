//! The bootstrap distribution of a median over rounds.
//!
//! Rounds are resampled in blocks of neighbours (circular block bootstrap, Politis and Romano 1992):
//! what disturbs a machine lasts longer than a round, so neighbours are no independent evidence, and
//! an interval from single rounds would be too narrow. The values are sorted once; a resample is
//! then only a count of how often each was drawn, and its median one walk over the counts.
//!
//! With few blocks the spread of the resamples is itself known badly, and on the whole too small. So
//! each resample is set off by as much as a spread from so many blocks may be off, which gives
//! intervals the tails of Student's t with one degree of freedom less than there are blocks.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::Ratio;
use super::quantile::{median, quantile_of_sorted};

/// Resamples of one bootstrap. The ends of an interval of 95% then rest on 100 resamples each, and
/// those of one that is corrected for 20 comparisons on 5.
pub const RESAMPLES: usize = 4_000;

/// Fewest values that an interval can come from.
const FEWEST: usize = 5;
/// Fewest sets of processes that an interval can come from.
const FEWEST_SETS: usize = 3;

/// A median of logarithms (of times, or of ratios of times) and how it would vary.
#[derive(Debug, Clone, PartialEq)]
pub struct Distribution {
    estimate: f64,
    resamples: Vec<f64>,
}

impl Distribution {
    /// Of the ratios `b / a` of rounds; `None` for fewer than five rounds or a time that is not
    /// positive.
    pub fn of_ratios(a: &[f64], b: &[f64], seed: u64) -> Option<Self> {
        let logarithms: Vec<f64> = a.iter().zip(b).map(|(a, b)| (b / a).ln()).collect();
        Self::of_logarithms(&logarithms, seed)
    }

    /// Of the ratios of rounds in several sets of processes, of which each began at a round of `starts`.
    ///
    /// Memory is laid out anew in each process, which makes one a little faster than another on the same
    /// code; no number of rounds averages that out. So the unit is the set (Kalibera and Jones, ISMM
    /// 2013): the estimate is the mean of the sets' medians, and varies as Student's t has it. `None`
    /// for fewer than three sets.
    pub fn of_ratios_in_sets(a: &[f64], b: &[f64], starts: &[usize], seed: u64) -> Option<Self> {
        let ratios: Vec<f64> = a.iter().zip(b).map(|(a, b)| (b / a).ln()).collect();
        let ends = starts.iter().skip(1).copied().chain([ratios.len()]);
        let medians = starts
            .iter()
            .zip(ends)
            .map(|(start, end)| median(&mut ratios.get(*start..end)?.to_vec()))
            .collect::<Option<Vec<f64>>>()?;
        if medians.len() < FEWEST_SETS || medians.iter().any(|value| !value.is_finite()) {
            return None;
        }
        let count = medians.len() as f64;
        let estimate = medians.iter().sum::<f64>() / count;
        let squares: f64 = medians.iter().map(|one| (one - estimate).powi(2)).sum();
        // With the spread about their own mean, as of a resample: `spread_factor` makes Student's t of it.
        let error = (squares / count).sqrt() / count.sqrt();
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let resamples = (0..RESAMPLES)
            .map(|_| {
                let normal = standard_normal(&mut random);
                estimate + error * normal * spread_factor(count, &mut random)
            })
            .collect();
        Some(Self {
            estimate,
            resamples,
        })
    }

    /// Of the times of one arm.
    pub fn of_times(times: &[f64], seed: u64) -> Option<Self> {
        let logarithms: Vec<f64> = times.iter().map(|time| time.ln()).collect();
        Self::of_logarithms(&logarithms, seed)
    }

    /// Of a mean and its standard error, where the samples were not kept: normal, on the logarithm.
    pub fn of_mean(mean: f64, standard_error: f64, seed: u64) -> Option<Self> {
        if !(mean > 0.0 && mean.is_finite() && standard_error >= 0.0) {
            return None;
        }
        let (estimate, spread) = (mean.ln(), standard_error / mean);
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let resamples = (0..RESAMPLES)
            .map(|_| estimate + spread * standard_normal(&mut random))
            .collect();
        Some(Self {
            estimate,
            resamples,
        })
    }

    fn of_logarithms(values: &[f64], seed: u64) -> Option<Self> {
        let count = values.len();
        if count < FEWEST || values.iter().any(|value| !value.is_finite()) {
            return None;
        }
        let mut order: Vec<usize> = (0..count).collect();
        order.sort_unstable_by(|one, other| values[*one].total_cmp(&values[*other]));
        let mut rank = vec![0_usize; count];
        for (place, index) in order.iter().enumerate() {
            rank[*index] = place;
        }
        let sorted: Vec<f64> = order.iter().map(|index| values[*index]).collect();
        let block = block_length(count);
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let mut drawn = vec![0_u32; count];
        let estimate = median(&mut values.to_vec())?;
        let blocks = count as f64 / block as f64;
        let resamples = (0..RESAMPLES)
            .map(|_| {
                drawn.fill(0);
                let mut left = count;
                while left > 0 {
                    let start = random.random_range(0..count);
                    for step in 0..block.min(left) {
                        drawn[rank[(start + step) % count]] += 1;
                    }
                    left -= block.min(left);
                }
                let resample = median_of_counts(&sorted, &drawn);
                estimate + (resample - estimate) * spread_factor(blocks, &mut random)
            })
            .collect();
        Some(Self {
            estimate,
            resamples,
        })
    }

    /// The geometric mean of several ratios: the only mean of ratios that does not depend on which
    /// arm is called A (Fleming and Wallace, CACM 1986). `None` for none.
    pub fn geometric_mean(of: &[&Self]) -> Option<Self> {
        let count = of.len() as f64;
        (!of.is_empty()).then(|| Self {
            estimate: of.iter().map(|one| one.estimate).sum::<f64>() / count,
            resamples: (0..RESAMPLES)
                .map(|index| of.iter().map(|one| one.resamples[index]).sum::<f64>() / count)
                .collect(),
        })
    }

    /// The ratio of this to another that was measured independently of it, such as in another run.
    #[must_use]
    pub fn over(&self, other: &Self) -> Self {
        // Both hold their resamples in the order drawn. Where both came from one seed, equal places
        // would go together, so one is shifted by half.
        let shifted = other.resamples.iter().cycle().skip(RESAMPLES / 2);
        Self {
            estimate: self.estimate - other.estimate,
            resamples: self
                .resamples
                .iter()
                .zip(shifted)
                .map(|(one, other)| one - other)
                .collect(),
        }
    }

    /// The value: a ratio, or seconds.
    pub fn estimate(&self) -> f64 {
        self.estimate.exp()
    }

    /// The interval of the given confidence.
    pub fn interval(&self, confidence: f64) -> Ratio {
        let mut sorted = self.resamples.clone();
        sorted.sort_unstable_by(f64::total_cmp);
        let tail = (1.0 - confidence) / 2.0;
        let end = |q: f64| {
            quantile_of_sorted(&sorted, q)
                .unwrap_or(self.estimate)
                .exp()
        };
        Ratio {
            estimate: self.estimate(),
            low: end(tail),
            high: end(1.0 - tail),
            confidence,
        }
    }

    /// Two-sided p value of "the ratio lies within `floor` of 1": the share of resamples on the
    /// wrong side, never 0, because more resamples might have found one.
    pub fn p_value(&self, floor: f64) -> f64 {
        let (low, high) = ((1.0 - floor).ln(), (1.0 + floor).ln());
        let not_slower = self
            .resamples
            .iter()
            .filter(|value| **value <= high)
            .count();
        let not_faster = self.resamples.iter().filter(|value| **value >= low).count();
        let share = |count: usize| (count as f64 + 1.0) / (RESAMPLES as f64 + 1.0);
        (2.0 * share(not_slower).min(share(not_faster))).min(1.0)
    }
}

/// Neighbours that stay together: the cube root of the number of rounds is the order that minimises
/// the error of such a variance (Hall, Horowitz and Jing 1995); the factor 2 leaves room for
/// disturbances that last several rounds.
fn block_length(count: usize) -> usize {
    ((2.0 * (count as f64).cbrt()).ceil() as usize).clamp(1, count.div_ceil(5))
}

/// What a spread that was estimated from so many blocks has to be multiplied by: a draw of
/// `sqrt(n / (n - 1))` (the spread is taken about their own mean) over `sqrt(chi2 / (n - 1))`, with
/// chi squared by the cube of a normal (Wilson and Hilferty 1931).
fn spread_factor(blocks: f64, random: &mut ChaCha8Rng) -> f64 {
    let freedom = (blocks - 1.0).max(1.0);
    let variance = 2.0 / (9.0 * freedom);
    let root = 1.0 - variance + variance.sqrt() * standard_normal(random);
    // Below, the cube leaves the region where it follows chi squared; 0.3 is one draw in thousands.
    let chi_squared = root.max(0.3).powi(3);
    (blocks / freedom / chi_squared).sqrt()
}

fn median_of_counts(sorted: &[f64], drawn: &[u32]) -> f64 {
    let total: u32 = drawn.iter().sum();
    let (lower, upper) = ((total - 1) / 2, total / 2);
    let mut passed = 0;
    let mut first = None;
    for (value, count) in sorted.iter().zip(drawn) {
        passed += count;
        if first.is_none() && passed > lower {
            first = Some(*value);
        }
        if passed > upper {
            return first.unwrap_or(*value).midpoint(*value);
        }
    }
    sorted.last().copied().unwrap_or_default()
}

/// Box and Muller.
fn standard_normal(random: &mut ChaCha8Rng) -> f64 {
    let radius = (-2.0 * (1.0 - random.random::<f64>()).ln()).sqrt();
    radius * (std::f64::consts::TAU * random.random::<f64>()).cos()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resample_that_draws_each_value_once_has_the_median_of_the_values() {
        assert!((median_of_counts(&[1.0, 2.0, 3.0, 10.0], &[1; 4]) - 2.5).abs() < 1e-12);
        assert!((median_of_counts(&[1.0, 2.0, 3.0], &[1; 3]) - 2.0).abs() < 1e-12);
        assert!((median_of_counts(&[1.0, 2.0, 3.0], &[0, 0, 4]) - 3.0).abs() < 1e-12);
    }

    #[test]
    fn too_few_rounds_and_times_of_zero_give_no_distribution() {
        assert_eq!(Distribution::of_times(&[1.0; 4], 0), None);
        assert_eq!(Distribution::of_ratios(&[0.0; 9], &[1.0; 9], 0), None);
        assert!(Distribution::of_times(&[1.0; 5], 0).is_some());
    }

    #[test]
    fn the_interval_of_sets_of_processes_is_that_of_student() {
        // Medians of the sets: ln(B / A) = -1%, 0, 1%, 2%, 3%; standard error 0.707%, t(4) 2.776.
        let medians = [-0.01_f64, 0.0, 0.01, 0.02, 0.03];
        let b: Vec<f64> = medians.iter().flat_map(|one| [one.exp(); 50]).collect();
        let starts = [0, 50, 100, 150, 200];
        let interval = Distribution::of_ratios_in_sets(&[1.0; 250], &b, &starts, 1)
            .unwrap()
            .interval(0.95);
        let half = 2.776 * 0.00707;
        assert!((interval.estimate - 0.01_f64.exp()).abs() < 1e-9);
        assert!(
            (interval.low.ln() - (0.01 - half)).abs() < 1.5e-3,
            "{interval:?}"
        );
        assert!(
            (interval.high.ln() - (0.01 + half)).abs() < 1.5e-3,
            "{interval:?}"
        );
    }

    #[test]
    fn two_sets_of_processes_or_an_empty_one_give_no_distribution() {
        let of = |starts: &[usize]| {
            Distribution::of_ratios_in_sets(&[1.0; 9], &[1.0; 9], starts, 0).is_some()
        };
        assert!(of(&[0, 3, 6]));
        assert!(!of(&[0, 3]) && !of(&[0, 3, 9]) && !of(&[0, 3, 10]) && !of(&[0, 6, 3]));
    }

    #[test]
    fn a_mean_without_samples_has_the_interval_of_its_standard_error() {
        let interval = Distribution::of_mean(2.0, 0.04, 1).unwrap().interval(0.95);
        assert!(
            (interval.low / (2.0 * (-0.0392_f64).exp()) - 1.0).abs() < 4e-3,
            "{interval:?}"
        );
        assert!(
            (interval.high / (2.0 * 0.0392_f64.exp()) - 1.0).abs() < 4e-3,
            "{interval:?}"
        );
    }

    #[test]
    fn the_ratio_of_a_distribution_to_itself_is_one() {
        let one = Distribution::of_mean(2.0, 0.1, 1).unwrap();
        let ratio = one.over(&one).interval(0.95);
        assert!((ratio.estimate - 1.0).abs() < 1e-12);
        // As wide as that of two independent runs: 1.96 x 5% x sqrt(2).
        assert!((ratio.high - 1.149).abs() < 0.02, "{ratio:?}");
    }
}
