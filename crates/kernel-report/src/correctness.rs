//! Whether two arms computed the same, in figures.

use serde::{Deserialize, Serialize};

/// How far the results of two arms lie apart.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Correctness {
    /// Whether everything lies within the tolerance and NaN and infinity stand at the same places.
    pub ok: bool,
    /// Largest absolute deviation among finite values.
    pub max_absolute: f64,
    /// Largest deviation relative to the reference's largest magnitude.
    pub max_relative: f64,
    /// Values that are NaN or infinite on one side only, or differ in kind or sign.
    pub non_finite_mismatches: i64,
    /// Absolute part of the tolerance.
    pub tolerance_absolute: f64,
    /// Relative part of the tolerance, of the reference's value.
    pub tolerance_relative: f64,
}

impl Correctness {
    /// The worst of several comparisons in each of its figures; nothing compared is not ok.
    pub fn worst<'a>(comparisons: impl IntoIterator<Item = &'a Self>) -> Self {
        comparisons
            .into_iter()
            .cloned()
            .reduce(|one, other| Self {
                ok: one.ok && other.ok,
                max_absolute: one.max_absolute.max(other.max_absolute),
                max_relative: one.max_relative.max(other.max_relative),
                non_finite_mismatches: one.non_finite_mismatches + other.non_finite_mismatches,
                tolerance_absolute: one.tolerance_absolute.max(other.tolerance_absolute),
                tolerance_relative: one.tolerance_relative.max(other.tolerance_relative),
            })
            .unwrap_or(Self {
                ok: false,
                max_absolute: 0.0,
                max_relative: 0.0,
                non_finite_mismatches: 0,
                tolerance_absolute: 0.0,
                tolerance_relative: 0.0,
            })
    }
}

impl std::fmt::Display for Correctness {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.ok {
            write!(formatter, "yes ({:.1e})", self.max_absolute)
        } else if self.non_finite_mismatches > 0 {
            write!(
                formatter,
                "NO: {} NaN or infinite",
                self.non_finite_mismatches
            )
        } else {
            write!(
                formatter,
                "NO: off by {:.1e}, allowed {:.0e} + {:.0e} of the value",
                self.max_absolute, self.tolerance_absolute, self.tolerance_relative
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_compared_is_not_agreement() {
        assert!(!Correctness::worst([]).ok);
    }
}
