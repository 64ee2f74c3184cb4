//! The command with several ranks: what it prints, and what is left when a rank dies, hangs, or the user
//! has had enough.
//!
//! Each test starts real ranks through torchrun, which takes seconds; those that are marked are run by hand:
//! `cargo test --workspace --test tensor_parallel -- --include-ignored`.

#![cfg(target_os = "linux")]
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "helpers of tests may panic"
)]

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .unwrap()
        .to_path_buf()
}

fn golden(name: &str) -> String {
    let path = workspace()
        .join("crates/kernel-model/tests/golden")
        .join(name);
    path.to_str().unwrap().to_owned()
}

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kernel-cli"));
    command.args(arguments).env("HF_HUB_OFFLINE", "1");
    for name in ["RANK", "WORLD_SIZE", "VIRTUAL_ENV", "LOCAL_KERNELS"] {
        command.env_remove(name);
    }
    command
}

fn answer(output: &Output) -> Value {
    assert!(
        output.status.success(),
        "{}\n{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).expect("one JSON document")
}

fn generate(model: &str, rest: &[&str]) -> Value {
    let mut arguments = vec![
        "generate",
        "--json",
        "--greedy",
        "--ignore-eos",
        "--model",
        model,
    ];
    arguments.extend(["--prompt-ids", "1,2,3,4,5", "--max-new-tokens", "6"]);
    arguments.extend(rest);
    answer(&command(&arguments).output().unwrap())
}

#[test]
fn two_ranks_give_the_tokens_of_one_and_read_what_was_planned() {
    let model = golden("qwen2-tied");
    let alone = generate(&model, &[]);
    let spread = generate(&model, &["--tp", "2"]);
    assert_eq!(spread["tokens"], alone["tokens"]);
    let plan = answer(
        &command(&["plan", "--json", "--tp", "2", &model])
            .output()
            .unwrap(),
    );
    let report = &spread["parallel"];
    let traffic = &plan["communication"];
    let planned = traffic["sums"].as_u64().unwrap() + traffic["gathers"].as_u64().unwrap();
    assert_eq!(report["collectives_per_step"], planned);
    for rank in 0..2 {
        assert_eq!(
            report["ranks"][rank]["bytes_read"],
            plan["ranks"][rank]["read_bytes"]
        );
    }
}

#[test]
fn what_is_wrong_with_the_call_is_said_before_anything_starts() {
    let model = golden("glm4");
    for (arguments, word) in [
        (vec!["--tp", "0"], "--tp 0"),
        (vec!["--tp", "2", "--tp-plan", "[1]"], "--tp-plan"),
        (vec!["--tp", "2", "--tp-timeout", "0"], "--tp-timeout"),
    ] {
        let mut all = vec!["generate", "--model", &model, "--prompt-ids", "1"];
        all.extend(&arguments);
        let output = command(&all).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(text.contains(word), "{text}");
    }
    let started = command(&[
        "generate",
        "--tp",
        "2",
        "--model",
        &model,
        "--prompt-ids",
        "1",
    ])
    .env("RANK", "0")
    .env("WORLD_SIZE", "4")
    .env("MASTER_ADDR", "localhost")
    .env("MASTER_PORT", "29500")
    .output()
    .unwrap();
    let text = String::from_utf8_lossy(&started.stderr).into_owned();
    assert!(text.contains("started 4 ranks"), "{text}");
}

#[test]
#[ignore = "starts two ranks more"]
fn under_a_launcher_of_the_users_own_only_the_first_rank_prints() {
    let model = golden("llama");
    let python = workspace().join(".venv/bin/python");
    let output = Command::new(python)
        .args(["-m", "torch.distributed.run", "--standalone", "--no-python"])
        .args(["--local-addr=127.0.0.1", "--nproc-per-node=2"])
        .arg(env!("CARGO_BIN_EXE_kernel-cli"))
        .args(["generate", "--json", "--greedy", "--model", &model])
        .args([
            "--prompt-ids",
            "1,2,3,4,5",
            "--max-new-tokens",
            "6",
            "--ignore-eos",
        ])
        .env("GLOO_SOCKET_IFNAME", "lo")
        .env("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
        .output()
        .unwrap();
    let spread = answer(&output);
    assert_eq!(spread["tokens"], generate(&model, &[])["tokens"]);
    assert_eq!(spread["parallel"]["ranks"].as_array().unwrap().len(), 2);
}

#[test]
#[ignore = "starts two ranks more"]
fn an_error_of_all_ranks_is_said_once() {
    let model = golden("glm4");
    let plan = json!({"layers.*.self_attn.q_projection": "colwise"}).to_string();
    let output = command(&["generate", "--json", "--model", &model, "--prompt-ids", "1"])
        .args(["--tp", "2", "--tp-plan", &plan])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let error: Value = serde_json::from_slice(&output.stdout).unwrap();
    let message = error["error"]["message"].as_str().unwrap();
    assert!(
        message.contains("`layers.*.self_attn.q_projection`"),
        "{message}"
    );
    assert!(!message.contains("rank "), "{message}");
}

/// A generation of two ranks that has begun to print.
struct Running {
    child: Child,
    ranks: BTreeMap<usize, i32>,
}

impl Running {
    fn start(rest: &[&str]) -> Self {
        let model = workspace().join("models/SmolLM2-135M-Instruct");
        let mut command = command(&["generate", "--greedy", "--ignore-eos", "--tp", "2"]);
        let mut child = command
            .args([
                "--prompt",
                "The capital of France is",
                "--max-new-tokens",
                "900",
            ])
            .arg("--model")
            .arg(model)
            .args(rest)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut first = [0];
        child
            .stdout
            .as_mut()
            .unwrap()
            .read_exact(&mut first)
            .expect("it prints before it ends");
        let ranks = ranks_of(child.id());
        assert_eq!(ranks.len(), 2);
        Self { child, ranks }
    }

    /// Exit code, standard error, and the time since a moment.
    fn end(self, since: Instant) -> (Option<i32>, String, Duration) {
        let output = self.child.wait_with_output().unwrap();
        let took = since.elapsed();
        for process in self.ranks.values() {
            // A moment for the system to take a process away that has been ended.
            let gone = (0..50).any(|_| {
                std::thread::sleep(Duration::from_millis(20));
                state(*process).is_none_or(|state| state == 'Z')
            });
            assert!(gone, "process {process} is left");
        }
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), text, took)
    }
}

/// Ranks whose torchrun is a child of a process.
fn ranks_of(parent: u32) -> BTreeMap<usize, i32> {
    let children = |parent: u32| -> Vec<u32> {
        let tasks = format!("/proc/{parent}/task");
        let Ok(tasks) = fs::read_dir(tasks) else {
            return Vec::new();
        };
        tasks
            .flatten()
            .filter_map(|task| fs::read_to_string(task.path().join("children")).ok())
            .flat_map(|text| {
                let numbers: Vec<u32> = text.split_whitespace().flat_map(str::parse).collect();
                numbers
            })
            .collect()
    };
    children(parent)
        .into_iter()
        .flat_map(children)
        .filter_map(|process| {
            let variables = fs::read(format!("/proc/{process}/environ")).ok()?;
            let rank = variables
                .split(|byte| *byte == 0)
                .find_map(|variable| variable.strip_prefix(b"RANK="))?;
            let rank = std::str::from_utf8(rank).ok()?.parse().ok()?;
            Some((rank, i32::try_from(process).ok()?))
        })
        .collect()
}

/// How the system says a process is doing; nothing where there is none.
fn state(process: i32) -> Option<char> {
    let text = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    text.rsplit_once(')')?.1.trim_start().chars().next()
}

fn signal(process: i32, signal: Signal) {
    kill(Pid::from_raw(process), signal).unwrap();
}

#[test]
fn a_rank_that_is_killed_takes_the_group_down_and_is_named() {
    let running = Running::start(&[]);
    let since = Instant::now();
    signal(running.ranks[&1], Signal::SIGKILL);
    let (code, text, took) = running.end(since);
    assert_eq!(code, Some(1), "{text}");
    assert!(
        text.contains("rank 1") && text.contains("signal 9"),
        "{text}"
    );
    assert!(took < Duration::from_secs(15), "{took:?}");
}

#[test]
#[ignore = "starts two ranks of a real model"]
fn a_rank_that_hangs_is_found_by_the_time_limit() {
    let running = Running::start(&["--tp-timeout", "5"]);
    let since = Instant::now();
    signal(running.ranks[&1], Signal::SIGSTOP);
    let (code, text, took) = running.end(since);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("rank 1"), "{text}");
    assert!(took < Duration::from_secs(20), "{took:?}");
}

#[test]
#[ignore = "starts two ranks of a real model"]
fn an_interrupt_ends_all_ranks_within_two_seconds() {
    let running = Running::start(&[]);
    let since = Instant::now();
    signal(i32::try_from(running.child.id()).unwrap(), Signal::SIGINT);
    let (code, text, took) = running.end(since);
    assert_eq!(code, Some(130), "{text}");
    assert!(took < Duration::from_secs(4), "{took:?}");
}

#[test]
#[ignore = "starts two ranks of a real model"]
fn no_rank_outlives_the_command() {
    let running = Running::start(&[]);
    let since = Instant::now();
    signal(i32::try_from(running.child.id()).unwrap(), Signal::SIGKILL);
    let _ = running.end(since);
}
