//! Distributions as one line of block characters each.

use crate::statistics::quantile_of_sorted;

const BLOCKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Histograms of several arms over one axis, so that they can be laid under each other. The axis goes
/// from the least sample to quantile 0.98 of all; what lies beyond is counted in the last column.
pub fn histogram<const N: usize>(arms: [&[f64]; N], width: usize) -> [String; N] {
    let mut all: Vec<f64> = arms.iter().flat_map(|arm| arm.iter().copied()).collect();
    all.sort_unstable_by(f64::total_cmp);
    let (Some(low), Some(high)) = (all.first().copied(), quantile_of_sorted(&all, 0.98)) else {
        return arms.map(|_| String::new());
    };
    arms.map(|arm| {
        let mut counts = vec![0_usize; width];
        for sample in arm {
            let place = if high > low {
                (sample - low) / (high - low) * width as f64
            } else {
                0.0
            };
            counts[(place as usize).min(width - 1)] += 1;
        }
        let most = counts.iter().copied().max().unwrap_or(0).max(1);
        counts
            .into_iter()
            .map(|count| match count {
                0 => ' ',
                _ => {
                    BLOCKS[(count * (BLOCKS.len() - 1))
                        .div_ceil(most)
                        .min(BLOCKS.len() - 1)]
                }
            })
            .collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arms_share_an_axis_and_the_most_frequent_place_is_the_highest() {
        let a = [1.0, 1.0, 1.0, 1.0, 2.0];
        let b = [3.0, 3.0, 4.0];
        let [a, b] = histogram([&a, &b], 4);
        assert_eq!((a.as_str(), b.as_str()), ("█▃  ", "  █▅"));
    }

    #[test]
    fn equal_samples_and_none_at_all_are_drawn_too() {
        assert_eq!(histogram([&[1.0, 1.0]], 3), ["█  ".to_owned()]);
        assert_eq!(histogram([&[]], 3), [String::new()]);
    }
}
