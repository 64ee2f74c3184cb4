//! Whether the machine changed while it was measured: heat, another program, a frequency step.
//!
//! Drift does not move the ratio, because it hits all arms of a round. It moves the times, and it
//! tells a reader that the machine was not quiet.

use serde::{Deserialize, Serialize};

use super::quantile::median;

/// Parts that a run is cut into.
const PARTS: usize = 10;
/// Fewest rounds in a part, so that one odd round is no drift.
const FEWEST_IN_PART: usize = 5;
/// What is said to a reader: less is the everyday variation of a quiet machine.
const WORTH_SAYING: f64 = 0.05;

/// How arm A's own time moved over a run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Drift {
    /// Median of the last third over that of the first third, less 1: positive is slower.
    pub trend: f64,
    /// Slowest tenth over fastest tenth (by their medians), less 1.
    pub spread: f64,
}

impl Drift {
    /// Of times in the order they were taken; `None` where there are too few.
    pub fn of(times: &[f64]) -> Option<Self> {
        if times.len() < PARTS * FEWEST_IN_PART {
            return None;
        }
        let middle = |part: &[f64]| median(&mut part.to_vec());
        let third = times.len() / 3;
        let (first, last) = (
            middle(&times[..third])?,
            middle(&times[times.len() - third..])?,
        );
        let parts: Vec<f64> = times
            .chunks(times.len().div_ceil(PARTS))
            .filter_map(middle)
            .collect();
        let fastest = parts.iter().copied().fold(f64::INFINITY, f64::min);
        let slowest = parts.iter().copied().fold(0.0, f64::max);
        (first > 0.0 && fastest > 0.0).then(|| Self {
            trend: last / first - 1.0,
            spread: slowest / fastest - 1.0,
        })
    }

    /// What to tell a reader, where the machine was not quiet.
    pub fn warning(&self) -> Option<String> {
        let percent = |value: f64| format!("{:.0}%", value.abs() * 100.0);
        if self.trend.abs() > WORTH_SAYING {
            let direction = if self.trend > 0.0 { "slower" } else { "faster" };
            return Some(format!(
                "drift: A became {} {direction} from the first third of the run to the last",
                percent(self.trend)
            ));
        }
        (self.spread > 2.0 * WORTH_SAYING).then(|| {
            format!(
                "unsteady machine: A's time varied by {} between tenths of the run",
                percent(self.spread)
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_that_heats_up_is_named() {
        let times: Vec<f64> = (0..300).map(|n| 1.0 + f64::from(n) * 1e-3).collect();
        let drift = Drift::of(&times).unwrap();
        assert!((drift.trend - 0.19).abs() < 0.02, "{drift:?}");
        assert!(drift.warning().unwrap().contains("slower"));
    }

    #[test]
    fn a_load_that_comes_and_goes_is_named() {
        let times: Vec<f64> = (0..300)
            .map(|n| if (120..180).contains(&n) { 1.5 } else { 1.0 })
            .collect();
        let drift = Drift::of(&times).unwrap();
        assert!(drift.warning().unwrap().contains("unsteady"), "{drift:?}");
    }

    #[test]
    fn a_quiet_machine_and_a_few_rounds_are_not() {
        let times: Vec<f64> = (0..300).map(|n| 1.0 + f64::from(n % 7) * 1e-2).collect();
        assert_eq!(Drift::of(&times).unwrap().warning(), None);
        assert_eq!(Drift::of(&[1.0; 20]), None);
    }
}
