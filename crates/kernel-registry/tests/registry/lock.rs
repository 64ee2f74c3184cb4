//! `kernels.lock`: written, followed, stale and missing.

use std::fs;
use std::path::PathBuf;

use hub_fixture::{KernelTree, samples};
use kernel_registry::{Registry, read_lockfile};
use kernel_spec::{CommitId, Dependency, Lockfile, Requirement};

use crate::support::{Scene, fetch, resolve};

const RELU: &str = "kernels-test/relu@v1";

fn need(repository: &str, version: u64) -> Dependency {
    Dependency {
        repository: repository.parse().unwrap(),
        requirement: Requirement::Version(version),
    }
}

/// Locks kernels to what the Hub has now, and gives the lock's path.
fn write(scene: &Scene, folder: &tempfile::TempDir, roots: &[Dependency]) -> PathBuf {
    let lock = scene.registry().write_lock(roots).unwrap();
    let path = folder.path().join("kernels.lock");
    fs::write(&path, lock.render()).unwrap();
    assert_eq!(read_lockfile(&path).unwrap(), Some(lock));
    path
}

fn locked(scene: &Scene, path: &std::path::Path) -> Registry {
    scene.builder().lockfile(path).locked(true).build().unwrap()
}

fn frozen(scene: &Scene, path: &std::path::Path) -> Registry {
    scene.builder().lockfile(path).frozen(true).build().unwrap()
}

/// Another state of version 1.
fn move_branch(scene: &Scene) {
    let build = samples::relu_build("torch-cpu", 1).file("new.py", "NEW = 1\n");
    let tree = KernelTree::new("kernels-test/relu").build("v1", build);
    scene.hub.put(&tree).unwrap();
}

#[test]
fn the_locked_commit_is_taken_when_the_branch_has_moved() {
    let (scene, folder) = (Scene::new(), tempfile::tempdir().unwrap());
    let before = scene.hub.commit("kernels-test/relu", "v1").unwrap();
    let path = write(&scene, &folder, &[need("kernels-test/relu", 1)]);
    move_branch(&scene);
    for reference in [RELU, "kernels-test/relu"] {
        let installed = fetch(&locked(&scene, &path), reference).unwrap();
        let commit = installed.resolved.commit.as_ref().unwrap();
        assert_eq!(commit.as_str(), before, "{reference}");
        assert!(!installed.path.join("new.py").exists());
        installed.verified().unwrap();
    }
    let free = fetch(&scene.registry(), RELU).unwrap();
    assert!(free.path.join("new.py").exists());
    scene.assert_clean();
}

#[test]
fn a_lock_has_everything_that_is_needed() {
    let (scene, folder) = (Scene::new(), tempfile::tempdir().unwrap());
    let path = write(&scene, &folder, &[need("kernels-test/top", 1)]);
    let lock = read_lockfile(&path).unwrap().unwrap();
    for (repository, version) in [("kernels-test/top", 1), ("kernels-test/leaf", 3)] {
        let commit = scene
            .hub
            .commit(repository, &format!("v{version}"))
            .unwrap();
        let locked = lock.commit(&need(repository, version)).unwrap();
        assert_eq!(locked.as_str(), commit, "{repository}");
    }
    fetch(&locked(&scene, &path), "kernels-test/top@v1")
        .unwrap()
        .verified()
        .unwrap();
}

#[test]
fn a_frozen_kernel_comes_from_the_cache_without_a_request() {
    let (scene, folder) = (Scene::new(), tempfile::tempdir().unwrap());
    let path = write(&scene, &folder, &[need("kernels-test/top", 1)]);

    let error = fetch(&frozen(&scene, &path), "kernels-test/top@v1").unwrap_err();
    assert_eq!(error.kind(), "not-cached", "{error}");
    assert!(error.to_string().contains("is missing"), "{error}");
    let commit = scene.hub.commit("kernels-test/top", "v1").unwrap();

    fetch(&locked(&scene, &path), "kernels-test/top@v1").unwrap();
    scene.hub.clear_requests();
    let installed = fetch(&frozen(&scene, &path), "kernels-test/top@v1").unwrap();
    let verified = installed.verified().unwrap();
    assert_eq!(
        verified.commit().map(CommitId::as_str),
        Some(commit.as_str())
    );
    assert_eq!(verified.dependencies().len(), 1);
    assert!(scene.hub.requests().is_empty());
}

#[test]
fn what_a_lock_does_not_have_is_stale_not_resolved() {
    let (scene, folder) = (Scene::new(), tempfile::tempdir().unwrap());
    let path = write(&scene, &folder, &[need("kernels-test/relu", 1)]);
    fetch(&scene.registry(), "kernels-test/top@v1").unwrap();
    scene.hub.clear_requests();
    for reference in [
        "kernels-test/relu@v2",
        "kernels-test/relu@release-1",
        "kernels-test/top@v1",
        "kernels-test/top",
    ] {
        for registry in [locked(&scene, &path), frozen(&scene, &path)] {
            let error = resolve(&registry, reference).unwrap_err();
            assert_eq!(error.kind(), "lock-stale", "{reference}: {error}");
            let text = error.to_string();
            assert!(
                text.contains("is stale") && text.contains(reference),
                "{text}"
            );
            assert!(error.hint().unwrap().contains("kernel-cli lock"));
        }
    }
    assert!(scene.hub.requests().is_empty());
}

#[test]
fn a_lock_without_a_needed_kernel_is_stale() {
    let (scene, folder) = (Scene::new(), tempfile::tempdir().unwrap());
    let mut lock = Lockfile::default();
    let commit = scene.hub.commit("kernels-test/top", "v1").unwrap();
    lock.insert(need("kernels-test/top", 1), commit.parse().unwrap());
    let path = folder.path().join("kernels.lock");
    fs::write(&path, lock.render()).unwrap();
    let error = resolve(&locked(&scene, &path), "kernels-test/top@v1").unwrap_err();
    assert_eq!(error.kind(), "lock-stale");
    assert!(
        error.to_string().contains("kernels-test/leaf@v3"),
        "{error}"
    );
}

#[test]
fn a_missing_lock_is_an_error_where_one_is_to_be_followed() {
    let (scene, folder) = (Scene::new(), tempfile::tempdir().unwrap());
    let path = folder.path().join("kernels.lock");
    for registry in [locked(&scene, &path), frozen(&scene, &path)] {
        let error = resolve(&registry, RELU).unwrap_err();
        assert_eq!(error.kind(), "lock-missing");
        let text = error.to_string();
        assert!(text.contains(&path.display().to_string()), "{text}");
        assert!(error.hint().unwrap().contains("kernel-cli lock"));
    }
    assert!(scene.hub.requests().is_empty());
    // Without being asked to, nobody looks for it.
    resolve(&scene.registry(), RELU).unwrap();
}

#[test]
fn a_lock_that_cannot_be_read_is_named() {
    let (scene, folder) = (Scene::new(), tempfile::tempdir().unwrap());
    let path = folder.path().join("kernels.lock");
    for text in ["", "{}", "[{\"dependency\": 1}]"] {
        fs::write(&path, text).unwrap();
        let error = resolve(&locked(&scene, &path), RELU).unwrap_err();
        let message = error.to_string();
        assert!(message.contains("kernels.lock"), "{text:?}: {message}");
    }
}

#[test]
fn a_locked_commit_that_the_hub_does_not_have_is_named() {
    let (scene, folder) = (Scene::new(), tempfile::tempdir().unwrap());
    let gone = "0123456789".repeat(4);
    let mut lock = Lockfile::default();
    lock.insert(need("kernels-test/relu", 1), gone.parse().unwrap());
    let path = folder.path().join("kernels.lock");
    fs::write(&path, lock.render()).unwrap();
    let error = resolve(&locked(&scene, &path), RELU).unwrap_err();
    assert_eq!(error.kind(), "revision-not-found");
    assert!(error.to_string().contains(&gone), "{error}");
}

#[test]
fn a_lock_vouches_for_no_publisher() {
    let (scene, folder) = (Scene::new(), tempfile::tempdir().unwrap());
    let commit = scene.hub.commit("someone/relu", "v1").unwrap();
    let mut lock = Lockfile::default();
    lock.insert(need("someone/relu", 1), commit.parse().unwrap());
    let path = folder.path().join("kernels.lock");
    fs::write(&path, lock.render()).unwrap();
    for registry in [locked(&scene, &path), frozen(&scene, &path)] {
        let error = resolve(&registry, "someone/relu@v1").unwrap_err();
        assert_eq!(error.kind(), "untrusted", "{error}");
    }
}

#[test]
fn a_circle_cannot_be_locked() {
    let scene = Scene::new();
    let error = scene
        .registry()
        .write_lock(&[need("kernels-test/cycle-a", 1)])
        .unwrap_err();
    assert_eq!(error.kind(), "dependency-cycle");
}

#[test]
fn the_kernels_in_the_program_are_locked_and_followed_without_the_hub() {
    let (scene, folder) = (Scene::new(), tempfile::tempdir().unwrap());
    let path = write(&scene, &folder, &[need("hub-kernels/rms-norm", 1)]);
    fetch(&frozen(&scene, &path), "hub-kernels/rms-norm@v1")
        .unwrap()
        .verified()
        .unwrap();
    assert!(scene.hub.requests().is_empty());
}
