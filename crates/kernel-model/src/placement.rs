//! Which device a model runs on, and why.
//!
//! libtorch's Rust binding has no word for a TPU (it answers `Mps` for one), so the device is a
//! tag of our own, chosen once from a scan of the machine and printed. Tensors get there through
//! a [`Transfer`], which for the CPU does nothing.

use std::fmt;
use std::str::FromStr;

use kernel_registry::tpu::{self, TpuScan};
use tch::Tensor;

use crate::error::{ModelError, Result};

/// A device that models run on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Device {
    /// The host.
    Cpu,
    /// The TPU chip of this process.
    Tpu,
}

impl fmt::Display for Device {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Cpu => "cpu",
            Self::Tpu => "tpu",
        })
    }
}

/// A device as the user asks for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceRequest {
    /// A TPU if the machine has one, else the CPU.
    Auto,
    /// This device and no other.
    Exactly(Device),
}

impl FromStr for DeviceRequest {
    type Err = ModelError;

    fn from_str(text: &str) -> Result<Self> {
        let refuse = |problem: &str, hint: &str| ModelError::Device {
            device: text.to_owned(),
            problem: problem.to_owned(),
            hint: hint.to_owned(),
        };
        match text {
            "auto" => Ok(Self::Auto),
            "cpu" => Ok(Self::Exactly(Device::Cpu)),
            "tpu" | "tpu:0" => Ok(Self::Exactly(Device::Tpu)),
            _ if text.starts_with("tpu:") => Err(refuse(
                "a process sees one chip, and sees it as `tpu:0`",
                "use `tpu`, and `--tp N` for several chips: one process is started for each",
            )),
            _ => Err(refuse(
                "no such device is known",
                "use `auto`, `cpu` or `tpu`",
            )),
        }
    }
}

/// What a scan of the machine found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TpusFound {
    /// Number of usable chips.
    pub usable: usize,
    /// What was found, or why nothing was, for people.
    pub description: String,
}

impl TpusFound {
    /// Scans the PCI bus of this machine; no TPU is touched.
    pub fn on_this_machine() -> Self {
        Self::from(&tpu::scan())
    }
}

impl From<&TpuScan> for TpusFound {
    fn from(scan: &TpuScan) -> Self {
        let (all, usable) = (scan.functions.len(), scan.usable());
        let generation = scan.generation().map(|generation| format!(" {generation}"));
        let generation = generation.unwrap_or_default();
        let description = match (all, usable) {
            (0, _) => "the PCI bus has no TPU".to_owned(),
            (all, 0) => format!(
                "the PCI bus has {all} TPU{generation} devices, but none is open to programs \
                 under /dev/vfio"
            ),
            (all, usable) => {
                format!("{usable} of {all} TPU{generation} devices on the PCI bus can be used")
            }
        };
        Self {
            usable,
            description,
        }
    }
}

/// A device and the reason for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// The device.
    pub device: Device,
    /// Why this one, as one sentence.
    pub reason: String,
}

impl Placement {
    /// Chooses the device of this machine.
    pub fn detect(request: DeviceRequest) -> Result<Self> {
        Self::choose(request, &TpusFound::on_this_machine())
    }

    /// Chooses the device. A TPU that is there is never passed over silently: the CPU is taken
    /// only where there is no TPU, or where the user names it.
    pub fn choose(request: DeviceRequest, found: &TpusFound) -> Result<Self> {
        match request {
            DeviceRequest::Exactly(Device::Cpu) => Ok(Self {
                device: Device::Cpu,
                reason: if found.usable == 0 {
                    "asked for".to_owned()
                } else {
                    format!("asked for, although there is a TPU: {}", found.description)
                },
            }),
            DeviceRequest::Exactly(Device::Tpu) if found.usable == 0 => Err(ModelError::Device {
                device: "tpu".to_owned(),
                problem: found.description.clone(),
                hint: "use `cpu`, or run on a machine with a TPU".to_owned(),
            }),
            DeviceRequest::Exactly(Device::Tpu) => Ok(Self {
                device: Device::Tpu,
                reason: format!("asked for: {}", found.description),
            }),
            DeviceRequest::Auto if found.usable == 0 => Ok(Self {
                device: Device::Cpu,
                reason: found.description.clone(),
            }),
            DeviceRequest::Auto => Ok(Self {
                device: Device::Tpu,
                reason: found.description.clone(),
            }),
        }
    }
}

/// Moves host tensors to the model's device.
pub trait Transfer: Send + Sync + fmt::Debug {
    /// A tensor with the same values on the device; the same tensor where it is there already.
    fn to_device(&self, host: Tensor) -> Result<Tensor>;
}

/// The transfer of the CPU: none.
#[derive(Debug, Clone, Copy, Default)]
pub struct Host;

impl Transfer for Host {
    fn to_device(&self, host: Tensor) -> Result<Tensor> {
        Ok(host)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(usable: usize) -> TpusFound {
        TpusFound {
            usable,
            description: format!("{usable} chips"),
        }
    }

    #[test]
    fn auto_takes_a_tpu_where_there_is_one_and_says_why() {
        let placement = Placement::choose(DeviceRequest::Auto, &found(4)).unwrap();
        assert_eq!(
            (placement.device, placement.reason.as_str()),
            (Device::Tpu, "4 chips")
        );
        let placement = Placement::choose(DeviceRequest::Auto, &found(0)).unwrap();
        assert_eq!(
            (placement.device, placement.reason.as_str()),
            (Device::Cpu, "0 chips")
        );
    }

    #[test]
    fn cpu_beside_a_tpu_is_taken_only_when_asked_for_and_said_aloud() {
        let request = "cpu".parse().unwrap();
        let placement = Placement::choose(request, &found(1)).unwrap();
        assert_eq!(placement.device, Device::Cpu);
        assert!(placement.reason.contains("although there is a TPU"));
    }

    #[test]
    fn a_second_chip_index_is_explained() {
        let error = "tpu:1".parse::<DeviceRequest>().unwrap_err();
        assert!(error.to_string().contains("one chip"), "{error}");
        assert!(error.hint().unwrap().contains("--tp"));
        assert!("tpu:0".parse::<DeviceRequest>().is_ok());
        assert!("cuda".parse::<DeviceRequest>().is_err());
    }

    #[test]
    fn a_scan_without_tpus_says_so() {
        let found = TpusFound::from(&TpuScan::default());
        assert_eq!(found.usable, 0);
        assert!(found.description.contains("no TPU"));
    }

    #[test]
    fn a_tpu_that_is_not_there_is_an_error() {
        assert!(Placement::choose("tpu".parse().unwrap(), &found(0)).is_err());
    }
}
