//! `cargo xtask bench-method`: the figures of docs/ab-method.md, made again on this machine.
//!
//! Equal arms, slowdowns and sleeps are the example `method` of kernel-bench. The spread of our
//! estimate against that of `kernels benchmark` is made here, on the same kernel, shape and time.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::environment::Environment;
use crate::process;
use crate::workspace::Workspace;

const PEER: &str = include_str!("bench_peer.py");
/// A workload of the kernel's own script, and the same as an op of ours.
const WORKLOAD: (&str, &str) = ("prompt_f32", "R=512,H=576");
const REPETITIONS: usize = 20;
/// Seconds of each of our repetitions.
const BUDGET: f64 = 3.0;

/// Runs everything and prints two tables.
pub(crate) fn run(workspace: &Workspace, environment: &Environment) -> Result<()> {
    process::run(environment.cargo().current_dir(workspace.root()).args([
        "build",
        "--quiet",
        "--workspace",
        "--all-targets",
    ]))?;
    let built = workspace.root().join("target/debug");
    process::run(&mut Command::new(built.join("examples/method")))?;
    spread(workspace, environment)
}

/// What one tool says of the same thing, again and again.
struct Estimates {
    times: Vec<f64>,
    ratios: Vec<f64>,
}

/// Only the comparison with the peer.
pub(crate) fn spread(workspace: &Workspace, environment: &Environment) -> Result<()> {
    let ours = ours(workspace)?;
    let once = peer(workspace, environment, 100)?;
    let time = middle(&once.times);
    let iterations = (BUDGET / 3.0 / time.max(1e-6)) as usize;
    let long = peer(workspace, environment, iterations.max(100))?;
    println!(
        "\n| estimate, {REPETITIONS} repetitions | spread of the time | spread of the ratio |"
    );
    println!("| --- | --- | --- |");
    for (name, estimates) in [
        (format!("`bench ab`, {BUDGET} s"), &ours),
        (
            "`kernels benchmark`, 100 iterations (its default)".to_owned(),
            &once,
        ),
        (
            format!(
                "`kernels benchmark`, {iterations} iterations (as many calls of the kernel as ours in {BUDGET} s)"
            ),
            &long,
        ),
    ] {
        println!(
            "| {name} | {:.2}% | {:.2}% |",
            relative_spread(&estimates.times) * 100.0,
            relative_spread(&estimates.ratios) * 100.0
        );
    }
    Ok(())
}

fn ours(workspace: &Workspace) -> Result<Estimates> {
    let program = workspace.root().join("target/debug/kernel-cli");
    let mut estimates = Estimates {
        times: Vec::new(),
        ratios: Vec::new(),
    };
    for seed in 0..REPETITIONS {
        let output = Command::new(&program)
            .current_dir(workspace.root())
            .args([
                "bench",
                "ab",
                "default",
                "hub-kernels/rms-norm@v1:RMSNorm",
                "--op",
                "rms_norm",
            ])
            .args(["--shape", WORKLOAD.1, "--json", "--quiet", "--offline"])
            .args(["--budget", &BUDGET.to_string(), "--seed", &seed.to_string()])
            .stderr(Stdio::inherit())
            .output()
            .context("cannot start kernel-cli")?;
        let record: Value = serde_json::from_slice(&output.stdout).context("no record")?;
        let times = record["samples"][0]["measurement"]["b"]
            .as_array()
            .context("no samples")?;
        let times: Vec<f64> = times.iter().filter_map(Value::as_f64).collect();
        estimates.times.push(middle(&times));
        estimates
            .ratios
            .push(record["ratio"]["estimate"].as_f64().context("no ratio")?);
    }
    Ok(estimates)
}

fn peer(workspace: &Workspace, environment: &Environment, iterations: usize) -> Result<Estimates> {
    let output = environment
        .command()
        .arg("-c")
        .arg(PEER)
        .arg(workspace.root().join("kernels-index/rms-norm"))
        .args([
            WORKLOAD.0,
            &REPETITIONS.to_string(),
            &iterations.to_string(),
        ])
        .stderr(Stdio::inherit())
        .output()
        .context("cannot start Python")?;
    if !output.status.success() {
        bail!("`kernels benchmark` ended with {}", output.status);
    }
    let mut estimates = Estimates {
        times: Vec::new(),
        ratios: Vec::new(),
    };
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let line: Value = serde_json::from_str(line).context("not a line of the runner")?;
        estimates
            .times
            .push(line["time"].as_f64().context("no time")?);
        estimates
            .ratios
            .push(line["ratio"].as_f64().context("no ratio")?);
    }
    Ok(estimates)
}

fn middle(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Standard deviation over mean.
fn relative_spread(values: &[f64]) -> f64 {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (squares / (count - 1.0)).sqrt() / mean
}
