//! The Python libraries against this server: what they fetch from the real Hub they fetch from it.
//!
//! Needs the project's Python environment (`cargo xtask env`); without one the tests say so and stop.

#![expect(clippy::unwrap_used, reason = "a test may stop at bad test data")]
#![expect(clippy::print_stderr, reason = "a skipped test says why")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use hub_fixture::{Hub, Trust, samples};

/// The interpreter of the project's environment.
fn python() -> Option<PathBuf> {
    let python = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.venv/bin/python");
    if python.exists() {
        return Some(python);
    }
    eprintln!(
        "skipped: there is no {}; `cargo xtask env` makes it",
        python.display()
    );
    None
}

fn run(python: &Path, hub: &Hub, home: &Path, token: Option<&str>, script: &str) -> Output {
    let mut command = Command::new(python);
    command
        .args(["-c", script])
        .env("HF_ENDPOINT", hub.endpoint())
        .env("HF_HOME", home)
        .env("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
        .env("JAX_PLATFORMS", "cpu");
    // What the caller's environment says must not reach this Hub.
    for name in [
        "HF_TOKEN",
        "HF_HUB_OFFLINE",
        "HF_HUB_CACHE",
        "KERNELS_CACHE",
        "LOCAL_KERNELS",
        "HF_HUB_DISABLE_TELEMETRY",
        "DISABLE_TELEMETRY",
        "DO_NOT_TRACK",
        "DISABLE_KERNEL_MAPPING",
        "HTTP_PROXY",
        "http_proxy",
        "ALL_PROXY",
        "all_proxy",
    ] {
        command.env_remove(name);
    }
    if let Some(token) = token {
        command.env("HF_TOKEN", token);
    }
    command.output().unwrap()
}

/// The last line of a script's output; what it printed besides is shown when it failed.
fn last_line(output: &Output) -> String {
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stdout}\n{stderr}");
    stdout.lines().last().unwrap_or_default().to_owned()
}

#[test]
fn kernels_loads_a_kernel_with_its_dependency() {
    let Some(python) = python() else { return };
    let hub = Hub::with_samples().unwrap();
    let home = tempfile::tempdir().unwrap();
    let output = run(
        &python,
        &hub,
        home.path(),
        None,
        "\
import torch, kernels
relu = kernels.get_kernel('kernels-test/relu', version=1, backend='cpu')
top = kernels.get_kernel('kernels-test/top', version=1, backend='cpu')
print(relu.VERSION, relu.relu(torch.tensor([-1.0, 2.0])).tolist(), top.four())
",
    );
    assert_eq!(last_line(&output), "1 [0.0, 2.0] 4");

    let lines = hub.request_lines();
    let commit = hub.commit("kernels-test/relu", "v1").unwrap();
    for expected in [
        "GET /api/organizations/kernels-test/overview".to_owned(),
        "GET /api/kernels/kernels-test/relu/refs".to_owned(),
        format!("HEAD /kernels/kernels-test/relu/resolve/{commit}/build/torch-cpu/metadata.json"),
    ] {
        assert!(
            lines.iter().any(|line| line.starts_with(&expected)),
            "{expected}: {lines:#?}"
        );
    }
    // The library asked the storage for the large files, and without a token.
    let stored: Vec<_> = hub
        .requests()
        .into_iter()
        .filter(|one| one.path.starts_with("/cdn/"))
        .collect();
    assert!(
        stored
            .iter()
            .any(|one| one.method == "GET" && one.status == Some(200))
    );
    assert!(
        stored
            .iter()
            .all(|one| !one.headers.contains_key("authorization"))
    );

    let snapshot = home
        .path()
        .join("hub/kernels--kernels-test--relu/snapshots")
        .join(commit);
    for (path, content) in samples::relu().branch_files("v1").unwrap() {
        if path.starts_with("build/torch-cpu/") {
            assert_eq!(
                std::fs::read(snapshot.join(&path)).unwrap(),
                content,
                "{path}"
            );
        }
    }
}

#[test]
fn kernels_refuses_whom_the_hub_does_not_trust() {
    let Some(python) = python() else { return };
    let hub = Hub::with_samples().unwrap();
    let home = tempfile::tempdir().unwrap();
    let output = run(
        &python,
        &hub,
        home.path(),
        None,
        "\
import kernels
try:
    kernels.get_kernel('someone/relu', version=1, backend='cpu')
except ValueError as error:
    print('trusted publisher' in str(error))
",
    );
    assert_eq!(last_line(&output), "True");
}

#[test]
fn huggingface_hub_reads_trees_pages_and_private_repositories() {
    let Some(python) = python() else { return };
    let hub = Hub::builder()
        .organization("kernels-test", Trust::Trusted)
        .kernel(samples::relu().private())
        .token("hf_reader")
        .page_size(3)
        .resolve_cache()
        .start()
        .unwrap();
    let home = tempfile::tempdir().unwrap();
    let output = run(&python, &hub, home.path(), Some("hf_reader"), "\
from huggingface_hub import HfApi, hf_hub_download
api = HfApi()
repo = dict(repo_id='kernels-test/relu', repo_type='kernel')
tree = list(api.list_repo_tree(path_in_repo='build/torch-tpu', revision='v2', recursive=True, **repo))
refs = api.list_repo_refs(**repo)
path = hf_hub_download(filename='build/torch-tpu/data/table.bin', revision='release-1', **repo)
text = hf_hub_download(filename='build/torch-tpu/__init__.py', revision='v2', **repo)
print(len(tree), [branch.name for branch in refs.branches], len(open(path, 'rb').read()), \
'VERSION = 2' in open(text).read())
");
    assert_eq!(last_line(&output), "7 ['main', 'v1', 'v2'] 1280 True");
    let pages = hub
        .request_lines()
        .iter()
        .filter(|line| line.contains("cursor="))
        .count();
    assert_eq!(pages, 2, "the tree of seven entries has three pages");
}

/// The ids of our commits against git itself, where it is installed.
#[test]
fn commits_hold_the_tree_that_git_would_make() {
    let directory = tempfile::tempdir().unwrap();
    let git = |arguments: &[&str]| {
        Command::new("git")
            .current_dir(directory.path())
            .args(arguments)
            .output()
    };
    if git(&["init", "-q"]).is_err() {
        eprintln!("skipped: git is not installed");
        return;
    }
    let tree = samples::universal();
    tree.write_branch("v1", directory.path()).unwrap();
    // The library file is an LFS pointer in the commit; compare a tree without such files.
    for name in ["data/table.bin", "_relu.abi3.so"] {
        std::fs::remove_file(directory.path().join("build/torch-universal").join(name)).unwrap();
    }
    git(&["-c", "core.autocrlf=false", "add", "."]).unwrap();
    let written = git(&["write-tree", "--prefix=build/"]).unwrap();
    let expected = String::from_utf8(written.stdout).unwrap();

    let mut plain = hub_fixture::KernelTree::new("a/bc");
    for (path, content) in tree.branch_files("v1").unwrap() {
        if !path.ends_with("data/table.bin") && !path.ends_with("_relu.abi3.so") {
            plain = plain.file("v1", path, content);
        }
    }
    let hub = Hub::builder().kernel(plain).start().unwrap();
    let url = format!("{}/api/kernels/a/bc/tree/v1", hub.endpoint());
    let client = reqwest::blocking::Client::builder()
        .no_proxy()
        .build()
        .unwrap();
    let nodes: serde_json::Value = client.get(url).send().unwrap().json().unwrap();
    assert_eq!(nodes[0]["path"], "build");
    assert_eq!(nodes[0]["oid"], expected.trim());
}
