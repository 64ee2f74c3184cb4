//! What the registry costs, beside the Python library in one run.
//!
//! `cargo bench -p kernel-cli --bench registry` prints the table of `docs/registry-benchmarks.md`.
//! Names behind `--` choose among its figures: `fetch`, `lock`, `digest`, `index`. Needs the project's
//! Python environment, which `cargo xtask env` makes. One run takes minutes.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a benchmark stops at what it did not expect, and prints its result"
)]

use std::fs;
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use hub_fixture::{Build, Fault, Hub, KernelTree, Trust};
use kernel_spec::index::IndexFiles;
use kernel_spec::{CommitId, Dependency, Index, Lockfile, RepositoryId, Requirement, Selector};
use sha2::Digest as _;

/// Latency of the Hub in the second figure.
const LATENCY: Duration = Duration::from_millis(50);
/// Kernels that are locked there: one half needs the other one.
const KERNELS: usize = 200;
/// The build that is hashed: 64 files of 16 MiB.
const FILES: usize = 64;
const FILE_SIZE: usize = 16 << 20;
/// Entries of the index and the lock.
const ENTRIES: usize = 100_000;

fn main() {
    // `cargo bench` says so; whatever else starts this only wants to know that it starts.
    if !std::env::args().any(|argument| argument == "--bench") {
        return;
    }
    println!("| figure | here | Python `kernels` 0.17.2 | ratio |\n| --- | --- | --- | --- |");
    let names: Vec<_> = std::env::args()
        .skip(1)
        .filter(|name| !name.starts_with('-'))
        .collect();
    let figures: [(&str, fn()); 4] = [
        ("fetch", warm_fetch),
        ("lock", lock_many),
        ("digest", digest),
        ("index", large_index),
    ];
    for (name, measure) in figures {
        if names.is_empty() || names.iter().any(|wanted| wanted == name) {
            measure();
        }
    }
}

fn python() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let python = root.join(".venv/bin/python");
    assert!(python.exists(), "run `cargo xtask env` first");
    python
}

fn clean(command: &mut Command, hub: &str, folder: &Path, cache: &Path) {
    command
        .env_clear()
        .env("HOME", folder)
        .env("HF_ENDPOINT", hub)
        .env("KERNELS_CACHE", cache)
        .env("HF_HUB_CACHE", cache)
        .env("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
        .env("HF_HUB_DISABLE_PROGRESS_BARS", "1")
        .current_dir(folder);
}

fn ours(hub: &str, folder: &Path, arguments: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kernel-cli"));
    clean(&mut command, hub, folder, &folder.join("ours"));
    command
        .args(arguments.split_whitespace())
        .arg("--backend")
        .arg("cpu");
    command
}

fn theirs(hub: &str, folder: &Path, arguments: &str) -> Command {
    let mut command = Command::new(python());
    clean(&mut command, hub, folder, &folder.join("theirs"));
    command.args(["-c", "from kernels.cli import main; main()"]);
    command.args(arguments.split_whitespace());
    command
}

fn succeed(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {text}");
    output
}

/// The median time of some runs.
fn median(runs: usize, mut run: impl FnMut()) -> Duration {
    let mut times: Vec<_> = (0..runs)
        .map(|_| {
            let start = Instant::now();
            run();
            start.elapsed()
        })
        .collect();
    times.sort();
    times[runs / 2]
}

/// Most memory that a command held, in bytes, as the system counts it for a child process.
fn memory(command: &Command) -> u64 {
    let script = "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True, \
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL); \
        print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)";
    let mut outer = Command::new(python());
    outer.args(["-c", script]).arg(command.get_program());
    outer.args(command.get_args()).env_clear();
    outer.envs(
        command
            .get_envs()
            .filter_map(|(name, value)| Some((name, value?))),
    );
    outer.current_dir(command.get_current_dir().unwrap());
    let output = succeed(&mut outer);
    let text = String::from_utf8(output.stdout).unwrap();
    text.trim().parse::<u64>().unwrap() * 1024
}

fn row(figure: &str, ours: impl std::fmt::Display, theirs: impl std::fmt::Display, ratio: f64) {
    println!("| {figure} | {ours} | {theirs} | {ratio:.1} |");
}

fn ms(time: Duration) -> String {
    format!("{:.1} ms", time.as_secs_f64() * 1e3)
}

fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

fn kernel(name: &str, needs: Option<&str>) -> KernelTree {
    let need = needs.map(|need| Dependency {
        repository: need.parse().unwrap(),
        requirement: Requirement::Version(1),
    });
    let build = Build::new("torch-cpu")
        .file("__init__.py", format!("NAME = {name:?}\n"))
        .metadata(move |metadata| metadata.kernel_depends.extend(need.clone()));
    KernelTree::new(name).build("v1", build)
}

/// A locked kernel that is in the cache.
fn warm_fetch() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let hub = Hub::builder()
        .organization("kernels-test", Trust::Trusted)
        .kernel(hub_fixture::samples::relu())
        .start()
        .unwrap();
    let project = "[tool.kernels.dependencies]\n\"kernels-test/relu\" = 1\n";
    fs::write(folder.join("pyproject.toml"), project).unwrap();
    let endpoint = hub.endpoint();
    succeed(&mut ours(endpoint, folder, "lock"));
    succeed(&mut ours(endpoint, folder, "fetch --locked"));
    succeed(&mut theirs(endpoint, folder, "download ."));
    let here = median(21, || {
        succeed(&mut ours(endpoint, folder, "fetch --frozen"));
    });
    let there = median(3, || {
        succeed(&mut theirs(endpoint, folder, "download ."));
    });
    let ratio = there.as_secs_f64() / here.as_secs_f64();
    row(
        "warm `fetch --frozen`, time (median)",
        ms(here),
        ms(there),
        ratio,
    );
    let here = memory(&ours(endpoint, folder, "fetch --frozen"));
    let there = memory(&theirs(endpoint, folder, "download ."));
    row(
        "warm `fetch --frozen`, memory",
        mib(here),
        mib(there),
        there as f64 / here as f64,
    );
}

/// A lock of many kernels, from a Hub that takes a while for each answer.
fn lock_many() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let mut trees = Vec::new();
    let mut project = "[tool.kernels.dependencies]\n".to_owned();
    for number in 0..KERNELS / 2 {
        let (root, leaf) = (
            format!("kernels-test/r{number}"),
            format!("kernels-test/l{number}"),
        );
        trees.push(kernel(&root, Some(&leaf)));
        trees.push(kernel(&leaf, None));
        project.extend(["\"", &root, "\" = 1\n"]);
    }
    fs::write(folder.join("pyproject.toml"), project).unwrap();
    let hub = Hub::builder()
        .organization("kernels-test", Trust::Trusted)
        .kernels(trees);
    let hub = hub.start().unwrap();
    hub.inject(Fault::on("").sleep(LATENCY));
    let lock = folder.join("kernels.lock");
    let here = median(3, || {
        let _ = fs::remove_dir_all(folder.join("ours"));
        succeed(&mut ours(hub.endpoint(), folder, "lock"));
    });
    let requests = hub.requests().len() / 3;
    hub.clear_requests();
    let written = fs::read(&lock).unwrap();
    fs::remove_file(&lock).unwrap();
    let there = median(1, || {
        succeed(&mut theirs(hub.endpoint(), folder, "lock ."));
    });
    assert_eq!(
        fs::read(&lock).unwrap(),
        written,
        "both write the same lock"
    );
    row(
        "lock of 200 kernels, 50 ms latency",
        format!("{} ({requests} requests)", ms(here)),
        format!("{} ({} requests)", ms(there), hub.requests().len()),
        there.as_secs_f64() / here.as_secs_f64(),
    );
}

/// The digest of 1 GiB, from the page cache.
fn digest() {
    let folder = tempfile::tempdir().unwrap();
    let build = folder.path().join("build/torch-cpu");
    fs::create_dir_all(&build).unwrap();
    let mut content = vec![0_u8; FILE_SIZE];
    let mut files = Vec::new();
    for number in 0..FILES {
        content[..8].copy_from_slice(&(number as u64).to_le_bytes());
        let name = format!("{number:02}.bin");
        fs::write(build.join(&name), &content).unwrap();
        files.push((name, kernel_spec::DigestAlgorithm::Sha256.hash(&content)));
    }
    let files: serde_json::Map<_, _> = files
        .into_iter()
        .map(|(name, hash)| (name, hash.into()))
        .collect();
    let metadata = serde_json::json!({
        "name": "large", "id": "_large_cpu_0000000", "version": 1, "license": "", "python-depends": [],
        "backend": {"type": "cpu"}, "digest": {"algorithm": "sha256", "files": files},
    });
    fs::write(build.join("metadata.json"), metadata.to_string()).unwrap();
    let raw = median(3, || {
        for _ in 0..FILES {
            black_box(sha2::Sha256::digest(black_box(&content)));
        }
    });
    let verify = |cores: &str| {
        let mut command = Command::new("taskset");
        clean(
            &mut command,
            "http://127.0.0.1:9",
            folder.path(),
            &folder.path().join("ours"),
        );
        command
            .args(["-c", cores, env!("CARGO_BIN_EXE_kernel-cli"), "verify"])
            .arg(&build);
        command
    };
    let script = "import sys, time; from pathlib import Path; from kernels._rust import Digest, \
        DigestAlgorithm as A; start = time.perf_counter(); Digest.hash_variant(A.SHA256, \
        Path(sys.argv[1])); print(time.perf_counter() - start)";
    let peer = |cores: &str| {
        let mut command = Command::new("taskset");
        clean(
            &mut command,
            "http://127.0.0.1:9",
            folder.path(),
            &folder.path().join("theirs"),
        );
        command
            .args(["-c", cores])
            .arg(python())
            .args(["-c", script])
            .arg(&build);
        let text = String::from_utf8(succeed(&mut command).stdout).unwrap();
        Duration::from_secs_f64(text.trim().parse().unwrap())
    };
    let count = std::thread::available_parallelism().unwrap();
    for (cores, words) in [
        ("0".to_owned(), "one core".to_owned()),
        (format!("0-{}", count.get() - 1), format!("{count} cores")),
    ] {
        let here = median(3, || drop(succeed(&mut verify(&cores))));
        let mut there: Vec<_> = (0..3).map(|_| peer(&cores)).collect();
        there.sort();
        let fraction = raw.as_secs_f64() / here.as_secs_f64();
        row(
            &format!("digest of 1 GiB, {words}"),
            format!(
                "{} ({fraction:.2} of the speed of SHA-256 alone on one core)",
                ms(here)
            ),
            ms(there[1]),
            there[1].as_secs_f64() / here.as_secs_f64(),
        );
    }
    println!("| SHA-256 of 1 GiB in memory, one core | {} | | |", ms(raw));
    let memory = memory(&verify("0-1"));
    println!("| digest of 1 GiB, memory | {} | | |", mib(memory));
}

/// Memory of this process now, in bytes.
fn resident() -> u64 {
    let text = fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = text.split_whitespace().nth(1).unwrap().parse().unwrap();
    pages * 4096
}

/// An index and a lock of many kernels, and the time to find one of them.
fn large_index() {
    let repository = |number: usize| format!("org-{}/kernel-{number}", number % 100);
    let file = |number: usize| {
        let id: RepositoryId = repository(number).parse().unwrap();
        let text = format!(
            r#"{{"format": 1, "repository": "{id}", "summary": "Kernel {number}", "license": "Apache-2.0",
            "origin": "hub", "ops": [{{"op": "RMSNorm", "symbol": "RMSNorm", "devices": ["tpu"]}}],
            "versions": [{{"version": 1, "commit": "{number:040x}",
            "digests": {{"torch-tpu": "sha256-uU0nuZNNPgilLlLX2n2r+sSE7+N6U4DukIj3rOLvzek="}}}}]}}"#
        );
        (kernel_spec::index::repository_file_name(&id), text)
    };
    let mut files: Vec<_> = (0..ENTRIES).map(file).collect();
    files.sort_unstable();
    let before = resident();
    let start = Instant::now();
    let named = files
        .iter()
        .map(|(name, text)| (name.as_str(), text.as_bytes()));
    let index = Index::from_files(named.clone()).unwrap();
    let (load, held) = (start.elapsed(), resident().saturating_sub(before));
    let wanted: RepositoryId = repository(77_777).parse().unwrap();
    let find = median(101, || {
        black_box(
            index
                .version(black_box(&wanted), &Selector::Newest)
                .unwrap(),
        );
    });
    println!(
        "| index of 100,000 kernels: read all, find one | {}, {:.1} us; {} | | |",
        ms(load),
        find.as_secs_f64() * 1e6,
        mib(held)
    );
    drop(index);
    let files: Vec<_> = named.collect();
    let alone = median(101, || {
        let files = IndexFiles::sorted(black_box(&files)).unwrap();
        let entry = files.repository(black_box(&wanted)).unwrap().unwrap();
        black_box(entry.version(&Selector::Newest).unwrap());
    });
    println!(
        "| index of 100,000 kernels: find one and read it alone | {} | | |",
        ms(alone)
    );
    let commit = |number: usize| format!("{number:040x}").parse::<CommitId>().unwrap();
    let lock: Lockfile = (0..ENTRIES)
        .map(|number| {
            let repository = repository(number).parse().unwrap();
            let requirement = Requirement::Version(1);
            (
                Dependency {
                    repository,
                    requirement,
                },
                commit(number),
            )
        })
        .collect();
    let text = lock.render();
    drop(lock);
    let before = resident();
    let start = Instant::now();
    let lock = Lockfile::from_slice(text.as_bytes()).unwrap();
    let (load, held) = (start.elapsed(), resident().saturating_sub(before));
    let find = median(101, || {
        black_box(lock.entry_of(black_box(&wanted)).unwrap());
    });
    println!(
        "| lock of 100,000 kernels ({}): read all, find one | {}, {:.1} us; {} | | |",
        mib(text.len() as u64),
        ms(load),
        find.as_secs_f64() * 1e6,
        mib(held)
    );
}
