//! The server over HTTP: what each endpoint says, with and without faults.

#![expect(clippy::unwrap_used, reason = "a test may stop at bad test data")]

use std::time::{Duration, Instant};

use hub_fixture::{Fault, Hub, KernelTree, Trust, samples};
use reqwest::blocking::{Client, Response};
use reqwest::redirect::Policy;
use serde_json::Value;

/// A client that shows redirects instead of following them.
fn client() -> Client {
    Client::builder()
        .redirect(Policy::none())
        .no_proxy()
        .build()
        .unwrap()
}

fn get(hub: &Hub, path: &str) -> Response {
    client()
        .get(format!("{}{path}", hub.endpoint()))
        .send()
        .unwrap()
}

fn header(response: &Response, name: &str) -> String {
    response
        .headers()
        .get(name)
        .unwrap()
        .to_str()
        .unwrap()
        .to_owned()
}

const INIT: &str = "/kernels/kernels-test/relu/resolve/v1/build/torch-cpu/__init__.py";
const TABLE: &str = "/kernels/kernels-test/relu/resolve/v1/build/torch-cpu/data/table.bin";

#[test]
fn owners_are_trusted_or_not_or_unknown() {
    let hub = Hub::builder()
        .organization("kernels-test", Trust::Trusted)
        .organization("auser", Trust::User)
        .kernel(samples::relu_tpu())
        .kernel(samples::of_someone())
        .start()
        .unwrap();
    let overview = |owner: &str| get(&hub, &format!("/api/organizations/{owner}/overview"));
    let trusted: Value = overview("kernels-test").json().unwrap();
    assert_eq!(trusted["trustedKernelPublisher"], true);
    assert_eq!(trusted["numKernels"], 1);
    let someone: Value = overview("someone").json().unwrap();
    assert_eq!(someone.get("trustedKernelPublisher"), None);
    assert_eq!(overview("auser").status(), 404);
    assert_eq!(overview("nobody").status(), 404);
    hub.set_trust("kernels-test", Trust::Untrusted);
    let now: Value = overview("kernels-test").json().unwrap();
    assert_eq!(now.get("trustedKernelPublisher"), None);
}

#[test]
fn refs_and_revisions_lead_to_the_same_commit() {
    let hub = Hub::with_samples().unwrap();
    let refs: Value = get(&hub, "/api/kernels/kernels-test/relu/refs")
        .json()
        .unwrap();
    let names: Vec<_> = refs["branches"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| &one["name"])
        .collect();
    assert_eq!(names, ["main", "v1", "v2"]);
    assert_eq!(refs["converts"], serde_json::json!([]));
    let commit = hub.commit("kernels-test/relu", "v1").unwrap();
    assert_eq!(refs["branches"][1]["targetCommit"], commit.as_str());
    assert_eq!(refs["tags"][0]["targetCommit"], commit.as_str());
    for revision in [
        "v1",
        "refs%2Fheads%2Fv1",
        "release-1",
        &commit,
        &commit[..8],
    ] {
        let path = format!("/api/kernels/kernels-test/relu/revision/{revision}");
        let info: Value = get(&hub, &path).json().unwrap();
        assert_eq!(info["sha"], commit.as_str(), "{revision}");
    }
    let missing = get(&hub, "/api/kernels/kernels-test/relu/revision/v9");
    assert_eq!(missing.status(), 404);
    assert_eq!(header(&missing, "x-error-code"), "RevisionNotFound");
}

#[test]
fn a_tree_is_served_in_pages() {
    let hub = Hub::builder()
        .kernel(samples::relu())
        .page_size(4)
        .start()
        .unwrap();
    let mut url = format!(
        "{}/api/kernels/kernels-test/relu/tree/v1/build%2Ftorch-cpu?recursive=true&expand=false",
        hub.endpoint()
    );
    let mut paths = Vec::new();
    let mut pages = 0;
    loop {
        let response = client().get(&url).send().unwrap();
        let next = response
            .headers()
            .get("link")
            .map(|link| link.to_str().unwrap().to_owned());
        let nodes: Vec<Value> = response.json().unwrap();
        assert!(nodes.len() <= 4);
        paths.extend(
            nodes
                .into_iter()
                .map(|node| node["path"].as_str().unwrap().to_owned()),
        );
        pages += 1;
        let Some(next) = next else { break };
        let (next, _) = next.split_once('>').unwrap();
        next[1..].clone_into(&mut url);
    }
    assert_eq!(pages, 2);
    paths.sort();
    assert_eq!(
        paths,
        [
            "build/torch-cpu/__init__.py",
            "build/torch-cpu/_relu.abi3.so",
            "build/torch-cpu/data",
            "build/torch-cpu/data/table.bin",
            "build/torch-cpu/layers",
            "build/torch-cpu/layers/__init__.py",
            "build/torch-cpu/metadata.json",
        ]
    );
    let build = "/api/kernels/kernels-test/relu/tree/v1/build?recursive=false";
    let nodes: Vec<Value> = get(&hub, build).json().unwrap();
    assert!(
        nodes.iter().all(|node| node["type"] == "directory"),
        "{nodes:?}"
    );
    let missing = get(&hub, "/api/kernels/kernels-test/relu/tree/main/build");
    assert_eq!(header(&missing, "x-error-code"), "EntryNotFound");
}

#[test]
fn files_carry_commit_and_tag() {
    let hub = Hub::with_samples().unwrap();
    let head = client()
        .head(format!("{}{INIT}", hub.endpoint()))
        .send()
        .unwrap();
    assert_eq!(
        header(&head, "x-repo-commit"),
        hub.commit("kernels-test/relu", "v1").unwrap()
    );
    assert_eq!(header(&head, "etag").len(), 42, "a git blob id in quotes");
    let length: usize = header(&head, "content-length").parse().unwrap();
    let body = get(&hub, INIT).bytes().unwrap();
    assert_eq!(body.len(), length);
    assert!(body.starts_with(b"\"\"\"Rectified"));
    let missing = get(&hub, "/kernels/kernels-test/relu/resolve/v1/nothing");
    assert_eq!(header(&missing, "x-error-code"), "EntryNotFound");
}

#[test]
fn large_files_are_on_another_origin() {
    let hub = Hub::with_samples().unwrap();
    let redirect = get(&hub, TABLE);
    assert_eq!(redirect.status(), 302);
    let location = header(&redirect, "location");
    assert!(location.starts_with(hub.storage_endpoint()), "{location}");
    assert_ne!(hub.storage_endpoint(), hub.endpoint());
    assert_eq!(header(&redirect, "x-linked-size"), "1280");
    let tag = header(&redirect, "x-linked-etag");
    assert_eq!(tag.len(), 66, "a SHA-256 in quotes");
    assert!(location.ends_with(tag.trim_matches('"')));
    assert_eq!(
        client()
            .get(&location)
            .send()
            .unwrap()
            .bytes()
            .unwrap()
            .len(),
        1280
    );
}

#[test]
fn files_in_git_can_be_redirected_within_the_origin() {
    let hub = Hub::builder()
        .kernel(samples::relu())
        .resolve_cache()
        .start()
        .unwrap();
    let redirect = get(&hub, INIT);
    assert_eq!(redirect.status(), 307);
    let location = header(&redirect, "location");
    assert!(
        location.starts_with("/api/resolve-cache/kernels/kernels-test/relu/"),
        "{location}"
    );
    let file = get(&hub, &location);
    assert_eq!(header(&file, "etag"), header(&redirect, "x-linked-etag"));
    assert!(file.text().unwrap().contains("def relu"));
}

#[test]
fn ranges_continue_a_file() {
    let hub = Hub::with_samples().unwrap();
    let url = format!("{}{INIT}", hub.endpoint());
    let whole = get(&hub, INIT).bytes().unwrap();
    let tag = header(&get(&hub, INIT), "etag");
    let ask = |range: &str, tag: &str| {
        client()
            .get(&url)
            .header("range", range)
            .header("if-range", tag)
            .send()
            .unwrap()
    };
    let rest = ask("bytes=10-", &tag);
    assert_eq!(rest.status(), 206);
    assert_eq!(
        header(&rest, "content-range"),
        format!("bytes 10-{}/{}", whole.len() - 1, whole.len())
    );
    assert_eq!(rest.bytes().unwrap(), whole[10..]);
    assert_eq!(ask("bytes=10-", "\"other\"").status(), 200);
    assert_eq!(ask("bytes=99999-", &tag).status(), 416);
}

#[test]
fn private_repositories_do_not_show_to_strangers() {
    let hub = Hub::builder()
        .kernel(samples::relu().private())
        .kernel(samples::relu_tpu().gated())
        .token("hf_reader")
        .start()
        .unwrap();
    let ask = |path: &str, token: Option<&str>| {
        let request = client().get(format!("{}{path}", hub.endpoint()));
        let request = match token {
            Some(token) => request.bearer_auth(token),
            None => request,
        };
        request.send().unwrap().status().as_u16()
    };
    for path in [INIT, "/api/kernels/kernels-test/relu/refs"] {
        assert_eq!(ask(path, None), 401);
        assert_eq!(ask(path, Some("hf_reader")), 200);
        assert_eq!(ask(path, Some("hf_wrong")), 401);
    }
    assert_eq!(ask("/api/kernels/kernels-test/missing/refs", None), 401);
    assert_eq!(
        ask("/api/kernels/kernels-test/missing/refs", Some("hf_reader")),
        404
    );
    assert_eq!(ask("/api/kernels/kernels-test/relu-tpu/refs", None), 403);
    assert_eq!(
        ask("/api/kernels/kernels-test/relu-tpu/refs", Some("hf_reader")),
        200
    );
    assert_eq!(ask("/api/whoami-v2", Some("hf_reader")), 200);
    assert_eq!(ask("/api/whoami-v2", None), 401);
}

#[test]
fn faults_come_in_every_kind() {
    let hub = Hub::with_samples().unwrap();
    let whole = get(&hub, INIT).bytes().unwrap();

    hub.inject(Fault::on("/refs").status(503).times(2));
    for expected in [503, 503, 200] {
        assert_eq!(
            get(&hub, "/api/kernels/kernels-test/relu/refs").status(),
            expected
        );
    }
    hub.inject(Fault::on("GET /kernels/").corrupt().times(1));
    let corrupt = get(&hub, INIT).bytes().unwrap();
    assert_eq!(corrupt.len(), whole.len());
    assert_eq!(corrupt[1..], whole[1..]);
    assert_ne!(corrupt[0], whole[0]);

    hub.inject(Fault::on("GET /kernels/").truncate(10).times(1));
    let response = get(&hub, INIT);
    assert_eq!(header(&response, "content-length"), whole.len().to_string());
    assert!(response.bytes().is_err());

    hub.inject(Fault::on("GET /kernels/").close().times(1));
    assert!(
        client()
            .get(format!("{}{INIT}", hub.endpoint()))
            .send()
            .is_err()
    );

    hub.inject(
        Fault::on("GET /kernels/")
            .status(200)
            .body("<html>")
            .times(1),
    );
    assert_eq!(get(&hub, INIT).text().unwrap(), "<html>");

    hub.inject(
        Fault::on("HEAD /kernels/")
            .header("x-repo-commit", "../x")
            .times(1),
    );
    let head = client()
        .head(format!("{}{INIT}", hub.endpoint()))
        .send()
        .unwrap();
    assert_eq!(header(&head, "x-repo-commit"), "../x");

    let pause = Duration::from_millis(100);
    for fault in [
        Fault::on("GET").sleep(pause),
        Fault::on("GET").stall(3, pause),
    ] {
        hub.inject(fault.times(1));
        let start = Instant::now();
        assert_eq!(get(&hub, INIT).bytes().unwrap(), whole);
        assert!(start.elapsed() >= pause);
    }
    hub.inject(Fault::on("GET").status(500));
    hub.clear_faults();
    assert_eq!(get(&hub, INIT).status(), 200);
}

#[test]
fn requests_are_logged_with_their_headers() {
    let hub = Hub::with_samples().unwrap();
    hub.inject(Fault::on("/refs").close());
    let url = format!(
        "{}/api/kernels/kernels-test/relu/refs?include_prs=1",
        hub.endpoint()
    );
    let _ = client().get(url).bearer_auth("hf_x").send();
    get(&hub, INIT);
    let requests = hub.requests();
    assert_eq!(
        requests[0].line(),
        "GET /api/kernels/kernels-test/relu/refs?include_prs=1"
    );
    assert_eq!(requests[0].headers["authorization"], "Bearer hf_x");
    assert_eq!(requests[0].status, None);
    assert_eq!(requests.last().unwrap().status, Some(200));
    hub.clear_requests();
    assert!(hub.requests().is_empty());
}

#[test]
fn a_moved_branch_leaves_its_old_commit_reachable() {
    let hub = Hub::builder().kernel(samples::relu_tpu()).start().unwrap();
    let before = hub.commit("kernels-test/relu-tpu", "v1").unwrap();
    hub.put(&samples::relu_tpu().file("v1", "NEWS.md", "moved"))
        .unwrap();
    assert_ne!(hub.commit("kernels-test/relu-tpu", "v1").unwrap(), before);
    let path =
        |revision: &str| format!("/kernels/kernels-test/relu-tpu/resolve/{revision}/NEWS.md");
    assert_eq!(get(&hub, &path("v1")).status(), 200);
    assert_eq!(get(&hub, &path(&before)).status(), 404);
    hub.remove("kernels-test/relu-tpu");
    assert_eq!(get(&hub, &path("v1")).status(), 401);
}

#[test]
fn a_directory_is_served_like_a_tree() {
    let directory = tempfile::tempdir().unwrap();
    let tree = samples::relu();
    for branch in ["main", "v1", "v2"] {
        let path = directory.path().join("kernels-test/relu").join(branch);
        tree.write_branch(branch, &path).unwrap();
    }
    let from_disk = Hub::builder()
        .directory(directory.path(), Trust::Trusted)
        .start()
        .unwrap();
    let from_memory = Hub::builder().kernel(tree).start().unwrap();
    for branch in ["main", "v1", "v2"] {
        let commit = from_disk.commit("kernels-test/relu", branch);
        assert!(commit.is_some());
        assert_eq!(commit, from_memory.commit("kernels-test/relu", branch));
    }
    let missing = Hub::builder()
        .directory(directory.path().join("x"), Trust::Trusted)
        .start();
    assert!(missing.is_err());
    assert!(
        Hub::builder()
            .kernel(KernelTree::new("../x"))
            .start()
            .is_err()
    );
}

#[test]
fn a_dropped_hub_no_longer_answers() {
    let hub = Hub::with_samples().unwrap();
    let url = format!("{}{INIT}", hub.endpoint());
    let client = client();
    assert!(client.get(&url).send().is_ok());
    drop(hub);
    assert!(client.get(&url).send().is_err());
}
