//! From a reference to files in the cache, and back without a network.

use std::fs;

use hub_fixture::{Hub, KernelTree, Trust as Publisher, samples};
use kernel_registry::{Event, Origin};
use kernel_spec::{Backend, System};

use crate::support::{Scene, fetch, files, files_of_build, listen, resolve};

const RELU: &str = "kernels-test/relu";

#[test]
fn a_version_brings_the_files_of_the_one_build_that_fits() {
    let scene = Scene::new();
    let installed = fetch(&scene.registry(), "kernels-test/relu@v1").unwrap();
    assert_eq!(installed.resolved.version, Some(1));
    assert_eq!(installed.resolved.variant, "torch-cpu");
    assert_eq!(installed.resolved.origin, Origin::Hub);
    assert!(!installed.cached);

    let expected = files_of_build(&samples::relu(), "v1", "torch-cpu");
    let snapshot = scene.snapshot(RELU, "v1");
    assert_eq!(installed.path, snapshot.join("build/torch-cpu"));
    assert_eq!(files(&installed.path), expected);
    let size: usize = expected.values().map(Vec::len).sum();
    assert_eq!(installed.bytes, size as u64);
    let builds: Vec<_> = fs::read_dir(snapshot.join("build")).unwrap().collect();
    assert_eq!(builds.len(), 1, "{builds:?}");
    scene.assert_clean();
}

#[test]
fn the_cache_has_the_layout_of_the_python_library() {
    let scene = Scene::new();
    let installed = fetch(&scene.registry(), "kernels-test/relu@v1").unwrap();
    let repository = scene.repository(RELU);
    let commit = scene.hub.commit(RELU, "v1").unwrap();
    assert_eq!(
        fs::read_to_string(repository.join("refs/v1")).unwrap(),
        commit
    );
    for (name, blob) in [
        ("__init__.py", 40),
        ("layers/__init__.py", 40),
        ("data/table.bin", 64),
        ("_relu.abi3.so", 64),
    ] {
        let link = installed.path.join(name);
        let target = fs::read_link(&link).unwrap();
        assert!(target.is_relative(), "{target:?}");
        let found = fs::canonicalize(link.parent().unwrap().join(target)).unwrap();
        let blobs = fs::canonicalize(repository.join("blobs")).unwrap();
        assert_eq!(found.parent(), Some(blobs.as_path()), "{name}");
        assert_eq!(found.file_name().unwrap().len(), blob, "{name}");
    }
    let leftovers: Vec<_> = files(&repository.join("blobs"))
        .into_keys()
        .filter(|name| name.contains('.'))
        .collect();
    assert!(leftovers.is_empty(), "{leftovers:?}");
}

#[test]
fn branch_tag_and_commit_lead_to_the_same_files() {
    let scene = Scene::new();
    let (commit, second) = (
        scene.hub.commit(RELU, "v1").unwrap(),
        scene.hub.commit(RELU, "v2").unwrap(),
    );
    for (reference, expected) in [
        ("kernels-test/relu@v2".to_owned(), &second),
        ("kernels-test/relu@release-1".to_owned(), &commit),
        (format!("kernels-test/relu@{commit}"), &commit),
        (format!("kernels-test/relu@{}", &commit[..10]), &commit),
    ] {
        let installed = fetch(&scene.registry(), &reference).unwrap();
        let found = installed.resolved.commit.as_ref().unwrap();
        assert_eq!(found.as_str(), expected, "{reference}");
        installed.verified().unwrap();
    }
    assert_eq!(
        fs::read_to_string(scene.repository(RELU).join("refs/release-1")).unwrap(),
        commit
    );
    scene.assert_clean();
}

#[test]
fn the_newest_version_with_a_fitting_build_is_taken_and_named() {
    let tree = KernelTree::new("kernels-test/grown")
        .build("v2", samples::relu_build("torch-cpu", 2))
        .build("v10", samples::relu_build("torch-cpu", 10))
        .build("v11", samples::relu_build("torch-cuda", 11));
    let hub = Hub::builder()
        .organization("kernels-test", Publisher::Trusted)
        .kernel(tree);
    let scene = Scene::of(hub.start().unwrap());
    let (registry, events) = listen(scene.builder());
    let installed = fetch(&registry, "kernels-test/grown").unwrap();
    assert_eq!(installed.resolved.version, Some(10));
    let events = events.lock().unwrap();
    assert!(
        events.iter().any(
            |event| matches!(event, Event::Note(text) if text.contains("version 10, build `torch-cpu`"))
        ),
        "{events:?}"
    );
}

#[test]
fn a_build_for_another_machine_is_refused_with_the_reasons_and_a_version_that_fits() {
    let tree = KernelTree::new("kernels-test/narrow")
        .build("v1", samples::relu_build("torch-cpu", 1))
        .build("v2", samples::relu_build("torch-cuda", 2));
    let hub = Hub::builder()
        .organization("kernels-test", Publisher::Trusted)
        .kernel(tree);
    let scene = Scene::of(hub.start().unwrap());
    let error = fetch(&scene.registry(), "kernels-test/narrow@v2").unwrap_err();
    assert_eq!(error.kind(), "no-variant");
    assert!(error.to_string().contains("torch-cuda"), "{error}");
    let hint = error.hint().unwrap();
    assert!(hint.contains("kernels-test/narrow@v1"), "{hint}");
}

#[test]
fn what_does_not_exist_is_named_with_what_does() {
    let scene = Scene::new();
    for (reference, kind, part) in [
        (
            "kernels-test/relu@v7",
            "version-not-found",
            "available: 1, 2",
        ),
        (
            "kernels-test/relu@nightly",
            "revision-not-found",
            "`nightly`",
        ),
        ("kernels-test/relu@main", "no-builds", "`main`"),
        (
            "kernels-test/nothing@v1",
            "repository-not-found",
            "`kernels-test/nothing`",
        ),
        ("kernels-test/too-new@v1", "", "99.1"),
    ] {
        let error = fetch(&scene.registry(), reference).unwrap_err();
        if !kind.is_empty() {
            assert_eq!(error.kind(), kind, "{reference}: {error}");
        }
        assert!(error.to_string().contains(part), "{reference}: {error}");
        scene.assert_clean();
    }
}

#[test]
fn a_fetched_version_is_found_offline_without_a_request() {
    let scene = Scene::new();
    fetch(&scene.registry(), "kernels-test/relu@v1").unwrap();
    fetch(&scene.registry(), "kernels-test/relu@release-1").unwrap();
    scene.hub.clear_requests();
    let commit = scene.hub.commit(RELU, "v1").unwrap();
    for reference in [
        "kernels-test/relu@v1".to_owned(),
        "kernels-test/relu".to_owned(),
        "kernels-test/relu@release-1".to_owned(),
        format!("kernels-test/relu@{commit}"),
    ] {
        let installed = fetch(&scene.offline(), &reference).unwrap();
        assert_eq!(installed.resolved.origin, Origin::Cache, "{reference}");
        assert_eq!(installed.resolved.commit.as_ref().unwrap().as_str(), commit);
        assert!(installed.cached);
        installed.verified().unwrap();
    }
    assert_eq!(scene.hub.request_lines(), Vec::<String>::new());
}

#[test]
fn what_was_not_fetched_is_an_error_offline() {
    let scene = Scene::new();
    fetch(&scene.registry(), "kernels-test/relu@v1").unwrap();
    let error = fetch(&scene.offline(), "kernels-test/relu@v2").unwrap_err();
    assert_eq!(error.kind(), "not-cached");
    let text = error.to_string();
    assert!(text.contains("kernels-test/relu@v2"), "{text}");

    let file = scene
        .snapshot(RELU, "v1")
        .join("build/torch-cpu/layers/__init__.py");
    fs::remove_file(file).unwrap();
    let error = fetch(&scene.offline(), "kernels-test/relu@v1").unwrap_err();
    assert_eq!(error.kind(), "not-cached");
    let text = error.to_string();
    assert!(text.contains("`layers/__init__.py` is missing"), "{text}");
}

#[test]
fn a_second_fetch_brings_nothing_and_a_moved_branch_what_is_new() {
    let scene = Scene::new();
    fetch(&scene.registry(), "kernels-test/relu@v1").unwrap();
    scene.hub.clear_requests();
    assert!(
        fetch(&scene.registry(), "kernels-test/relu@v1")
            .unwrap()
            .cached
    );
    assert_eq!(
        scene.hub.request_lines(),
        ["GET /api/kernels/kernels-test/relu/refs"]
    );

    let changed = samples::relu_build("torch-cpu", 1).file("new.py", "NEW = 1\n");
    let tree = KernelTree::new(RELU).build("v1", changed);
    scene.hub.put(&tree).unwrap();
    scene.hub.clear_requests();
    let installed = fetch(&scene.registry(), "kernels-test/relu@v1").unwrap();
    assert!(!installed.cached);
    assert_eq!(
        files(&installed.path),
        files_of_build(&tree, "v1", "torch-cpu")
    );
    let mut brought: Vec<_> = scene.hub.request_lines();
    brought.retain(|line| line.contains("/resolve/"));
    brought.sort();
    assert_eq!(brought.len(), 2, "{brought:#?}");
    assert!(brought[0].ends_with("/metadata.json") && brought[1].ends_with("/new.py"));
    scene.assert_clean();
}

#[test]
fn verified_bytes_are_those_of_the_hub_and_stay_so() {
    let scene = Scene::new();
    let installed = fetch(&scene.registry(), "kernels-test/relu@v1").unwrap();
    let verified = installed.verified().unwrap();
    let mut expected = files_of_build(&samples::relu(), "v1", "torch-cpu");
    expected.remove("metadata.json").unwrap();
    let held = |verified: &kernel_registry::VerifiedKernel| {
        let files = verified.files().iter();
        files
            .map(|(name, bytes)| (name.clone(), bytes.to_vec()))
            .collect::<std::collections::BTreeMap<_, _>>()
    };
    assert_eq!(held(&verified), expected);
    assert_eq!(verified.repository().unwrap().to_string(), RELU);
    assert_eq!(verified.variant(), "torch-cpu");

    // A file that changes later changes nothing that was verified, and is noticed the next time.
    fs::write(installed.path.join("__init__.py"), "import os\n").unwrap();
    assert_eq!(held(&verified), expected);
    let error = installed.verified().unwrap_err();
    assert_eq!(error.kind(), "digest-mismatch");
    assert!(error.to_string().contains("__init__.py"), "{error}");
}

#[test]
fn a_damaged_file_is_refused_offline_and_mended_online() {
    let scene = Scene::new();
    let installed = fetch(&scene.registry(), "kernels-test/relu@v1").unwrap();
    // Through the link, so that the blob itself is damaged.
    fs::write(installed.path.join("data/table.bin"), [0; 7]).unwrap();
    let offline = fetch(&scene.offline(), "kernels-test/relu@v1").unwrap();
    assert_eq!(offline.verified().unwrap_err().kind(), "digest-mismatch");
    let mended = fetch(&scene.registry(), "kernels-test/relu@v1").unwrap();
    assert!(!mended.cached);
    mended.verified().unwrap();
    scene.assert_clean();
}

#[test]
fn files_that_were_changed_together_with_their_digest_are_noticed() {
    let scene = Scene::new();
    let installed = fetch(&scene.registry(), "kernels-test/relu@v1").unwrap();
    let other = samples::relu_build("torch-cpu", 1).file("__init__.py", "import os\n");
    let tree = KernelTree::new(RELU).build("v1", other);
    for (name, content) in files_of_build(&tree, "v1", "torch-cpu") {
        fs::write(installed.path.join(name), content).unwrap();
    }
    let error = fetch(&scene.offline(), "kernels-test/relu@v1").unwrap_err();
    assert_eq!(error.kind(), "refused-file");
    let text = error.to_string();
    assert!(text.contains("metadata.json"), "{text}");
    let mended = fetch(&scene.registry(), "kernels-test/relu@v1").unwrap();
    let verified = mended.verified().unwrap();
    assert!(verified.files()["__init__.py"].starts_with(b"\"\"\"Rectified"));
    scene.assert_clean();
}

#[test]
fn an_unknown_file_beside_a_kernel_is_refused() {
    let scene = Scene::new();
    let installed = fetch(&scene.registry(), "kernels-test/relu@v1").unwrap();
    fs::write(installed.path.join("extra.py"), "import os\n").unwrap();
    let error = installed.verified().unwrap_err();
    assert_eq!(error.kind(), "digest-mismatch");
    assert!(error.to_string().contains("extra.py"), "{error}");
}

#[test]
fn a_digest_that_does_not_fit_its_files_is_refused_however_it_arrived() {
    let scene = Scene::new();
    let installed = fetch(&scene.registry(), "kernels-test/tampered@v1").unwrap();
    let error = installed.verified().unwrap_err();
    assert_eq!(error.kind(), "digest-mismatch");
    assert!(error.to_string().contains("layers/__init__.py"), "{error}");
}

#[test]
fn bytecode_is_neither_brought_nor_verified() {
    let scene = Scene::new();
    let installed = fetch(&scene.registry(), "kernels-test/bytecode@v1").unwrap();
    assert!(!installed.path.join("old.pyc").exists());
    assert!(!installed.path.join("__pycache__").exists());
    fs::write(installed.path.join("old.pyc"), "not bytecode").unwrap();
    let verified = installed.verified().unwrap();
    assert!(!verified.files().contains_key("old.pyc"));
}

#[test]
fn a_build_without_digest_is_verified_by_the_ids_of_the_hub() {
    let scene = Scene::new();
    let installed = fetch(&scene.registry(), "kernels-test/universal@v1").unwrap();
    installed.verified().unwrap();
    fs::write(installed.path.join("layers/__init__.py"), "import os\n").unwrap();
    assert_eq!(installed.verified().unwrap_err().kind(), "digest-mismatch");
}

#[test]
fn needed_kernels_come_first_and_are_found_offline() {
    let scene = Scene::new();
    let registry = scene.registry();
    for registry in [registry, scene.offline()] {
        let installed = fetch(&registry, "kernels-test/top@v1").unwrap();
        assert_eq!(installed.needed.len(), 1);
        assert_eq!(installed.needed[0].resolved.name(), "kernels-test/leaf@v3");
        let verified = installed.verified().unwrap();
        let leaf = &verified.dependencies()[0];
        assert_eq!(leaf.repository().unwrap().to_string(), "kernels-test/leaf");
        assert!(leaf.files().contains_key("__init__.py"));
    }
    scene.assert_clean();
}

#[test]
fn kernels_that_need_each_other_are_refused() {
    let scene = Scene::new();
    let error = resolve(&scene.registry(), "kernels-test/cycle-a@v1").unwrap_err();
    assert_eq!(error.kind(), "dependency-cycle");
    let text = error.to_string();
    assert!(
        text.contains("`kernels-test/cycle-a@v1` -> `kernels-test/cycle-b@v1`"),
        "{text}"
    );
}

#[test]
fn trees_in_pages_and_files_behind_redirects_arrive_whole() {
    let hub = Hub::builder()
        .organization("kernels-test", Publisher::Trusted)
        .kernel(samples::relu())
        .page_size(3)
        .resolve_cache();
    let scene = Scene::of(hub.start().unwrap());
    let installed = fetch(&scene.registry(), "kernels-test/relu@v1").unwrap();
    installed.verified().unwrap();
    let pages = scene.hub.request_lines();
    assert!(pages.iter().filter(|line| line.contains("cursor=")).count() > 2);
    scene.assert_clean();
}

#[test]
fn a_private_kernel_needs_the_token_which_storage_never_sees() {
    let hub = Hub::builder()
        .organization("kernels-test", Publisher::Trusted)
        .kernel(samples::relu().private())
        .token("hf_reader");
    let scene = Scene::of(hub.start().unwrap());
    let error = fetch(&scene.registry(), "kernels-test/relu@v1").unwrap_err();
    assert_eq!(error.kind(), "repository-not-found");
    assert!(error.hint().unwrap().contains("HF_TOKEN"));

    let registry = scene.builder().token("hf_reader").build().unwrap();
    fetch(&registry, "kernels-test/relu@v1")
        .unwrap()
        .verified()
        .unwrap();
    let (stored, asked): (Vec<_>, Vec<_>) = scene
        .hub
        .requests()
        .into_iter()
        .partition(|request| request.path.starts_with("/cdn/"));
    assert!(!stored.is_empty());
    let with_token = |request: &&hub_fixture::LoggedRequest| {
        request.headers.get("authorization").map(String::as_str) == Some("Bearer hf_reader")
    };
    assert!(!stored.iter().any(|request| with_token(&request)));
    assert!(asked.iter().filter(with_token).count() > 3);
    for (path, content) in files(&scene.cache()) {
        let text = String::from_utf8_lossy(&content);
        assert!(!text.contains("hf_reader"), "{path}");
    }
}

#[test]
fn a_machine_can_be_named_for_which_a_kernel_is_fetched() {
    let scene = Scene::new();
    let registry = scene.registry();
    let machine = System::new("x86_64", "linux", Backend::Tpu);
    let reference = "kernels-test/relu@v1".parse().unwrap();
    let resolved = registry.resolve_for(&reference, &machine).unwrap();
    assert_eq!(resolved.variant, "torch-tpu");
    registry.install(&resolved).unwrap().verified().unwrap();
}

#[test]
fn several_threads_fetch_the_same_kernel_into_one_cache() {
    let scene = Scene::new();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let installed = fetch(&scene.registry(), "kernels-test/relu@v2").unwrap();
                installed.verified().unwrap();
            });
        }
    });
    scene.assert_clean();
}
