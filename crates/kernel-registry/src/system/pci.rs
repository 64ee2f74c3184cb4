//! Devices on the PCI bus, as Linux shows them under `/sys`.

use std::fs;
use std::path::{Path, PathBuf};

const DEVICES: &str = "/sys/bus/pci/devices";

/// One function of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PciDevice {
    pub(super) path: PathBuf,
    pub(super) vendor: u32,
    pub(super) device: u32,
    /// Class, subclass and interface, a byte each.
    pub(super) class: u32,
}

impl PciDevice {
    /// Display controllers (class 3), and processing accelerators (class 0x12).
    pub(super) fn is_display(&self) -> bool {
        matches!(self.class >> 16, 0x03 | 0x12)
    }
}

/// All devices of a machine; none where the system does not show them.
#[derive(Debug, Default)]
pub(super) struct PciBus {
    pub(super) devices: Vec<PciDevice>,
}

impl PciBus {
    pub(super) fn of_this_machine() -> Self {
        Self::at(Path::new(DEVICES))
    }

    pub(super) fn at(folder: &Path) -> Self {
        let Ok(entries) = fs::read_dir(folder) else {
            return Self::default();
        };
        let mut devices: Vec<_> = entries
            .flatten()
            .filter_map(|entry| device(entry.path()))
            .collect();
        devices.sort_by(|one, other| one.path.cmp(&other.path));
        Self { devices }
    }

    pub(super) fn has(&self, predicate: impl Fn(&PciDevice) -> bool) -> bool {
        self.devices.iter().any(predicate)
    }
}

fn device(path: PathBuf) -> Option<PciDevice> {
    let number = |name: &str| {
        let text = fs::read_to_string(path.join(name)).ok()?;
        u32::from_str_radix(text.trim().strip_prefix("0x")?, 16).ok()
    };
    let (vendor, device) = (number("vendor")?, number("device")?);
    let class = number("class").unwrap_or_default();
    Some(PciDevice {
        path,
        vendor,
        device,
        class,
    })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A bus with devices given by vendor, device and class. The folder lives as long as the guard.
    pub(in crate::system) fn bus(devices: &[(&str, &str, &str)]) -> (tempfile::TempDir, PciBus) {
        let folder = tempfile::tempdir().unwrap();
        for (index, (vendor, device, class)) in devices.iter().enumerate() {
            let path = folder.path().join(format!("0000:00:{index:02x}.0"));
            fs::create_dir(&path).unwrap();
            for (name, value) in [("vendor", vendor), ("device", device), ("class", class)] {
                fs::write(path.join(name), format!("{value}\n")).unwrap();
            }
        }
        let bus = PciBus::at(folder.path());
        (folder, bus)
    }

    #[test]
    fn entries_that_cannot_be_read_are_skipped() {
        let (folder, bus) = bus(&[("0x1ae0", "0x0063", "0x120000"), ("what", "0x1", "0x0")]);
        assert_eq!(bus.devices.len(), 1);
        assert_eq!(bus.devices[0].device, 0x63);
        drop(folder);
        assert!(PciBus::at(Path::new("/nonexistent")).devices.is_empty());
    }
}
