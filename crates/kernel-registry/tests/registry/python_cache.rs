//! A tree of kernels, with files in git and in storage, in a cache that is shared with the Python
//! library. What the two bring for one kernel is compared in `tests/python_interop.rs`.

use std::path::Path;
use std::process::Command;

use hub_fixture::Hub;

use crate::support::{Scene, fetch, files};

/// Runs Python against a Hub and a cache; returns the last line that it prints.
fn python(hub: &Hub, cache: &Path, offline: bool, script: &str) -> String {
    let python = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.venv/bin/python");
    assert!(
        python.exists(),
        "there is no {}; `cargo xtask env` makes it",
        python.display()
    );
    let home = tempfile::tempdir().unwrap();
    // HF_HUB_DISABLE_TELEMETRY makes kernels 0.17.2 send a User-Agent that its HTTP client refuses.
    let output = Command::new(python)
        .args(["-c", script])
        .env_clear()
        .env("HOME", home.path())
        .env("HF_ENDPOINT", hub.endpoint())
        .env("HF_HUB_CACHE", cache)
        .env("KERNELS_CACHE", cache)
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

/// Loads a kernel with the one that it needs, and one with large files.
const USE: &str = "\
import kernels, pathlib
top = kernels.get_kernel('kernels-test/top', version=1, backend='cpu')
relu = kernels.get_kernel('kernels-test/relu', version=2, backend='cpu')
table = pathlib.Path(relu.__file__).parent / 'data/table.bin'
print(top.four(), relu.VERSION, len(table.read_bytes()))
";
const ANSWER: &str = "4 2 1280";
const KERNELS: [(&str, &str); 3] = [
    ("kernels-test/top", "v1"),
    ("kernels-test/leaf", "v3"),
    ("kernels-test/relu", "v2"),
];

#[test]
fn a_tree_of_kernels_is_the_same_whoever_brought_it() {
    let hub = Hub::builder()
        .organization("kernels-test", hub_fixture::Trust::Trusted)
        .kernels(hub_fixture::samples::all())
        .resolve_cache()
        .start()
        .unwrap();
    let scene = Scene::of(hub);
    let theirs = tempfile::tempdir().unwrap();
    assert_eq!(python(&scene.hub, theirs.path(), false, USE), ANSWER);
    let registry = scene.registry();
    fetch(&registry, "kernels-test/top@v1").unwrap();
    fetch(&registry, "kernels-test/relu@v2").unwrap();
    for (repository, revision) in KERNELS {
        let commit = scene.hub.commit(repository, revision).unwrap();
        let part = format!("kernels--{}", repository.replace('/', "--"));
        let part = Path::new(&part)
            .join("snapshots")
            .join(commit)
            .join("build");
        let (theirs, ours) = (theirs.path().join(&part), scene.cache().join(&part));
        let found = files(&ours.join("torch-cpu"));
        assert!(!found.is_empty(), "{repository}");
        assert_eq!(found, files(&theirs.join("torch-cpu")), "{repository}");
    }
    scene.assert_clean();
}

#[test]
fn python_loads_a_tree_offline_that_the_registry_fetched() {
    let scene = Scene::new();
    fetch(&scene.registry(), "kernels-test/top@v1").unwrap();
    fetch(&scene.registry(), "kernels-test/relu@v2").unwrap();
    scene.hub.clear_requests();
    assert_eq!(python(&scene.hub, &scene.cache(), true, USE), ANSWER);
    assert!(scene.hub.requests().is_empty());
}

#[test]
fn the_registry_brings_only_what_is_missing_to_what_python_fetched() {
    let scene = Scene::new();
    python(&scene.hub, &scene.cache(), false, USE);
    scene.hub.clear_requests();
    for reference in ["kernels-test/top@v1", "kernels-test/relu@v2"] {
        let installed = fetch(&scene.registry(), reference).unwrap();
        assert!(installed.cached, "{reference}");
        installed.verified().unwrap();
    }
    let lines = scene.hub.request_lines();
    assert!(
        !lines.iter().any(|line| line.contains("/resolve/")),
        "{lines:#?}"
    );
    // From now on the branches are known here. The Python library itself does not load this cache
    // without a network: of a repository whose tree it has noted, it misses the other builds.
    for reference in ["kernels-test/top@v1", "kernels-test/relu@v2"] {
        fetch(&scene.offline(), reference)
            .unwrap()
            .verified()
            .unwrap();
    }
    scene.assert_clean();
}

#[test]
fn the_registry_works_offline_by_commit_from_what_python_fetched() {
    let scene = Scene::new();
    python(&scene.hub, &scene.cache(), false, USE);
    scene.hub.clear_requests();
    let commit = scene.hub.commit("kernels-test/relu", "v2").unwrap();
    let registry = scene
        .builder()
        .offline(true)
        .trust(["kernels-test/relu".parse().unwrap()])
        .build()
        .unwrap();
    let installed = fetch(&registry, &format!("kernels-test/relu@{commit}")).unwrap();
    let verified = installed.verified().unwrap();
    assert_eq!(verified.files()["data/table.bin"].len(), 1280);
    assert!(scene.hub.requests().is_empty());
}
