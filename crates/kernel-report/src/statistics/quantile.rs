//! Quantiles, and the figures that describe one arm's samples.

use serde::{Deserialize, Serialize};

/// The quantile `q` (0 to 1) by linear interpolation between order statistics; `None` for no
/// samples. Sorts in place, so that a caller can keep one buffer.
pub fn quantile(samples: &mut [f64], q: f64) -> Option<f64> {
    samples.sort_unstable_by(f64::total_cmp);
    quantile_of_sorted(samples, q)
}

/// As [`quantile`], of samples that are sorted already.
pub fn quantile_of_sorted(sorted: &[f64], q: f64) -> Option<f64> {
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

/// One arm's samples in figures. Times are seconds a call.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Number of samples.
    pub samples: usize,
    /// Least.
    pub minimum: f64,
    /// Quantile 0.05.
    pub p05: f64,
    /// Quantile 0.25.
    pub p25: f64,
    /// Median.
    pub median: f64,
    /// Quantile 0.75.
    pub p75: f64,
    /// Quantile 0.95.
    pub p95: f64,
    /// Greatest.
    pub maximum: f64,
    /// Samples beyond three interquartile ranges outside the quartiles (Tukey's far outliers). They
    /// are counted, and stay in every other figure.
    pub outliers: usize,
}

impl Summary {
    /// The figures of some samples; `None` for none.
    pub fn of(samples: &[f64]) -> Option<Self> {
        let mut sorted = samples.to_vec();
        sorted.sort_unstable_by(f64::total_cmp);
        let at = |q| quantile_of_sorted(&sorted, q);
        let (p25, p75) = (at(0.25)?, at(0.75)?);
        let reach = 3.0 * (p75 - p25);
        Some(Self {
            samples: sorted.len(),
            minimum: at(0.0)?,
            p05: at(0.05)?,
            p25,
            median: at(0.5)?,
            p75,
            p95: at(0.95)?,
            maximum: at(1.0)?,
            outliers: sorted
                .iter()
                .filter(|sample| **sample < p25 - reach || **sample > p75 + reach)
                .count(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_interpolate_between_order_statistics() {
        let mut samples = [4.0, 1.0, 3.0, 2.0];
        assert_eq!(median(&mut samples), Some(2.5));
        assert_eq!(quantile(&mut samples, 0.25), Some(1.75));
        assert_eq!(quantile(&mut samples, 1.0), Some(4.0));
        assert_eq!(median(&mut []), None);
    }

    #[test]
    fn outliers_are_counted_and_kept() {
        let mut samples: Vec<f64> = (0..100).map(|n| 1.0 + f64::from(n) / 1000.0).collect();
        samples.push(9.0);
        let summary = Summary::of(&samples).unwrap();
        assert_eq!((summary.samples, summary.outliers), (101, 1));
        assert!((summary.maximum - 9.0).abs() < 1e-12);
        assert_eq!(Summary::of(&[]), None);
    }
}
