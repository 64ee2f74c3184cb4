//! Looking at kernels: builds, versions, descriptions, and every build of a kernel.

use std::fs;

use hub_fixture::samples;
use kernel_registry::{Distrust, Origin, Trust};
use kernel_spec::{Backend, KernelRef, System};

use crate::support::{Scene, fetch};

fn reference(text: &str) -> KernelRef {
    text.parse().unwrap()
}

fn machine(backend: Backend) -> System {
    System::new("x86_64", "linux", backend)
}

#[test]
fn builds_are_listed_with_reasons_for_any_machine() {
    let scene = Scene::new();
    let registry = scene.registry();
    for (text, backend, best) in [
        ("kernels-test/relu@v1", Backend::Cpu, Some("torch-cpu")),
        ("kernels-test/relu@v1", Backend::Tpu, Some("torch-tpu")),
        ("kernels-test/relu-tpu", Backend::Cpu, None),
        ("someone/relu@v1", Backend::Cpu, Some("torch-cpu")),
    ] {
        let builds = registry
            .builds(&reference(text), &machine(backend))
            .unwrap();
        let found = builds.resolution.best().map(|best| best.name.as_str());
        assert_eq!(found, best, "{text} on {backend}");
        assert_eq!(builds.origin, Origin::Hub);
        let reasons = builds.resolution.rejected.iter();
        assert!(reasons.clone().all(|one| one.rejection.is_some()));
    }
    for (text, kind) in [
        ("kernels-test/relu@v9", "version-not-found"),
        ("kernels-test/relu@main", "no-builds"),
        ("kernels-test/nothing", "repository-not-found"),
        ("./nothing", "local-kernel"),
    ] {
        let error = registry
            .builds(&reference(text), &machine(Backend::Cpu))
            .unwrap_err();
        assert_eq!(error.kind(), kind, "{text}: {error}");
    }
}

#[test]
fn versions_are_listed_online_and_off() {
    let scene = Scene::new();
    let repository = "kernels-test/relu".parse().unwrap();
    let all = scene
        .registry()
        .versions(&repository, &machine(Backend::Tpu))
        .unwrap();
    let numbers: Vec<_> = all.iter().map(|one| one.version).collect();
    assert_eq!(numbers, [1, 2]);
    let best = all[0].resolution.as_ref().unwrap().best().unwrap();
    assert_eq!(best.name, "torch-tpu");
    let error = scene
        .offline()
        .versions(&repository, &machine(Backend::Cpu))
        .unwrap_err();
    assert_eq!(error.kind(), "not-cached");
    // What was fetched is known; its other builds, too.
    fetch(&scene.registry(), "kernels-test/relu@v2").unwrap();
    let cached = scene
        .offline()
        .versions(&repository, &machine(Backend::Tpu))
        .unwrap();
    let numbers: Vec<_> = cached.iter().map(|one| one.version).collect();
    assert_eq!(numbers, [2]);
    let best = cached[0].resolution.as_ref().unwrap().best().unwrap();
    assert_eq!(best.name, "torch-tpu");
}

#[test]
fn a_kernel_of_a_stranger_can_be_looked_at_and_says_why_it_would_not_run() {
    let scene = Scene::new();
    let registry = scene.registry();
    let kernel = registry.describe(&reference("someone/relu@v1")).unwrap();
    assert_eq!(kernel.trust, Err(Distrust::NotListed));
    assert_eq!(kernel.metadata.name.as_str(), "relu");
    assert_eq!(kernel.variant, "torch-cpu");
    assert_eq!(
        registry.resolve(&kernel.reference).unwrap_err().kind(),
        "untrusted"
    );
    let known = registry
        .describe(&reference("kernels-test/relu@v1"))
        .unwrap();
    assert_eq!(known.trust, Ok(Trust::Publisher));
    let lines = scene.hub.request_lines();
    assert!(!lines.iter().any(|line| line.contains(".py")), "{lines:#?}");
}

#[test]
fn what_could_not_run_can_be_looked_at() {
    let scene = Scene::new();
    let kernel = scene
        .registry()
        .describe(&reference("kernels-test/too-new@v1"))
        .unwrap();
    let needed = kernel.metadata.kernels_minver.unwrap();
    assert_eq!(needed.to_string(), "99.1.0");
    // The kernels that it needs are not looked for.
    let kernel = scene
        .registry()
        .describe(&reference("kernels-test/cycle-a@v1"))
        .unwrap();
    assert_eq!(kernel.metadata.kernel_depends.len(), 1);
}

#[test]
fn every_build_is_resolved_with_what_each_of_them_needs() {
    let scene = Scene::new();
    let registry = scene.registry();
    let all = registry
        .resolve_every_build(&reference("kernels-test/relu"))
        .unwrap();
    let mut names: Vec<_> = all.iter().map(|one| one.variant.as_str()).collect();
    names.sort_unstable();
    let expected = [
        "torch-cpu",
        "torch-cuda",
        "torch-neuron",
        "torch-npu",
        "torch-tpu",
    ];
    assert_eq!(names, expected);
    // Of the newest version, each of them.
    assert!(all.iter().all(|one| one.version == Some(2)), "{all:#?}");
    for resolved in &all {
        registry.install(resolved).unwrap().verified().unwrap();
    }
    let tree = registry
        .resolve_every_build(&reference("kernels-test/top@v1"))
        .unwrap();
    let names: Vec<_> = tree.iter().map(kernel_registry::Resolved::name).collect();
    assert_eq!(names, ["kernels-test/top@v1", "kernels-test/leaf@v3"]);
}

#[test]
fn a_build_below_a_bytecode_folder_is_hashed() {
    let folder = tempfile::tempdir().unwrap();
    let kernel = folder.path().join("__pycache__/relu");
    samples::relu().write_branch("v1", &kernel).unwrap();
    let scene = Scene::new();
    let registry = scene.registry();
    let path = reference(kernel.join("build/torch-cpu").to_str().unwrap());
    assert!(registry.verify(&path).unwrap()[0].is_ok());
    fs::write(kernel.join("build/torch-cpu/__init__.py"), "import os\n").unwrap();
    let found = registry.verify(&path).unwrap();
    assert!(!found[0].is_ok());
    let text = &found[0].violations[0];
    assert!(text.contains("mismatch for __init__.py"), "{text}");
}

#[test]
fn a_kernel_is_vendored_with_what_it_needs_and_replaces_what_was_there() {
    let scene = Scene::new();
    let folder = tempfile::tempdir().unwrap();
    let installed = fetch(&scene.registry(), "kernels-test/top@v1").unwrap();
    let target = folder.path().join("kernels-test/top/build/torch-cpu");
    fs::create_dir_all(&target).unwrap();
    fs::write(target.join("stray.py"), "import os\n").unwrap();
    let written = kernel_registry::vendor::vendor(&installed, folder.path()).unwrap();
    let mut names: Vec<_> = written
        .iter()
        .map(|one| one.repository.to_string())
        .collect();
    names.sort();
    assert_eq!(names, ["kernels-test/leaf", "kernels-test/top"]);
    assert!(!target.join("stray.py").exists());
    // Byte for byte what the Hub has, metadata included.
    let original = fs::read(installed.path.join("metadata.json")).unwrap();
    assert_eq!(fs::read(target.join("metadata.json")).unwrap(), original);
    let kernels = kernel_registry::vendor::vendored(folder.path()).unwrap();
    let registry = scene.builder().offline(true).local_kernels(kernels);
    let local = fetch(&registry.build().unwrap(), "kernels-test/top@v1").unwrap();
    assert_eq!(local.resolved.origin, Origin::Local);
    assert_eq!(local.verified().unwrap().dependencies().len(), 1);
    // A folder of the user's own has no place of its own.
    let path = reference(target.to_str().unwrap());
    let own = scene.registry();
    let own = own.install(&own.resolve(&path).unwrap()).unwrap();
    let error = kernel_registry::vendor::vendor(&own, folder.path()).unwrap_err();
    assert_eq!(error.kind(), "local-kernel");
}
