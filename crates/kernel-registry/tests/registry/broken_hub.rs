//! A Hub that answers wrongly, with malice, late, or with a refusal.

use std::process::Command;
use std::time::{Duration, Instant};

use hub_fixture::{Fault, Hub, KernelTree, Trust as Publisher, samples};
use kernel_registry::{Error, Event};
use serde_json::json;

use crate::support::{Scene, builder, fetch, files, listen};

const RELU: &str = "kernels-test/relu@v1";
/// A file that git keeps, and the start of the addresses of files in storage.
const IN_GIT: &str = "/build/torch-cpu/layers/__init__.py";
const IN_STORAGE: &str = "GET /cdn/";

/// Lets a fetch fail and checks what that leaves; then lets the same cache be filled.
fn failure(scene: &Scene, fault: Fault) -> Error {
    scene.hub.inject(fault);
    let error = fetch(&scene.registry(), RELU).unwrap_err();
    scene.assert_clean();
    scene.hub.clear_faults();
    let installed = fetch(&scene.registry(), RELU).unwrap();
    installed.verified().unwrap();
    scene.assert_clean();
    let left: Vec<_> = files(&scene.repository("kernels-test/relu").join("blobs"))
        .into_keys()
        .filter(|name| name.ends_with(".incomplete"))
        .collect();
    assert!(left.is_empty(), "{left:?}");
    error
}

#[test]
fn an_error_page_is_not_taken_for_content() {
    for pattern in [IN_GIT, IN_STORAGE, "/build/torch-cpu/metadata.json"] {
        for page in [
            "<html>down</html>".to_owned(),
            "<html>maintenance</html>".repeat(1000),
        ] {
            let error = failure(
                &Scene::new(),
                Fault::on(pattern).status(200).body(page.clone()),
            );
            assert_eq!(error.kind(), "corrupt", "{error}");
            let text = error.to_string();
            assert!(!text.contains("maintenance"), "{text}");
        }
    }
}

#[test]
fn an_error_page_of_the_right_length_is_not_taken_for_content() {
    let build = samples::relu().branch_files("v1").unwrap();
    let length = build["build/torch-cpu/layers/__init__.py"].len();
    let page = "x".repeat(length);
    let error = failure(&Scene::new(), Fault::on(IN_GIT).status(200).body(page));
    assert_eq!(error.kind(), "corrupt");
    let text = error.to_string();
    assert!(
        text.contains("build/torch-cpu/layers/__init__.py") && text.contains("kernels-test/relu"),
        "{text}"
    );
    assert!(error.hint().unwrap().contains("nothing of it was loaded"));
}

#[test]
fn changed_bytes_are_noticed_by_their_hash() {
    for pattern in [IN_GIT, IN_STORAGE, "/build/torch-cpu/metadata.json"] {
        let error = failure(&Scene::new(), Fault::on(pattern).corrupt());
        assert_eq!(error.kind(), "corrupt", "{error}");
        assert!(error.to_string().contains("expected content"), "{error}");
    }
}

#[test]
fn bytes_that_were_damaged_once_are_asked_for_again() {
    let scene = Scene::new();
    scene.hub.inject(Fault::on(IN_GIT).corrupt().times(1));
    fetch(&scene.registry(), RELU).unwrap().verified().unwrap();
    scene.assert_clean();
}

#[test]
fn a_transfer_that_broke_continues_where_it_ended() {
    let scene = Scene::new();
    scene
        .hub
        .inject(Fault::on(IN_STORAGE).truncate(100).times(1));
    let (registry, events) = listen(scene.builder());
    fetch(&registry, RELU).unwrap().verified().unwrap();
    let continued = scene.hub.requests().into_iter().any(|request| {
        request.path.starts_with("/cdn/")
            && request.headers.get("range").map(String::as_str) == Some("bytes=100-")
            && request.status == Some(206)
    });
    assert!(continued, "{:#?}", scene.hub.request_lines());
    let events = events.lock().unwrap();
    assert!(
        events
            .iter()
            .any(|event| matches!(event, Event::Retrying { .. }))
    );
    scene.assert_clean();
}

#[test]
fn a_transfer_that_breaks_each_time_is_given_up_and_continued_by_the_next_run() {
    let scene = Scene::new();
    scene.hub.inject(Fault::on(IN_STORAGE).truncate(10));
    let error = fetch(&scene.registry(), RELU).unwrap_err();
    assert_eq!(error.kind(), "unreachable");
    assert!(error.to_string().contains("after 3 attempts"), "{error}");
    scene.assert_clean();
    scene.hub.clear_faults();
    scene.hub.clear_requests();
    fetch(&scene.registry(), RELU).unwrap().verified().unwrap();
    let continued =
        scene.hub.requests().into_iter().any(|request| {
            request.path.starts_with("/cdn/") && request.headers.contains_key("range")
        });
    assert!(continued, "{:#?}", scene.hub.request_lines());
    scene.assert_clean();
}

#[test]
fn a_body_longer_than_listed_is_cut_off() {
    let error = failure(&Scene::new(), Fault::on(IN_STORAGE).body(vec![7; 1 << 20]));
    assert_eq!(error.kind(), "corrupt");
    assert!(error.to_string().contains("longer than"), "{error}");
}

#[test]
fn an_answer_of_another_commit_or_file_is_refused() {
    for (header, value, part) in [
        ("x-repo-commit", "0".repeat(40), "of commit"),
        ("etag", format!("\"{}\"", "0".repeat(40)), "ETag"),
    ] {
        let error = failure(&Scene::new(), Fault::on(IN_GIT).header(header, value));
        assert_eq!(error.kind(), "bad-answer", "{error}");
        assert!(error.to_string().contains(part), "{error}");
    }
}

#[test]
fn names_that_lead_out_of_the_cache_are_refused_before_anything_is_fetched() {
    for name in [
        "build/torch-cpu/../../../../../../escaped.py",
        "build/../../escaped.py",
        "/tmp/escaped.py",
        "build/torch-cpu//absolute.py",
        "build/torch-cpu/./dot.py",
        "build/torch-cpu/back\\slash.py",
        "build/torch-cpu/line\nbreak.py",
        "../escaped.py",
        "",
    ] {
        let scene = Scene::new();
        let entry =
            |path: &str| json!({"type": "file", "oid": "0".repeat(40), "size": 3, "path": path});
        let tree = json!([entry("build/torch-cpu/metadata.json"), entry(name)]);
        scene
            .hub
            .inject(Fault::on("GET /api/kernels/kernels-test/relu/tree/").body(tree.to_string()));
        let error = fetch(&scene.registry(), RELU).unwrap_err();
        assert_eq!(error.kind(), "hostile-listing", "{name:?}: {error}");
        let text = error.to_string();
        assert!(text.contains("kernels-test/relu"), "{text}");
        assert!(!text.contains('\n'), "{text:?}");
        let lines = scene.hub.request_lines();
        assert!(!lines.iter().any(|line| line.contains("/resolve/")));
        assert!(!scene.repository("kernels-test/relu").exists());
        scene.assert_clean();
    }
}

#[test]
fn content_ids_that_are_no_hashes_are_refused() {
    for id in ["../../../../escaped", "", "0", "zz"] {
        let scene = Scene::new();
        let tree = json!([{
            "type": "file", "oid": id, "size": 3, "path": "build/torch-cpu/metadata.json",
        }]);
        scene
            .hub
            .inject(Fault::on("GET /api/kernels/kernels-test/relu/tree/").body(tree.to_string()));
        let error = fetch(&scene.registry(), RELU).unwrap_err();
        assert_eq!(error.kind(), "bad-answer", "{error}");
        assert!(error.to_string().contains("content id"), "{error}");
        scene.assert_clean();
    }
}

#[test]
fn names_that_differ_in_case_only_are_refused() {
    let build = samples::relu_build("torch-cpu", 1).file("Layers/__init__.py", "import os\n");
    let tree = KernelTree::new("kernels-test/relu").build("v1", build);
    let hub = Hub::builder()
        .organization("kernels-test", Publisher::Trusted)
        .kernel(tree);
    let scene = Scene::of(hub.start().unwrap());
    let error = fetch(&scene.registry(), RELU).unwrap_err();
    assert_eq!(error.kind(), "hostile-listing");
    assert!(error.to_string().contains("case"), "{error}");
}

#[test]
fn a_link_that_was_put_into_the_cache_is_not_followed_out_of_it() {
    let scene = Scene::new();
    let target = scene.cache().parent().unwrap().join("target.py");
    let folder = scene
        .snapshot("kernels-test/relu", "v1")
        .join("build/torch-cpu");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(&target, "untouched").unwrap();
    std::os::unix::fs::symlink(&target, folder.join("__init__.py")).unwrap();
    fetch(&scene.registry(), RELU).unwrap().verified().unwrap();
    assert_eq!(std::fs::read_to_string(&target).unwrap(), "untouched");
}

#[test]
fn a_tree_that_is_not_json_or_leads_elsewhere_is_refused() {
    let pages = "<http://elsewhere.invalid/next>; rel=\"next\"";
    let tree = || Fault::on("GET /api/kernels/kernels-test/relu/tree/");
    for (fault, part) in [
        (tree().body("<html>"), "not JSON"),
        (tree().body("{\"a\": 1}"), "cannot be used"),
        (tree().header("link", pages), "another host"),
        (
            tree()
                .status(302)
                .header("location", "http://elsewhere.invalid/"),
            "another host",
        ),
        (
            tree().status(302).header("location", "file:///etc/passwd"),
            "not http",
        ),
    ] {
        let error = failure(&Scene::new(), fault);
        assert_eq!(error.kind(), "bad-answer", "{error}");
        assert!(error.to_string().contains(part), "{error}");
    }
}

#[test]
fn branches_that_make_no_sense_are_refused() {
    let commit = |commit: &str| {
        let branch = json!({"name": "v1", "ref": "refs/heads/v1", "targetCommit": commit});
        json!({"branches": [branch], "tags": [], "converts": []}).to_string()
    };
    for body in [
        "<html>".to_owned(),
        "[]".to_owned(),
        commit("../../../../escaped"),
        commit(""),
        commit("main"),
    ] {
        let error = failure(&Scene::new(), Fault::on("/relu/refs").body(body.clone()));
        assert_eq!(error.kind(), "bad-answer", "{body}: {error}");
        assert!(error.to_string().contains("/relu/refs"), "{error}");
    }
    let away = Fault::on("/relu/refs").status(302);
    let error = failure(
        &Scene::new(),
        away.header("location", "http://elsewhere.invalid/"),
    );
    assert_eq!(error.kind(), "bad-answer", "{error}");
}

#[test]
fn metadata_that_makes_no_sense_is_named_with_its_kernel() {
    for content in ["", "<html>", "{}", "[]", "{\"version\": \"one\"}"] {
        let build = samples::relu_build("torch-cpu", 1).raw_metadata(content);
        let tree = KernelTree::new("kernels-test/relu").build("v1", build);
        let scene = Scene::new();
        scene.hub.put(&tree).unwrap();
        let error = fetch(&scene.registry(), RELU).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("kernels-test/relu"), "{content:?}: {text}");
        scene.assert_clean();
    }
    let build = samples::relu_build("torch-cpu", 1).without_metadata();
    let tree = KernelTree::new("kernels-test/relu").build("v1", build);
    let scene = Scene::new();
    scene.hub.put(&tree).unwrap();
    let error = fetch(&scene.registry(), RELU).unwrap_err();
    assert_eq!(error.kind(), "metadata-missing");
}

#[test]
fn redirects_without_end_are_given_up() {
    let scene = Scene::new();
    let file = Fault::on(IN_GIT).status(302);
    let error = failure(&scene, file.header("location", format!("/again{IN_GIT}")));
    assert_eq!(error.kind(), "bad-answer");
    assert!(error.to_string().contains("redirects"), "{error}");
}

#[test]
fn refusals_are_told_apart_and_not_repeated() {
    for (status, code, token, kind) in [
        (401, None, "", "repository-not-found"),
        (401, None, "hf_reader", "access-refused"),
        (403, Some("GatedRepo"), "", "access-refused"),
        (403, None, "hf_reader", "access-refused"),
        (
            404,
            Some("RepoNotFound"),
            "hf_reader",
            "repository-not-found",
        ),
        (404, None, "", "repository-not-found"),
    ] {
        for pattern in ["/relu/refs", "/relu/tree/", IN_GIT] {
            let scene = Scene::new();
            let mut fault = Fault::on(pattern).status(status);
            if let Some(code) = code {
                fault = fault.error_code(code);
            }
            scene.hub.inject(fault);
            let registry = scene.builder().token(token).build().unwrap();
            let error = fetch(&registry, RELU).unwrap_err();
            assert_eq!(error.kind(), kind, "{status} {pattern}: {error}");
            let text = error.to_string();
            assert!(text.contains("kernels-test/relu"), "{text}");
            assert!(error.hint().is_some(), "{status} {pattern}");
            let lines = scene.hub.request_lines();
            let sent = lines.iter().filter(|line| line.contains(pattern)).count();
            assert_eq!(sent, 1, "{status} {pattern}: {lines:#?}");
            scene.assert_clean();
        }
    }
}

#[test]
fn a_file_that_the_tree_lists_and_the_hub_does_not_have_is_named() {
    let fault = Fault::on(IN_GIT).status(404).error_code("EntryNotFound");
    let error = failure(&Scene::new(), fault);
    assert_eq!(error.kind(), "http");
    let text = error.to_string();
    assert!(text.contains(IN_GIT) && text.contains("404"), "{text}");
}

#[test]
fn failures_that_pass_are_waited_out() {
    for pattern in [
        "/organizations/",
        "/relu/refs",
        "/relu/tree/",
        IN_GIT,
        IN_STORAGE,
    ] {
        for status in [429, 500, 502, 503, 504] {
            let scene = Scene::new();
            scene.hub.inject(Fault::on(pattern).status(status).times(2));
            let (registry, events) = listen(scene.builder());
            fetch(&registry, RELU).unwrap().verified().unwrap();
            let events = events.lock().unwrap();
            let retries = events
                .iter()
                .filter(|event| matches!(event, Event::Retrying { .. }))
                .count();
            assert_eq!(retries, 2, "{status} {pattern}: {events:?}");
        }
    }
}

#[test]
fn failures_that_stay_are_given_up_and_counted() {
    for (status, hint) in [(429, "rate"), (500, ""), (503, "")] {
        for pattern in ["/relu/refs", "/relu/tree/", IN_GIT, IN_STORAGE] {
            let scene = Scene::new();
            scene.hub.inject(Fault::on(pattern).status(status));
            let error = fetch(&scene.registry(), RELU).unwrap_err();
            scene.assert_clean();
            assert_eq!(error.kind(), "http", "{status} {pattern}: {error}");
            // Not more often than said, whichever part of the program sent them.
            let lines = scene.hub.request_lines();
            let mut sent: Vec<_> = lines.iter().filter(|line| line.contains(pattern)).collect();
            sent.sort();
            sent.dedup_by(|one, other| one == other);
            let most = 3 * sent.len();
            assert!(
                lines.iter().filter(|line| line.contains(pattern)).count() <= most,
                "{lines:#?}"
            );
            let text = error.to_string();
            assert!(
                text.contains(&format!("answered {status}")) && text.contains("after 3 attempts"),
                "{pattern}: {text}"
            );
            assert!(error.hint().unwrap_or_default().contains(hint));
        }
    }
}

#[test]
fn the_pause_that_the_hub_asks_for_is_kept() {
    let scene = Scene::new();
    scene.hub.inject(
        Fault::on("/relu/tree/")
            .status(429)
            .header("retry-after", "1")
            .times(1),
    );
    let start = Instant::now();
    fetch(&scene.registry(), RELU).unwrap();
    assert!(start.elapsed() >= Duration::from_secs(1));
}

#[test]
fn a_pause_of_an_hour_is_not_waited_for() {
    for pattern in ["/relu/refs", "/relu/tree/"] {
        let fault = Fault::on(pattern).status(429).header("retry-after", "3600");
        let start = Instant::now();
        let error = failure(&Scene::new(), fault);
        assert_eq!(error.kind(), "http");
        assert!(error.hint().unwrap().contains("wait"));
        assert!(start.elapsed() < Duration::from_secs(30));
    }
}

#[test]
fn a_closed_connection_is_tried_again() {
    let scene = Scene::new();
    scene.hub.inject(Fault::on("/relu/refs").close().times(1));
    scene.hub.inject(Fault::on(IN_GIT).close().times(1));
    fetch(&scene.registry(), RELU).unwrap().verified().unwrap();

    let error = failure(&Scene::new(), Fault::on(IN_GIT).close());
    assert_eq!(error.kind(), "unreachable");
    assert!(error.to_string().contains("after 3 attempts"), "{error}");
}

#[test]
fn a_short_silence_is_waited_out() {
    let scene = Scene::new();
    scene
        .hub
        .inject(Fault::on(IN_STORAGE).stall(10, Duration::from_millis(300)));
    fetch(&scene.registry(), RELU).unwrap().verified().unwrap();
    scene.assert_clean();
}

/// The limit comes from the environment, so that the fetch runs in a process of its own.
#[test]
fn a_silence_longer_than_hf_hub_download_timeout_is_given_up() {
    let minute = Duration::from_secs(60);
    for fault in [
        Fault::on(IN_STORAGE).stall(10, minute),
        Fault::on("/relu/refs").sleep(minute),
        Fault::on("/relu/tree/").stall(10, minute),
    ] {
        let scene = Scene::new();
        scene.hub.inject(fault);
        let start = Instant::now();
        let output = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "broken_hub::fetch_that_stalls",
                "--ignored",
                "--nocapture",
            ])
            .env("HF_HUB_DOWNLOAD_TIMEOUT", "1")
            .env("TEST_ENDPOINT", scene.hub.endpoint())
            .env("TEST_CACHE", scene.cache())
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{text}");
        assert!(text.contains("unreachable: cannot reach the Hub"), "{text}");
        assert!(text.contains("timed out"), "{text}");
        assert!(start.elapsed() < minute / 2);
        scene.assert_clean();
        scene.hub.clear_faults();
        fetch(&scene.registry(), RELU).unwrap().verified().unwrap();
    }
}

#[test]
#[ignore = "the process that another test starts"]
fn fetch_that_stalls() {
    let variable = |name: &str| std::env::var(name).ok();
    let (Some(endpoint), Some(cache)) = (variable("TEST_ENDPOINT"), variable("TEST_CACHE")) else {
        // Started with all ignored tests: there is no Hub to stall.
        return;
    };
    let registry = builder(&endpoint, cache.as_ref());
    let registry = registry
        .retries(2, Duration::from_millis(1))
        .build()
        .unwrap();
    let error = fetch(&registry, RELU).unwrap_err();
    println!("{}: {error}", error.kind());
}
