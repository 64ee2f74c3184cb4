//! How many devices of a TPU host can work together, and what each of them holds.
//!
//! The tables are those of torch_tpu 0.2's launcher: a count that is not in them has no topology, and
//! its runtime refuses to start. Memory is that of Google's documentation of each generation.

use super::TpuGeneration;

/// Bytes in a GiB.
const GIB: u64 = 1 << 30;

impl TpuGeneration {
    /// The generations whose topologies are known.
    pub const ALL: [Self; 5] = [Self::V4, Self::V5p, Self::V5e, Self::V6e, Self::V7x];

    /// The generation of a short name such as `v5e`; `v7` is v7x.
    pub fn by_name(name: &str) -> Option<Self> {
        let name = if name == "v7" { "v7x" } else { name };
        Self::ALL
            .into_iter()
            .find(|generation| generation.as_str() == name)
    }

    /// Numbers of devices that one host can run a group of, with the topology of each as the
    /// runtime spells it (x, y, z, and cores where a chip is two devices).
    pub const fn topologies(self) -> &'static [(usize, &'static str)] {
        match self {
            Self::V3 => &[],
            Self::V4 | Self::V5p => &[(1, "1,1,1"), (2, "1,2,1"), (4, "2,2,1"), (8, "2,2,2")],
            Self::V5e | Self::V6e => &[(1, "1,1,1"), (4, "2,2,1"), (8, "2,4,1")],
            Self::V7x => &[(2, "1,1,1,2"), (4, "1,2,1,2"), (8, "2,2,1,2")],
        }
    }

    /// The topology of a group of so many devices; none where the runtime has none.
    pub fn topology(self, devices: usize) -> Option<&'static str> {
        let of_count = |(count, _): &&(usize, &str)| *count == devices;
        self.topologies()
            .iter()
            .find(of_count)
            .map(|(_, topology)| *topology)
    }

    /// Memory of one device in bytes; none where it is not known.
    pub const fn memory(self) -> Option<u64> {
        match self {
            Self::V3 => None,
            Self::V4 | Self::V6e => Some(32 * GIB),
            Self::V5p => Some(95 * GIB),
            Self::V5e => Some(16 * GIB),
            Self::V7x => Some(96 * GIB),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_without_a_topology_are_told_apart() {
        assert_eq!(TpuGeneration::V5e.topology(4), Some("2,2,1"));
        assert_eq!(TpuGeneration::V5e.topology(2), None);
        assert_eq!(TpuGeneration::V5p.topology(2), Some("1,2,1"));
        assert_eq!(TpuGeneration::V7x.topology(1), None);
        assert_eq!(TpuGeneration::V3.topology(1), None);
    }

    #[test]
    fn names_are_read_back() {
        for generation in TpuGeneration::ALL {
            assert_eq!(
                TpuGeneration::by_name(generation.as_str()),
                Some(generation)
            );
        }
        assert_eq!(TpuGeneration::by_name("v7"), Some(TpuGeneration::V7x));
        assert_eq!(TpuGeneration::by_name("h100"), None);
    }
}
