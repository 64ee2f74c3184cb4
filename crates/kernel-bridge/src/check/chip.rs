//! What one device of each TPU generation can do at most.
//!
//! Sources: peak bf16 rate and HBM bandwidth of a chip from Google Cloud's pages on TPU system
//! architecture; products a cycle from the size and number of the matrix units (v4, v5e, v5p: four of
//! 128 x 128 a TensorCore; v6e, v7x: 256 x 256). The clock follows from the two and is the
//! published one where one is published (v4: 1,050 MHz). A device is what JAX counts: a chip with
//! both its cores for v4 and v5p, one core of two for v7x.

use std::str::FromStr;

/// A TPU generation that the compiler builds for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Target {
    /// TPU v4.
    V4,
    /// TPU v5e.
    V5e,
    /// TPU v5p.
    V5p,
    /// TPU v6e (Trillium).
    V6e,
    /// TPU v7x (Ironwood).
    Tpu7x,
}

/// Peaks of one device.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Chip {
    /// Floating-point operations a second, bf16, a product and a sum counted apart.
    pub flops_per_second: f64,
    /// Bytes a second between HBM and the device.
    pub hbm_bytes_per_second: f64,
    /// Floating-point operations a cycle, all matrix units together.
    pub flops_per_cycle: f64,
    /// Bytes of VMEM of a core.
    pub vmem_bytes: u64,
}

impl Target {
    /// All generations, oldest first.
    pub const ALL: [Self; 5] = [Self::V4, Self::V5e, Self::V5p, Self::V6e, Self::Tpu7x];

    /// The name, as the compiler's topologies begin.
    pub fn name(self) -> &'static str {
        match self {
            Self::V4 => "v4",
            Self::V5e => "v5e",
            Self::V5p => "v5p",
            Self::V6e => "v6e",
            Self::Tpu7x => "tpu7x",
        }
    }

    /// Whether the compiler's cost model knows the generation; for v4 it ends the process.
    pub fn has_cost_model(self) -> bool {
        self != Self::V4
    }

    /// The peaks.
    pub fn chip(self) -> Chip {
        const TERA: f64 = 1e12;
        const GIGA: f64 = 1e9;
        const MEBI: u64 = 1 << 20;
        let (tflops, gbytes, flops_per_cycle, vmem) = match self {
            Self::V4 => (275.0, 1_228.0, 262_144.0, 16),
            Self::V5e => (197.0, 819.0, 131_072.0, 128),
            Self::V5p => (459.0, 2_765.0, 262_144.0, 64),
            Self::V6e => (918.0, 1_640.0, 524_288.0, 128),
            // Half a chip: 2,307 TFLOP/s and 7,370 GB/s.
            Self::Tpu7x => (1_153.5, 3_685.0, 524_288.0, 64),
        };
        Chip {
            flops_per_second: tflops * TERA,
            hbm_bytes_per_second: gbytes * GIGA,
            flops_per_cycle,
            vmem_bytes: vmem * MEBI,
        }
    }
}

impl Chip {
    /// Cycles a second.
    pub fn clock(&self) -> f64 {
        self.flops_per_second / self.flops_per_cycle
    }

    /// Bytes between HBM and the device a cycle.
    pub fn bytes_per_cycle(&self) -> f64 {
        self.hbm_bytes_per_second / self.clock()
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.pad(self.name())
    }
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|target| target.name() == text || (text == "v7x" && *target == Self::Tpu7x))
            .ok_or_else(|| {
                let known = Self::ALL.map(Self::name).join(", ");
                format!("`{text}` is not a TPU generation that can be compiled for ({known})")
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_and_bandwidth_a_cycle_are_the_published_ones() {
        for (target, clock, bytes) in [
            (Target::V4, 1.05e9, 1_170.0),
            (Target::V5e, 1.5e9, 546.0),
            (Target::V5p, 1.75e9, 1_580.0),
            (Target::V6e, 1.75e9, 937.0),
            (Target::Tpu7x, 2.2e9, 1_675.0),
        ] {
            let chip = target.chip();
            assert!((chip.clock() / clock - 1.0).abs() < 5e-3, "{target}");
            assert!(
                (chip.bytes_per_cycle() / bytes - 1.0).abs() < 5e-3,
                "{target}"
            );
        }
    }

    #[test]
    fn targets_are_read_by_name_or_the_known_ones_are_listed() {
        assert_eq!("v5e".parse(), Ok(Target::V5e));
        assert!("v9".parse::<Target>().unwrap_err().contains("tpu7x"));
    }
}
