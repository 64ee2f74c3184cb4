//! Kernels that need kernels.

use hub_fixture::{KernelTree, samples};
use kernel_spec::{Dependency, Requirement};

use crate::support::{Scene, fetch, resolve};

/// A kernel that needs others, each `name@v<N>`.
fn needing(name: &str, needs: &[&str]) -> KernelTree {
    let needs: Vec<_> = needs
        .iter()
        .map(|need| {
            let (name, version) = need.split_once("@v").unwrap();
            Dependency {
                repository: format!("kernels-test/{name}").parse().unwrap(),
                requirement: Requirement::Version(version.parse().unwrap()),
            }
        })
        .collect();
    let build = samples::relu_build("torch-cpu", 1)
        .metadata(move |metadata| metadata.kernel_depends.extend(needs.clone()));
    KernelTree::new(format!("kernels-test/{name}")).build("v1", build)
}

#[test]
fn what_several_kernels_need_is_resolved_once() {
    let scene = Scene::new();
    for tree in [
        needing("root", &["left@v1", "right@v1"]),
        needing("left", &["shared@v1"]),
        needing("right", &["shared@v1"]),
        needing("shared", &[]),
    ] {
        scene.hub.put(&tree).unwrap();
    }
    let installed = fetch(&scene.registry(), "kernels-test/root@v1").unwrap();
    let names: Vec<_> = installed
        .needed
        .iter()
        .map(|kernel| kernel.resolved.name())
        .collect();
    assert_eq!(names.len(), 3, "{names:?}");
    assert_eq!(names[0], "kernels-test/shared@v1");
    let root = installed.verified().unwrap();
    let [left, right] = root.dependencies() else {
        panic!("{:?}", root.dependencies().len());
    };
    assert!(left.dependencies()[0].is_same(&right.dependencies()[0]));
    let lines = scene.hub.request_lines();
    for (part, count) in [
        ("/shared/refs", 1),
        ("/organizations/", 1),
        ("/shared/tree/", 1),
    ] {
        let sent = lines.iter().filter(|line| line.contains(part)).count();
        assert_eq!(sent, count, "{part}: {lines:#?}");
    }
}

#[test]
fn two_states_of_one_repository_are_refused() {
    let scene = Scene::new();
    let shared = KernelTree::new("kernels-test/shared")
        .build("v1", samples::relu_build("torch-cpu", 1))
        .build("v2", samples::relu_build("torch-cpu", 2));
    for tree in [
        needing("root", &["left@v1", "shared@v2"]),
        needing("left", &["shared@v1"]),
        shared,
    ] {
        scene.hub.put(&tree).unwrap();
    }
    let error = resolve(&scene.registry(), "kernels-test/root@v1").unwrap_err();
    assert_eq!(error.kind(), "dependency-conflict");
    let text = error.to_string();
    assert!(
        text.contains("`kernels-test/shared@v1`") && text.contains("`kernels-test/shared@v2`"),
        "{text}"
    );
}

#[test]
fn several_references_are_resolved_at_the_same_time_each_with_its_outcome() {
    let scene = Scene::new();
    let references = ["relu@v1", "nothing@v1", "top@v1", "relu@v9"]
        .map(|name| format!("kernels-test/{name}").parse().unwrap());
    let resolved = scene.registry().resolve_all(&references);
    let kinds: Vec<_> = resolved
        .iter()
        .map(|one| {
            one.as_ref()
                .map_or_else(kernel_registry::Error::kind, |_| "found")
        })
        .collect();
    let expected = [
        "found",
        "repository-not-found",
        "found",
        "version-not-found",
    ];
    assert_eq!(kinds, expected);
    let asked = scene.hub.request_lines();
    let asked = asked.iter().filter(|line| line.contains("/organizations/"));
    assert_eq!(asked.count(), 1);
}

#[test]
fn a_branch_that_moves_while_it_is_fetched_changes_nothing() {
    let scene = Scene::new();
    let registry = scene.registry();
    let resolved = resolve(&registry, "kernels-test/relu@v1").unwrap();
    let commit = resolved.commit.clone().unwrap();
    let build = samples::relu_build("torch-cpu", 1).file("new.py", "NEW = 1\n");
    let moved = KernelTree::new("kernels-test/relu").build("v1", build);
    scene.hub.put(&moved).unwrap();
    scene.hub.clear_requests();
    let installed = registry.install(&resolved).unwrap();
    installed.verified().unwrap();
    assert!(!installed.path.join("new.py").exists());
    for line in scene.hub.request_lines() {
        let pinned = line.contains(commit.as_str()) || line.contains("/cdn/");
        assert!(pinned, "{line}");
    }
}

#[test]
fn a_best_build_without_metadata_is_passed_over() {
    let scene = Scene::new();
    let tree = KernelTree::new("kernels-test/relu")
        .build("v1", samples::relu_build("torch-cpu", 1).without_metadata())
        .build("v1", samples::relu_build("torch-universal", 1));
    scene.hub.put(&tree).unwrap();
    let installed = fetch(&scene.registry(), "kernels-test/relu@v1").unwrap();
    assert_eq!(installed.resolved.variant, "torch-universal");
    installed.verified().unwrap();
}

#[test]
fn a_kernel_that_is_too_new_is_told_so_whatever_else_is_unknown() {
    for change in [
        r#""python-depends": ["something-new"]"#,
        r#""python-depends": [], "kernel-depends": "of another form""#,
    ] {
        let text = format!(
            r#"{{"name": "relu", "id": "_relu", "version": 1, "kernels-minver": "99.1.0",
                "license": "", "backend": {{"type": "cpu"}}, {change}}}"#
        );
        let scene = Scene::new();
        let build = samples::relu_build("torch-cpu", 1).raw_metadata(text);
        let tree = KernelTree::new("kernels-test/relu").build("v1", build);
        scene.hub.put(&tree).unwrap();
        let error = resolve(&scene.registry(), "kernels-test/relu@v1").unwrap_err();
        assert!(error.to_string().contains("99.1.0"), "{change}: {error}");
    }
}

#[test]
fn a_tree_of_100_000_entries_is_read_to_its_end() {
    let mut other = samples::relu_build("torch-cuda", 1).without_digest();
    for number in 0..100_000 {
        other = other.undigested(format!("data/{number}.txt"), "x");
    }
    let tree = KernelTree::new("kernels-test/relu")
        .build("v1", other)
        .build("v1", samples::relu_build("torch-cpu", 1));
    let scene = Scene::new();
    scene.hub.put(&tree).unwrap();
    let installed = fetch(&scene.registry(), "kernels-test/relu@v1").unwrap();
    installed.verified().unwrap();
    let lines = scene.hub.request_lines();
    let pages = lines.iter().filter(|line| line.contains("/tree/")).count();
    assert!(pages > 100, "{pages}");
    assert!(lines.len() < pages + 12, "{}", lines.len());
}
