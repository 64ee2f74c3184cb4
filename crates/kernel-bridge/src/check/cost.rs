//! What an op needs at least: arithmetic, and bytes between HBM and the chip.

use kernel_spec::OpName;

use super::chip::Chip;
use super::job::Sizes;

/// The least work of one call.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Cost {
    /// Floating-point operations of the matrix products; a product and a sum are two.
    pub flops: f64,
    /// Bytes that must be read from or written to HBM: every input and result once.
    pub bytes: f64,
}

/// The least cycles of one call on a chip.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Floor {
    /// Cycles of the matrix units at their peak.
    pub arithmetic: f64,
    /// Cycles of HBM at its peak.
    pub memory: f64,
}

impl Cost {
    /// The cost of an op at some sizes, with elements of `width` bytes.
    pub fn of(op: OpName, sizes: &Sizes, width: u64) -> Self {
        let size = |name: &str| sizes.get(name).copied().unwrap_or(1) as f64;
        let (b, h, k, d) = (size("B"), size("H"), size("K"), size("D"));
        let (rows, inner) = (size("R"), size("I"));
        // Elements that cross, not bytes.
        let (flops, elements) = match op {
            OpName::Attention => {
                let tokens = size("T");
                let pairs = tokens * (tokens + 1.0) / 2.0;
                (4.0 * b * h * pairs * d, 2.0 * b * (h + k) * tokens * d)
            }
            OpName::DecodeAttention => {
                // Rows are filled to different lengths, as the inputs of `check` are.
                let filled: f64 = row_lengths(size("L"), b).sum();
                (4.0 * h * filled * d, 2.0 * (k * filled + b * h) * d)
            }
            OpName::RmsNorm => (0.0, 2.0 * rows * h + h),
            OpName::SwiGluMlp | OpName::GeGluMlp => {
                (6.0 * rows * h * inner, 3.0 * h * inner + 2.0 * rows * h)
            }
            OpName::SiluAndMul => (0.0, 3.0 * rows * inner),
            OpName::Silu => (0.0, 2.0 * rows * inner),
            OpName::RotaryPosEmb => {
                let tokens = size("T");
                (0.0, 2.0 * b * (h + k + 1.0) * tokens * d)
            }
        };
        Self {
            flops,
            bytes: elements * width as f64,
        }
    }

    /// The least cycles on a chip.
    pub fn floor(&self, chip: &Chip) -> Floor {
        Floor {
            arithmetic: self.flops / chip.flops_per_cycle,
            memory: self.bytes / chip.bytes_per_cycle(),
        }
    }
}

/// Filled entries of the rows of a batch, the last row's first.
fn row_lengths(filled: f64, batch: f64) -> impl Iterator<Item = f64> {
    let step = (filled / batch).floor();
    (0..batch as u64).map(move |row| (filled - row as f64 * step).max(1.0))
}

impl Floor {
    /// The cycles that no program can beat.
    pub fn cycles(&self) -> f64 {
        self.arithmetic.max(self.memory)
    }

    /// What binds: `MXU` or `HBM`.
    pub fn bound(&self) -> &'static str {
        if self.arithmetic > self.memory {
            "MXU"
        } else {
            "HBM"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::chip::Target;
    use super::*;

    fn sizes(given: &[(&str, i64)]) -> Sizes {
        given.iter().map(|(n, v)| ((*n).to_owned(), *v)).collect()
    }

    #[test]
    fn causal_attention_needs_half_the_square() {
        let sizes = sizes(&[("B", 1), ("H", 32), ("K", 8), ("T", 2048), ("D", 128)]);
        let floor = Cost::of(OpName::Attention, &sizes, 2).floor(&Target::V5e.chip());
        // 4 H T^2 D / 2 flops over 131,072 a cycle; the diagonal adds one part in T.
        assert!((floor.arithmetic - 262_272.0).abs() < 1.0, "{floor:?}");
        assert_eq!(floor.bound(), "MXU");
    }

    #[test]
    fn decoding_reads_the_filled_cache_once() {
        let sizes = sizes(&[
            ("B", 1),
            ("H", 32),
            ("K", 8),
            ("C", 2048),
            ("L", 2048),
            ("D", 128),
        ]);
        let floor = Cost::of(OpName::DecodeAttention, &sizes, 2).floor(&Target::V5e.chip());
        assert!((floor.memory / 15_400.0 - 1.0).abs() < 5e-3, "{floor:?}");
        assert_eq!(floor.bound(), "HBM");
    }

    #[test]
    fn rows_of_a_batch_are_filled_to_different_lengths() {
        assert_eq!(row_lengths(8.0, 3.0).collect::<Vec<_>>(), [8.0, 6.0, 4.0]);
    }
}
