//! Several comparisons at once (Holm 1979): the more shapes are compared, the more certain each
//! verdict has to be, or one of them is wrong by chance.

use super::{Distribution, Ratio, Verdict, verdict};

/// One comparison of several, judged.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Judged {
    /// The ratio, with an interval of the confidence that this comparison needs.
    pub ratio: Ratio,
    /// The verdict that the interval gives.
    pub verdict: Verdict,
}

/// Judges comparisons, each with its noise floor, so that the probability of any wrong verdict among
/// them stays below `1 - confidence`.
///
/// The clearest comparison has to hold at `1 - (1 - confidence) / n`, the next at
/// `1 - (1 - confidence) / (n - 1)`, and so on; after the first that does not hold, no other may.
pub fn judge_together(comparisons: &[(&Distribution, f64)], confidence: f64) -> Vec<Judged> {
    let error = 1.0 - confidence;
    let p_values: Vec<f64> = comparisons
        .iter()
        .map(|(distribution, floor)| distribution.p_value(*floor))
        .collect();
    let mut order: Vec<usize> = (0..comparisons.len()).collect();
    order.sort_by(|one, other| p_values[*one].total_cmp(&p_values[*other]));
    let mut judged: Vec<Option<Judged>> = vec![None; comparisons.len()];
    let mut stopped_at = None;
    for (place, index) in order.into_iter().enumerate() {
        let (distribution, floor) = comparisons[index];
        let left = comparisons.len() - stopped_at.unwrap_or(place);
        let ratio = distribution.interval(1.0 - error / left as f64);
        let verdict = match stopped_at {
            None => verdict(&ratio, floor),
            Some(_) => Verdict::NoDifference,
        };
        if verdict == Verdict::NoDifference && stopped_at.is_none() {
            stopped_at = Some(place);
        }
        judged[index] = Some(Judged { ratio, verdict });
    }
    judged.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A ratio whose logarithm is normal.
    fn ratio(estimate: f64, spread: f64) -> Distribution {
        Distribution::of_mean(estimate, spread * estimate, 7).unwrap()
    }

    #[test]
    fn the_clearest_needs_the_highest_confidence_and_the_next_a_lower_one() {
        let (clear, close) = (ratio(1.5, 0.01), ratio(1.021, 0.01));
        let judged = judge_together(&[(&close, 0.0), (&clear, 0.0)], 0.95);
        assert!((judged[1].ratio.confidence - 0.975).abs() < 1e-12);
        assert!((judged[0].ratio.confidence - 0.95).abs() < 1e-12);
        assert_eq!(
            (judged[0].verdict, judged[1].verdict),
            (Verdict::Slower, Verdict::Slower)
        );
    }

    #[test]
    fn what_holds_alone_may_not_hold_among_many() {
        let close = ratio(1.021, 0.01);
        assert_eq!(
            judge_together(&[(&close, 0.0)], 0.95)[0].verdict,
            Verdict::Slower
        );
        let many: Vec<_> = (0..20).map(|_| (&close, 0.0)).collect();
        for judged in judge_together(&many, 0.95) {
            assert_eq!(judged.verdict, Verdict::NoDifference);
            assert!((judged.ratio.confidence - 0.9975).abs() < 1e-12);
        }
    }

    #[test]
    fn nothing_compared_is_nothing_judged() {
        assert_eq!(judge_together(&[], 0.95), []);
    }
}
