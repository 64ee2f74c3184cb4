//! What this machine is, found out without starting Python.
//!
//! Processor and operating system are those of the program; accelerators come from the PCI bus; and
//! the versions of PyTorch and tvm-ffi from the names of `*.dist-info` folders in the project's
//! environment. All of it takes a few dozen small reads.

pub mod holders;
mod pci;
pub mod pjrt;
pub mod python;
pub mod tpu;

use std::fs;
use std::path::Path;

use kernel_spec::version::{DottedVersion, MajorMinor};
use kernel_spec::{Backend, System};

use pci::PciBus;
use python::PythonEnvironment;

/// PCI vendors of accelerators.
const NVIDIA: u32 = 0x10de;
const AMD: u32 = 0x1002;
const INTEL: u32 = 0x8086;
const AMAZON: u32 = 0x1d0f;
/// PCI devices of AWS Inferentia and Trainium, as their kernel driver lists them.
const NEURON_DEVICES: [u32; 4] = [0x7064, 0x7164, 0x7264, 0x7364];

/// Describes this machine. `environment` says which PyTorch counts; without one, none does.
///
/// A TPU goes before all others. A GPU counts where PyTorch was built for it: a CUDA build of
/// PyTorch on a machine without a GPU is a CPU machine.
pub fn detect(environment: Option<&PythonEnvironment>) -> System {
    describe(&PciBus::of_this_machine(), environment)
}

fn describe(bus: &PciBus, environment: Option<&PythonEnvironment>) -> System {
    let os = match std::env::consts::OS {
        "macos" => "darwin",
        other => other,
    };
    let flavour = environment
        .map(PythonEnvironment::torch_flavour)
        .unwrap_or_default();
    let mut system = System::new(
        std::env::consts::ARCH,
        os,
        backend(bus, &flavour, environment.is_some(), os),
    );
    if let Some(environment) = environment {
        let version = |package| {
            environment
                .version(package)
                .and_then(|text| text.parse::<MajorMinor>().ok())
        };
        if let Some(torch) = version("torch") {
            // The wheels of PyTorch use the C++11 ABI since version 2.7 and, before that, where the
            // build says so; only Linux has two of them.
            let abi = (os == "linux").then(|| torch >= MajorMinor::new(2, 7) || flavour.cxx11_abi);
            system = system.with_torch(torch, abi);
        }
        system.tvm_ffi_version = version("apache-tvm-ffi");
    }
    if os == "darwin" {
        system.macos_version = macos_version(Path::new("/"));
    }
    system
}

fn backend(bus: &PciBus, flavour: &python::TorchFlavour, torch: bool, os: &str) -> Backend {
    if !tpu::scan_bus(bus, Path::new(tpu::VFIO))
        .functions
        .is_empty()
    {
        return Backend::Tpu;
    }
    if bus.has(|device| device.vendor == AMAZON && NEURON_DEVICES.contains(&device.device)) {
        return Backend::Neuron;
    }
    let display = |vendor| bus.has(|device| device.vendor == vendor && device.is_display());
    if let Some(version) = flavour.cuda.filter(|_| display(NVIDIA)) {
        return Backend::Cuda(version);
    }
    if let Some(version) = flavour.hip.filter(|_| display(AMD)) {
        return Backend::Rocm(version);
    }
    if let Some(version) = flavour.xpu.filter(|_| display(INTEL)) {
        return Backend::Xpu(version);
    }
    if os == "darwin" && cfg!(target_arch = "aarch64") && torch {
        return Backend::Metal;
    }
    Backend::Cpu
}

/// The version in macOS's own description of itself.
fn macos_version(root: &Path) -> Option<DottedVersion> {
    let text =
        fs::read_to_string(root.join("System/Library/CoreServices/SystemVersion.plist")).ok()?;
    let (_, rest) = text.split_once("<key>ProductVersion</key>")?;
    let (_, rest) = rest.split_once("<string>")?;
    rest.split_once("</string>")?.0.trim().parse().ok()
}

/// What to call the machine in a message.
pub(crate) fn in_words(system: &System) -> String {
    let torch = system.torch_version.map_or_else(
        || "no torch".to_owned(),
        |version| format!("torch {version}"),
    );
    format!("{} {}, {}, {torch}", system.cpu, system.os, system.backend)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn torch(folder: &Path, version: &str, flavour: &str) -> PythonEnvironment {
        let packages = folder.join("lib/python3.11/site-packages");
        fs::create_dir_all(packages.join(format!("torch-{version}.dist-info"))).unwrap();
        fs::create_dir_all(packages.join("torch")).unwrap();
        fs::write(packages.join("torch/version.py"), flavour).unwrap();
        PythonEnvironment::at(folder).unwrap()
    }

    #[test]
    fn a_cuda_build_of_torch_without_a_gpu_is_a_cpu_machine() {
        let folder = tempfile::tempdir().unwrap();
        let environment = torch(folder.path(), "2.13.0", "cuda: Optional[str] = '13.0'\n");
        let bus = pci::tests::bus(&[("0x8086", "0x1237", "0x060000")]);
        let system = describe(&bus.1, Some(&environment));
        assert_eq!(system.backend, Backend::Cpu);
        assert_eq!(system.torch_version, Some(MajorMinor::new(2, 13)));
        let bus = pci::tests::bus(&[("0x10de", "0x2330", "0x030200")]);
        let system = describe(&bus.1, Some(&environment));
        assert_eq!(system.backend, Backend::Cuda(MajorMinor::new(13, 0)));
    }

    #[test]
    fn peer_fault_8_a_tpu_is_found_on_the_bus() {
        let bus = pci::tests::bus(&[("0x1ae0", "0x006f", "0x120000")]);
        assert_eq!(describe(&bus.1, None).backend, Backend::Tpu);
    }

    #[test]
    fn without_an_environment_there_is_no_torch() {
        let bus = pci::tests::bus(&[]);
        let system = describe(&bus.1, None);
        assert_eq!((system.torch_version, system.torch_cxx11_abi), (None, None));
    }
}
