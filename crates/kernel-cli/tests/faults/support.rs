//! A Hub, a cache, and the command between them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use hub_fixture::Hub;
use kernel_registry::{Registry, VerifiedKernel};
use kernel_spec::{Backend, System};
use sha1::Digest as _;

pub(crate) const RELU: &str = "kernels-test/relu@v1";

pub(crate) struct Scene {
    pub(crate) hub: Hub,
    folder: tempfile::TempDir,
}

impl Scene {
    pub(crate) fn new() -> Self {
        Self::of(Hub::with_samples().unwrap())
    }

    pub(crate) fn of(hub: Hub) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let machine = r#"{"cpu": "x86_64", "os": "linux", "backend": "cpu"}"#;
        fs::write(folder.path().join("machine.json"), machine).unwrap();
        Self { hub, folder }
    }

    pub(crate) fn cache(&self) -> PathBuf {
        self.folder.path().join("cache")
    }

    /// Starts with an empty cache again.
    pub(crate) fn forget(&self) {
        if self.cache().exists() {
            fs::remove_dir_all(self.cache()).unwrap();
        }
    }

    /// The command with a clean environment.
    pub(crate) fn command(&self, arguments: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kernel-cli"));
        command
            .env_clear()
            .env("HOME", self.folder.path())
            .env("KERNELS_CACHE", self.cache())
            .env("HF_ENDPOINT", self.hub.endpoint())
            .env("KERNEL_PYTHON_ENVIRONMENT", self.folder.path().join("none"))
            .current_dir(self.folder.path())
            .stdin(Stdio::null())
            .arg("--system")
            .arg(self.folder.path().join("machine.json"))
            .args(arguments.split_whitespace());
        command
    }

    pub(crate) fn run(&self, arguments: &str) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// What could be loaded from the cache, without a network.
    pub(crate) fn load(&self) -> kernel_registry::Result<VerifiedKernel> {
        let registry = Registry::builder()
            .cache_dir(self.cache())
            .endpoint(self.hub.endpoint())
            .offline(true)
            .system(System::new("x86_64", "linux", Backend::Cpu))
            .build()?;
        let resolved = registry.resolve(&RELU.parse()?)?;
        registry.install(&resolved)?.verified()
    }

    /// Checks that every blob has the name of its content, so that nothing in the cache is half there.
    pub(crate) fn assert_whole(&self) {
        for entry in walkdir::WalkDir::new(self.cache()).into_iter().flatten() {
            let path = entry.path();
            let name = entry.file_name().to_string_lossy();
            let is_blob = path
                .parent()
                .is_some_and(|folder| folder.ends_with("blobs"));
            if !is_blob || name.ends_with(".incomplete") || name.ends_with(".tmp") {
                continue;
            }
            let content = fs::read(path).unwrap();
            let id = if name.len() == 40 {
                let mut hasher = sha1::Sha1::new();
                hasher.update(format!("blob {}\0", content.len()));
                hasher.update(&content);
                hex::encode(hasher.finalize())
            } else {
                hex::encode(sha2::Sha256::digest(&content))
            };
            assert_eq!(id, name, "{}", path.display());
        }
    }
}

/// Standard error, for messages of tests.
pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Builds the library that makes calls of the system fail.
pub(crate) fn shim(folder: &Path) -> PathBuf {
    let library = folder.join("shim.so");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/faults/shim.c");
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let built = Command::new(compiler)
        .args(["-shared", "-fPIC", "-O1", "-o"])
        .arg(&library)
        .arg(source)
        .arg("-ldl")
        .output()
        .unwrap();
    assert!(built.status.success(), "{}", stderr(&built));
    library
}
