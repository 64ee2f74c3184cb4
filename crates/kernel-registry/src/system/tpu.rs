//! TPUs on the PCI bus.
//!
//! The runtime of a TPU must not be asked on a machine without one: it hangs. The bus answers at
//! once, and also says which generation it is.

mod topology;

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use super::pci::{PciBus, PciDevice};

/// PCI vendor of TPUs.
const GOOGLE: u32 = 0x1ae0;
/// Where the kernel offers devices to programs; a container sees those that it was given.
pub(super) const VFIO: &str = "/dev/vfio";

/// Generation of a TPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum TpuGeneration {
    /// TPU v2 or v3, which share a device id.
    V3,
    /// TPU v4.
    V4,
    /// TPU v5p.
    V5p,
    /// TPU v5e, also called v5 lite.
    V5e,
    /// TPU v6e, also called Trillium.
    V6e,
    /// TPU 7x, also called Ironwood.
    V7x,
}

impl TpuGeneration {
    /// The generation with a PCI device id. Ids are those that JAX's own scan knows.
    const fn of_device(device: u32) -> Option<Self> {
        match device {
            0x0027 => Some(Self::V3),
            0x005e => Some(Self::V4),
            0x0062 => Some(Self::V5p),
            0x0063 => Some(Self::V5e),
            0x006f => Some(Self::V6e),
            0x0076 => Some(Self::V7x),
            _ => None,
        }
    }

    /// The usual short name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::V3 => "v3",
            Self::V4 => "v4",
            Self::V5p => "v5p",
            Self::V5e => "v5e",
            Self::V6e => "v6e",
            Self::V7x => "v7x",
        }
    }
}

impl fmt::Display for TpuGeneration {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

/// One TPU function on the bus.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TpuFunction {
    /// Its folder under `/sys/bus/pci/devices`.
    pub path: PathBuf,
    /// Its generation.
    pub generation: TpuGeneration,
    /// Whether programs can open it: its IOMMU group is under `/dev/vfio`.
    pub usable: bool,
}

/// What the bus says of TPUs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TpuScan {
    /// Every function, in the order of addresses.
    pub functions: Vec<TpuFunction>,
}

impl TpuScan {
    /// How many functions programs can open.
    pub fn usable(&self) -> usize {
        self.functions
            .iter()
            .filter(|function| function.usable)
            .count()
    }

    /// The generation of the first one; a machine has one generation.
    pub fn generation(&self) -> Option<TpuGeneration> {
        self.functions.first().map(|function| function.generation)
    }
}

/// Looks for TPUs. Touches `/sys` and `/dev/vfio` only.
pub fn scan() -> TpuScan {
    scan_bus(&PciBus::of_this_machine(), Path::new(VFIO))
}

pub(super) fn scan_bus(bus: &PciBus, vfio: &Path) -> TpuScan {
    let functions = bus
        .devices
        .iter()
        .filter(|device| device.vendor == GOOGLE)
        .filter_map(|device| {
            Some(TpuFunction {
                path: device.path.clone(),
                generation: TpuGeneration::of_device(device.device)?,
                usable: is_usable(device, vfio),
            })
        })
        .collect();
    TpuScan { functions }
}

fn is_usable(device: &PciDevice, vfio: &Path) -> bool {
    fs::read_link(device.path.join("iommu_group"))
        .ok()
        .and_then(|group| Some(vfio.join(group.file_name()?).exists()))
        .unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::super::pci::tests::bus;
    use super::*;

    #[test]
    fn other_devices_of_google_are_no_tpus() {
        // 0x0042 is Google's virtual network card.
        let (_guard, bus) = bus(&[("0x1ae0", "0x0042", "0x020000")]);
        assert_eq!(scan_bus(&bus, Path::new(VFIO)), TpuScan::default());
    }

    #[cfg(unix)]
    #[test]
    fn a_function_is_usable_where_its_group_is_offered() {
        let (guard, bus) = bus(&[
            ("0x1ae0", "0x0063", "0x120000"),
            ("0x1ae0", "0x0063", "0x120000"),
        ]);
        let vfio = tempfile::tempdir().unwrap();
        fs::write(vfio.path().join("7"), "").unwrap();
        for (index, group) in [(0, "7"), (1, "8")] {
            let link = guard
                .path()
                .join(format!("0000:00:{index:02x}.0/iommu_group"));
            std::os::unix::fs::symlink(format!("/kernel/iommu_groups/{group}"), link).unwrap();
        }
        let scan = scan_bus(&bus, vfio.path());
        assert_eq!(scan.functions.len(), 2);
        assert_eq!(scan.usable(), 1);
        assert_eq!(scan.generation(), Some(TpuGeneration::V5e));
    }
}
