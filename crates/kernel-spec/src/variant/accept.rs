//! Whether a build fits a machine.
//!
//! The first check that fails gives the reason. Texts are those of the Python library, down to
//! `None` and `True`, because users compare the two and search for them.

use super::{Backend, CxxAbi, Framework, Variant};
use crate::system::System;
use crate::version::DottedVersion;

/// Metal builds are compiled for Metal 4, which macOS has since this version.
const METAL_MACOS_MAJOR: u64 = 26;

/// Why a build does not fit the machine; none where it does.
pub(super) fn rejection(variant: &Variant, system: &System) -> Option<String> {
    match variant {
        Variant::Arch {
            framework,
            backend,
            cpu,
            os,
        } => {
            if *cpu != system.cpu {
                return Some(format!(
                    "CPU ({cpu}) does not match system CPU ({})",
                    system.cpu
                ));
            }
            if *os != system.os {
                return Some(format!(
                    "OS ({os}) does not match system OS ({})",
                    system.os
                ));
            }
            framework_rejection(framework, system).or_else(|| backend_rejection(*backend, system))
        }
        Variant::Noarch { backend } => {
            let word = system.backend.kind().noarch_word();
            (backend != word && backend != "universal").then(|| {
                format!(
                    "backend ({backend}) does not match system backend ({word}) and is not universal"
                )
            })
        }
    }
}

fn framework_rejection(framework: &Framework, system: &System) -> Option<String> {
    match framework {
        Framework::Torch { version, abi } => {
            if Some(*version) != system.torch_version {
                return Some(format!(
                    "Torch version ({version}) does not match environment Torch version ({})",
                    or_none(system.torch_version)
                ));
            }
            let abi = abi.map(|abi| abi == CxxAbi::Cxx11);
            (abi.is_some() && abi != system.torch_cxx11_abi).then(|| {
                format!(
                    "Torch CXX11 ABI ({}) does not match environment Torch CXX11 ABI ({})",
                    or_none(abi.map(python_bool)),
                    or_none(system.torch_cxx11_abi.map(python_bool))
                )
            })
        }
        Framework::TorchStableAbi { version } => system
            .torch_version
            .is_none_or(|torch| *version > torch)
            .then(|| {
                format!(
                    "Torch stable ABI version ({version}) is too new for environment Torch version \
                     ({})",
                    or_none(system.torch_version)
                )
            }),
        Framework::TvmFfi { version } => (Some(*version) != system.tvm_ffi_version).then(|| {
            format!(
                "tvm-ffi version ({version}) does not match environment tvm-ffi version ({})",
                or_none(system.tvm_ffi_version)
            )
        }),
    }
}

fn backend_rejection(backend: Backend, system: &System) -> Option<String> {
    match (backend, system.backend) {
        // CUDA is compatible within a major version, forwards.
        (Backend::Cuda(build), Backend::Cuda(machine)) => {
            (build.major != machine.major || build.minor > machine.minor).then(|| {
                format!(
                    "CUDA version ({build}) is not compatible with system CUDA version ({machine})"
                )
            })
        }
        // Words rather than values are compared: that is where `rocm610` of a build and of a
        // machine meet, though both are misread as 61.0.
        (build, machine) if build.to_string() != machine.to_string() => Some(format!(
            "backend ({build}) does not match selected backend ({machine})"
        )),
        (Backend::Metal, _) => {
            let needed = DottedVersion::new(METAL_MACOS_MAJOR, 0);
            let fits = system
                .macos_version
                .as_ref()
                .is_some_and(|macos| *macos >= needed);
            (!fits).then(|| {
                format!(
                    "Metal kernels require macOS {needed} or later, system macOS version is {}",
                    or_none(system.macos_version.as_ref())
                )
            })
        }
        _ => None,
    }
}

fn or_none(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "None".to_owned(), |value| value.to_string())
}

const fn python_bool(value: bool) -> &'static str {
    if value { "True" } else { "False" }
}
