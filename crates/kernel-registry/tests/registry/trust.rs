//! Whose kernels may run.

use std::fs;

use hub_fixture::{Fault, Hub, Trust as Publisher, samples};
use kernel_registry::{Distrust, Error, Event, Trust};

use crate::support::{Scene, fetch, listen, resolve};

const RELU: &str = "kernels-test/relu@v1";

fn reason(error: Error) -> Distrust {
    assert_eq!(error.kind(), "untrusted", "{error}");
    let hint = error.hint().unwrap();
    assert!(hint.contains("--trust "), "{hint}");
    match error {
        Error::Untrusted { reason, .. } => reason,
        other => panic!("{other}"),
    }
}

/// Checks that a refused repository was not asked about.
fn assert_only_the_publisher_was_asked_for(scene: &Scene) {
    for line in scene.hub.request_lines() {
        assert!(line.starts_with("GET /api/organizations/"), "{line}");
    }
    scene.assert_clean();
}

#[test]
fn a_publisher_that_the_hub_does_not_list_is_refused_before_anything_is_fetched() {
    let scene = Scene::new();
    let error = fetch(&scene.registry(), "someone/relu@v1").unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("refusing `someone/relu`") && text.contains("not a trusted publisher"),
        "{text}"
    );
    assert_eq!(reason(error), Distrust::NotListed);
    assert_only_the_publisher_was_asked_for(&scene);
}

#[test]
fn a_name_that_is_no_organisation_is_refused() {
    let hub = Hub::builder()
        .organization("kernels-test", Publisher::User)
        .kernel(samples::relu());
    for (scene, reference) in [
        (Scene::new(), "nobody/relu@v1"),
        (Scene::of(hub.start().unwrap()), RELU),
    ] {
        let error = fetch(&scene.registry(), reference).unwrap_err();
        assert!(error.to_string().contains("is not an organisation"));
        assert_eq!(reason(error), Distrust::NoOrganisation);
        assert_only_the_publisher_was_asked_for(&scene);
    }
}

#[test]
fn a_repository_that_was_allowed_by_name_runs_and_no_other() {
    let scene = Scene::new();
    let registry = scene.builder().trust(["someone/relu".parse().unwrap()]);
    let installed = fetch(&registry.build().unwrap(), "someone/relu@v1").unwrap();
    assert_eq!(installed.resolved.trust, Trust::Allowed);
    let verified = installed.verified().unwrap();
    assert_eq!(verified.trust(), Trust::Allowed);
    let lines = scene.hub.request_lines();
    assert!(!lines.iter().any(|line| line.contains("/organizations/")));

    let other = scene.builder().trust(["someone/other".parse().unwrap()]);
    let error = fetch(&other.build().unwrap(), "someone/relu@v1").unwrap_err();
    assert_eq!(reason(error), Distrust::NotListed);
    // Being allowed once is not remembered.
    let error = fetch(&scene.offline(), "someone/relu@v1").unwrap_err();
    assert_eq!(reason(error), Distrust::NotRemembered);
}

#[test]
fn a_needed_kernel_of_somebody_else_is_not_trusted_with_the_one_that_needs_it() {
    let build = samples::relu_build("torch-cpu", 1).metadata(|metadata| {
        metadata.kernel_depends.push(kernel_spec::Dependency {
            repository: "someone/relu".parse().unwrap(),
            requirement: kernel_spec::Requirement::Version(1),
        });
    });
    let tree = hub_fixture::KernelTree::new("kernels-test/needy").build("v1", build);
    let scene = Scene::new();
    scene.hub.put(&tree).unwrap();
    let error = resolve(&scene.registry(), "kernels-test/needy@v1").unwrap_err();
    assert!(error.to_string().contains("`someone/relu`"), "{error}");
    assert_eq!(reason(error), Distrust::NotListed);
}

#[test]
fn a_hub_that_cannot_be_asked_trusts_nobody() {
    for fault in [
        Fault::on("/organizations/").close(),
        Fault::on("/organizations/").status(500),
        Fault::on("/organizations/").status(403),
    ] {
        let scene = Scene::new();
        scene.hub.inject(fault);
        let error = fetch(&scene.registry(), RELU).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("could not be asked"), "{text}");
        assert!(text.contains("/api/organizations/kernels-test"), "{text}");
        assert!(matches!(reason(error), Distrust::Unreachable(_)));
        assert_only_the_publisher_was_asked_for(&scene);
    }
    // A port on which nobody listens.
    let gone = Hub::with_samples().unwrap().endpoint().to_owned();
    let scene = Scene::new();
    let registry = scene.builder().endpoint(gone).build().unwrap();
    let error = fetch(&registry, RELU).unwrap_err();
    assert!(matches!(reason(error), Distrust::Unreachable(_)));
}

#[test]
fn an_overview_that_makes_no_sense_is_no_yes() {
    for (body, kind) in [
        ("{\"trustedKernelPublisher\": false}", "untrusted"),
        ("{\"trustedKernelPublisher\": null}", "untrusted"),
        ("{}", "untrusted"),
        ("[]", "bad-answer"),
        ("<html>", "bad-answer"),
    ] {
        let scene = Scene::new();
        scene.hub.inject(Fault::on("/organizations/").body(body));
        let error = fetch(&scene.registry(), RELU).unwrap_err();
        assert_eq!(error.kind(), kind, "{body}");
        assert_only_the_publisher_was_asked_for(&scene);
    }
}

#[test]
fn a_yes_is_remembered_offline_for_its_endpoint() {
    let scene = Scene::new();
    let first = fetch(&scene.registry(), RELU).unwrap();
    assert_eq!(first.resolved.trust, Trust::Publisher);
    let offline = fetch(&scene.offline(), RELU).unwrap();
    assert_eq!(offline.resolved.trust, Trust::Remembered);

    let other = scene.builder().endpoint("http://127.0.0.1:9").offline(true);
    let error = fetch(&other.build().unwrap(), RELU).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("not known"), "{text}");
    assert_eq!(reason(error), Distrust::NotRemembered);
}

#[test]
fn nobody_is_trusted_offline_who_was_never_asked_about() {
    let scene = Scene::new();
    let error = fetch(&scene.offline(), RELU).unwrap_err();
    assert_eq!(reason(error), Distrust::NotRemembered);
    assert!(scene.hub.requests().is_empty());
    assert!(!scene.cache().exists());
}

/// Makes the remembered answers look as if they were given long ago.
fn age_memory(scene: &Scene) {
    let path = scene.cache().join(".kernel-registry/trust.json");
    let mut memory: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    memory["publishers"][format!("{}/", scene.hub.endpoint())]["kernels-test"] = 1.into();
    fs::write(&path, memory.to_string()).unwrap();
}

#[test]
fn an_old_yes_is_asked_for_again_and_can_be_taken_back() {
    let scene = Scene::new();
    fetch(&scene.registry(), RELU).unwrap();
    age_memory(&scene);
    scene.hub.set_trust("kernels-test", Publisher::Untrusted);
    let error = fetch(&scene.registry(), RELU).unwrap_err();
    assert_eq!(reason(error), Distrust::NotListed);
    // A no counts offline, too.
    let error = fetch(&scene.offline(), RELU).unwrap_err();
    assert_eq!(reason(error), Distrust::NotRemembered);
}

#[test]
fn an_old_yes_holds_with_a_warning_while_the_hub_cannot_be_asked() {
    let scene = Scene::new();
    fetch(&scene.registry(), RELU).unwrap();
    age_memory(&scene);
    scene.hub.inject(Fault::on("/organizations/").status(503));
    let (registry, events) = listen(scene.builder());
    let resolved = resolve(&registry, RELU).unwrap();
    assert_eq!(resolved.trust, Trust::Remembered);
    let events = events.lock().unwrap();
    assert!(
        events
            .iter()
            .any(|event| matches!(event, Event::Warning(text) if text.contains("earlier answer"))),
        "{events:?}"
    );
}

#[test]
fn a_kernel_without_signature_is_refused_where_one_is_required() {
    let scene = Scene::new();
    let strict = scene.builder().require_signed(true).build().unwrap();
    let error = fetch(&strict, RELU).unwrap_err();
    assert_eq!(error.kind(), "signature-required");
    assert!(error.hint().unwrap().contains("--require-signed"));
}
