//! Kernels that have moved to another repository.

use hub_fixture::{KernelTree, samples};
use kernel_registry::Event;

use crate::support::{Scene, fetch, listen, resolve};

const OLD: &str = "kernels-test/old-name";

fn status(destination: &str, revision: &str) -> String {
    format!("kind = \"redirect\"\ndestination = \"{destination}\"\nrevision = \"{revision}\"\n")
}

/// A repository whose branch says that it has moved.
fn moved(name: &str, branch: &str, destination: &str, revision: &str) -> KernelTree {
    let content = status(destination, revision);
    KernelTree::new(name).file(branch, "kernel-status.toml", content)
}

#[test]
fn peer_fault_43_an_old_name_leads_to_the_new_repository() {
    let scene = Scene::new();
    let (registry, events) = listen(scene.builder());
    let installed = fetch(&registry, "kernels-test/old-name@v1:ReLU").unwrap();
    let resolved = &installed.resolved;
    assert_eq!(
        resolved.repository.as_ref().unwrap().as_str(),
        "kernels-test/relu"
    );
    assert_eq!(resolved.version, Some(2));
    assert_eq!(
        resolved.reference.to_string(),
        "kernels-test/old-name@v1:ReLU"
    );
    installed.verified().unwrap();
    let events = events.lock().unwrap();
    let told = |event: &Event| matches!(event, Event::Note(text) if text.contains("moved to `kernels-test/relu@v2:ReLU`"));
    assert!(events.iter().any(told), "{events:?}");
    // Without a network, the same.
    scene.hub.clear_requests();
    let offline = fetch(&scene.offline(), "kernels-test/old-name@v1").unwrap();
    assert_eq!(offline.path, installed.path);
    assert_eq!(scene.hub.request_lines(), Vec::<String>::new());
    scene.assert_clean();
}

#[test]
fn a_status_on_main_counts_where_the_versions_lead_nowhere() {
    let scene = Scene::new();
    scene
        .hub
        .put(&moved(OLD, "main", "kernels-test/relu", "v1"))
        .unwrap();
    for reference in [OLD.to_owned(), format!("{OLD}@v3")] {
        let installed = fetch(&scene.registry(), &reference).unwrap();
        let resolved = &installed.resolved;
        assert_eq!(resolved.name(), "kernels-test/relu@v1", "{reference}");
        let offline = fetch(&scene.offline(), &reference).unwrap();
        assert_eq!(offline.path, installed.path, "{reference}");
    }
}

#[test]
fn a_commit_that_is_named_is_what_is_wanted() {
    let scene = Scene::new();
    let tree = samples::relu().file(
        "v1",
        "kernel-status.toml",
        status("kernels-test/leaf", "v3"),
    );
    scene.hub.put(&tree).unwrap();
    let commit = scene.hub.commit("kernels-test/relu", "v1").unwrap();
    let resolved = resolve(&scene.registry(), &format!("kernels-test/relu@{commit}")).unwrap();
    assert_eq!(resolved.repository.unwrap().as_str(), "kernels-test/relu");
    let moved = resolve(&scene.registry(), "kernels-test/relu@v1").unwrap();
    assert_eq!(moved.repository.unwrap().as_str(), "kernels-test/leaf");
}

#[test]
fn circles_are_told_and_strangers_are_not_trusted() {
    let scene = Scene::new();
    for (name, next) in [("a", "b"), ("b", "c"), ("c", "a")] {
        let destination = format!("kernels-test/{next}");
        let tree = moved(&format!("kernels-test/{name}"), "v1", &destination, "v1");
        scene.hub.put(&tree).unwrap();
    }
    let error = resolve(&scene.registry(), "kernels-test/a@v1").unwrap_err();
    assert_eq!(error.kind(), "redirect-cycle");
    let text = error.to_string();
    assert!(
        text.contains("`kernels-test/b` -> `kernels-test/c` -> `kernels-test/a`"),
        "{text}"
    );
    let itself = moved(OLD, "v1", OLD, "v1");
    scene.hub.put(&itself).unwrap();
    let error = resolve(&scene.registry(), "kernels-test/old-name@v1").unwrap_err();
    assert_eq!(error.kind(), "redirect-cycle");

    scene
        .hub
        .put(&moved(OLD, "v1", "someone/relu", "v1"))
        .unwrap();
    let error = resolve(&scene.registry(), "kernels-test/old-name@v1").unwrap_err();
    assert_eq!(error.kind(), "untrusted");
    assert!(error.to_string().contains("`someone/relu`"), "{error}");
}

#[test]
fn a_status_that_makes_no_sense_is_named_with_its_repository() {
    let scene = Scene::new();
    for content in ["kind = \"gone\"", "kind =", "destination = \"../x\"", ""] {
        let tree = KernelTree::new(OLD).file("v1", "kernel-status.toml", content);
        scene.hub.put(&tree).unwrap();
        let error = resolve(&scene.registry(), "kernels-test/old-name@v1").unwrap_err();
        assert!(error.to_string().contains(OLD), "{error}");
    }
}
