//! What the bridge's tests share: one interpreter a process, and kernels made from a few lines.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "helpers of tests may panic"
)]
#![allow(dead_code, reason = "not every test file uses everything")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use kernel_bridge::{Bridge, BridgeOptions, Environment};
use kernel_registry::{Registry, VerifiedKernel};
use kernel_spec::variant::Backend;
use kernel_spec::{Digest, DigestAlgorithm, System};
use tempfile::TempDir;

/// The interpreter of this test process.
pub(crate) fn bridge() -> Bridge {
    let environment = Environment::discover().expect("the project's environment");
    Bridge::start(&environment, BridgeOptions::default()).expect("Python starts")
}

/// A kernel folder on disk.
pub(crate) struct Sample {
    pub folder: TempDir,
}

impl Sample {
    /// A `torch-cpu` build with the given files.
    pub(crate) fn new(id: &str, files: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let sample = Self { folder };
        sample.write(id, files);
        sample
    }

    /// Writes files and metadata with their digest, in place of what was there.
    pub(crate) fn write(&self, id: &str, files: &[(&str, &str)]) {
        let build = self.folder.path().join("build/torch-cpu");
        let _ = fs::remove_dir_all(&build);
        for (name, text) in files {
            let path = build.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let digest = Digest::of_files(
            DigestAlgorithm::Sha256,
            files.iter().map(|(n, t)| (*n, t.as_bytes())),
        )
        .unwrap();
        let files: BTreeMap<_, _> = digest.files.iter().collect();
        let hashes = files
            .iter()
            .map(|(n, h)| format!("{n:?}:{h:?}"))
            .collect::<Vec<_>>()
            .join(",");
        let metadata = format!(
            "{{\"name\":\"sample\",\"id\":{id:?},\"version\":1,\"license\":\"Apache-2.0\",\
             \"python-depends\":[],\"kernel-depends\":[],\"backend\":{{\"type\":\"cpu\"}},\
             \"digest\":{{\"algorithm\":\"sha256\",\"files\":{{{hashes}}}}}}}"
        );
        fs::write(build.join("metadata.json"), metadata).unwrap();
    }

    pub(crate) fn verified(&self) -> VerifiedKernel {
        verified(self.folder.path(), Backend::Cpu)
    }
}

/// The checked bytes of a kernel folder, for a backend of this machine.
pub(crate) fn verified(folder: &Path, backend: Backend) -> VerifiedKernel {
    let registry = Registry::builder().offline(true).build().unwrap();
    let system = System {
        backend,
        ..registry.system().clone()
    };
    let reference = folder.to_str().unwrap().parse().unwrap();
    let resolved = registry.resolve_for(&reference, &system).unwrap();
    registry.install(&resolved).unwrap().verified().unwrap()
}

/// A kernel of this repository's index.
pub(crate) fn of_index(name: &str, backend: Backend) -> VerifiedKernel {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../kernels-index")
        .join(name);
    verified(&root, backend)
}
