//! Python packages that kernels may ask for (`python-depends` of metadata).
//!
//! The format knows a fixed set of names, some of them for one backend only; an unknown name is an
//! error, because nobody could tell which package is meant. Which backend counts is said by the
//! build's own metadata, whatever machine it is fetched on.

use kernel_spec::{BackendKind, Metadata};

use crate::error::{Error, Result};

/// A package that a kernel needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PythonPackage {
    /// Name in metadata.
    pub name: &'static str,
    /// Name to install it by.
    pub distribution: &'static str,
    /// Module by whose presence it is recognised; none where there is no module.
    pub module: Option<&'static str>,
}

const fn package(
    name: &'static str,
    distribution: &'static str,
    module: &'static str,
) -> PythonPackage {
    PythonPackage {
        name,
        distribution,
        module: Some(module),
    }
}

/// For every backend, as in `kernels` 0.17.2.
const GENERAL: &[PythonPackage] = &[
    package("einops", "einops", "einops"),
    package("helion", "helion", "helion"),
    package("tvm-ffi", "apache-tvm-ffi", "tvm_ffi"),
];
const CUDA: &[PythonPackage] = &[package(
    "nvidia-cutlass-dsl",
    "nvidia-cutlass-dsl",
    "cutlass",
)];
const NEURON: &[PythonPackage] = &[package("nki", "nki", "nki")];
const XPU: &[PythonPackage] = &[PythonPackage {
    name: "onednn",
    distribution: "onednn-devel",
    module: None,
}];
/// `kernels` 0.17.2 knows none for TPUs, so that no TPU kernel can say that it needs JAX.
const TPU: &[PythonPackage] = &[
    package("jax", "jax", "jax"),
    package("jaxlib", "jaxlib", "jaxlib"),
    package("libtpu", "libtpu", "libtpu"),
    package("ml-dtypes", "ml-dtypes", "ml_dtypes"),
    package("numpy", "numpy", "numpy"),
    package("torch-tpu", "torch-tpu", "torch_tpu"),
];

fn of_backend(backend: BackendKind) -> &'static [PythonPackage] {
    match backend {
        BackendKind::Cuda => CUDA,
        BackendKind::Neuron => NEURON,
        BackendKind::Tpu => TPU,
        BackendKind::Xpu => XPU,
        BackendKind::Cann | BackendKind::Cpu | BackendKind::Metal | BackendKind::Rocm => &[],
    }
}

/// The packages that a build needs; an error for a name that is not known for its backend.
pub fn packages(kernel: &str, metadata: &Metadata) -> Result<Vec<PythonPackage>> {
    let backend = metadata.backend.kind;
    let known = || GENERAL.iter().chain(of_backend(backend));
    metadata
        .python_depends
        .iter()
        .map(|name| {
            let wanted = name.replace('_', "-");
            known()
                .find(|package| package.name == wanted)
                .copied()
                .ok_or_else(|| Error::PythonDependency {
                    kernel: kernel.to_owned(),
                    package: name.clone(),
                    backend: backend.to_string(),
                    known: known().map(|package| package.name).collect(),
                })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metadata(backend: &str, depends: &str) -> Metadata {
        let text = format!(
            r#"{{"name": "k-k", "id": "_k", "version": 1, "license": "", "python-depends": [{depends}],
                "backend": {{"type": "{backend}"}}}}"#
        );
        Metadata::from_slice(text.as_bytes()).unwrap()
    }

    #[test]
    fn peer_fault_9_tpu_kernels_can_declare_jax() {
        let packages = packages("k", &metadata("tpu", r#""jax", "einops", "torch_tpu""#)).unwrap();
        let modules: Vec<_> = packages
            .iter()
            .filter_map(|package| package.module)
            .collect();
        assert_eq!(modules, ["jax", "einops", "torch_tpu"]);
    }

    #[test]
    fn peer_fault_45_the_builds_own_backend_decides() {
        let error = packages("k", &metadata("cpu", r#""nvidia-cutlass-dsl""#)).unwrap_err();
        assert_eq!(error.kind(), "python-dependency");
        assert!(error.hint().unwrap().contains("einops"));
        assert!(packages("k", &metadata("cuda", r#""nvidia-cutlass-dsl""#)).is_ok());
    }
}
