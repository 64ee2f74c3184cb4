//! One Hub, two programs: the Python library `kernels` and this registry fetch the same kernel, end
//! with the same bytes, and each works offline from the cache that the other has filled.
//!
//! Needs the project's Python environment, which `cargo xtask env` makes.

#![expect(clippy::unwrap_used, reason = "helpers of tests may panic")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use hub_fixture::Hub;
use kernel_registry::{Registry, VerifiedKernel};
use kernel_spec::{Backend, System};

const REPOSITORY: &str = "kernels-test/relu";

/// Runs Python against a Hub and a cache; returns the last line that it prints.
fn python(hub: &Hub, cache: &Path, offline: bool, script: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let python = root.join(".venv/bin/python");
    assert!(python.exists(), "run `cargo xtask env` first");
    let output = Command::new(python)
        .args(["-c", script])
        .env_clear()
        .env("HOME", cache)
        .env("HF_ENDPOINT", hub.endpoint())
        .env("HF_HUB_CACHE", cache)
        .env("HF_HUB_OFFLINE", if offline { "1" } else { "0" })
        .env("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
        .env("JAX_PLATFORMS", "cpu")
        .output()
        .unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stdout}\n{stderr}");
    stdout.lines().last().unwrap_or_default().to_owned()
}

/// Loads version 1 and uses it.
const USE: &str = "\
import torch, kernels
relu = kernels.get_kernel('kernels-test/relu', version=1, backend='cpu', trust_remote_code=True)
print(relu.VERSION, relu.relu(torch.tensor([-1.0, 2.0])).tolist())
";

/// Fetches version 1 with the registry.
fn fetch(hub: &Hub, cache: &Path, offline: bool) -> VerifiedKernel {
    let registry = Registry::builder()
        .cache_dir(cache)
        .endpoint(hub.endpoint())
        .offline(offline)
        .trust([REPOSITORY.parse().unwrap()])
        .system(System::new("x86_64", "linux", Backend::Cpu))
        .build()
        .unwrap();
    let reference = format!("{REPOSITORY}@v1").parse().unwrap();
    let resolved = registry.resolve(&reference).unwrap();
    registry.install(&resolved).unwrap().verified().unwrap()
}

/// The folder of the snapshot in a cache.
fn snapshot(hub: &Hub, cache: &Path) -> PathBuf {
    let commit = hub.commit(REPOSITORY, "v1").unwrap();
    cache
        .join("kernels--kernels-test--relu/snapshots")
        .join(commit)
}

/// All files below a folder, by relative path, bytecode left out.
fn files(root: &Path) -> BTreeMap<String, Vec<u8>> {
    fn walk(root: &Path, folder: &Path, found: &mut BTreeMap<String, Vec<u8>>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                walk(root, &path, found);
            } else if path.extension().is_none_or(|extension| extension != "pyc") {
                let name = path.strip_prefix(root).unwrap().display().to_string();
                found.insert(name, fs::read(&path).unwrap());
            }
        }
    }
    let mut found = BTreeMap::new();
    walk(root, root, &mut found);
    found
}

#[test]
fn both_end_with_the_same_bytes() {
    let hub = Hub::with_samples().unwrap();
    let (theirs, ours) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    assert_eq!(python(&hub, theirs.path(), false, USE), "1 [0.0, 2.0]");
    let verified = fetch(&hub, ours.path(), false);

    let build = Path::new("build/torch-cpu");
    let of_theirs = files(&snapshot(&hub, theirs.path()).join(build));
    let of_ours = files(&snapshot(&hub, ours.path()).join(build));
    assert!(of_ours.len() >= 5, "{:?}", of_ours.keys());
    assert_eq!(of_ours, of_theirs);
    for (name, bytes) in verified.files() {
        assert_eq!(&**bytes, of_theirs[name].as_slice(), "{name}");
    }
}

#[test]
fn the_python_library_loads_offline_what_the_registry_fetched() {
    let hub = Hub::with_samples().unwrap();
    let cache = tempfile::tempdir().unwrap();
    fetch(&hub, cache.path(), false);
    hub.clear_requests();
    let answer = python(&hub, cache.path(), true, USE);
    assert_eq!(answer, "1 [0.0, 2.0]");
    assert!(hub.requests().is_empty());
}

#[test]
fn the_registry_works_offline_from_what_the_python_library_fetched() {
    let hub = Hub::with_samples().unwrap();
    let cache = tempfile::tempdir().unwrap();
    python(&hub, cache.path(), false, USE);
    hub.clear_requests();
    let commit = hub.commit(REPOSITORY, "v1").unwrap();
    // The Python library keeps no branch of a kernel, so that it is asked for by commit.
    let registry = Registry::builder()
        .cache_dir(cache.path())
        .endpoint(hub.endpoint())
        .offline(true)
        .trust([REPOSITORY.parse().unwrap()])
        .system(System::new("x86_64", "linux", Backend::Cpu))
        .build()
        .unwrap();
    let reference = format!("{REPOSITORY}@{commit}").parse().unwrap();
    let resolved = registry.resolve(&reference).unwrap();
    let verified = registry.install(&resolved).unwrap().verified().unwrap();
    assert!(verified.files().contains_key("layers/__init__.py"));
    assert!(hub.requests().is_empty());
}
