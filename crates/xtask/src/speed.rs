//! `cargo xtask speed`: our runtime and transformers side by side on the CPU, as ratios.
//!
//! Same weights, dtype and threads, one after the other in turns, so that a change of the
//! machine's mood meets both. The limit of decode is measured on the spot: a step reads every
//! weight once, so memory bandwidth over bytes of weights bounds the tokens a second.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::environment::{self, Environment};
use crate::workspace::Workspace;
use crate::{model, process};

const MEASURE_PEER: &str = include_str!("../python/measure_transformers.py");
const MAKE_MODELS: &str = include_str!("../python/make_speed_models.py");

const MODELS: [&str; 2] = ["SmolLM2-135M", "random-1B"];
const DTYPES: [&str; 2] = ["float32", "bfloat16"];
const THREADS: [usize; 2] = [1, 2];

/// What one run prints.
#[derive(Deserialize)]
struct Figures {
    first_token_s: f64,
    prefill_tokens_per_s: f64,
    decode_tokens_per_s: f64,
    peak_resident_bytes: f64,
    #[serde(default)]
    read_bytes_per_s: f64,
}

/// Measures every model, dtype and number of threads, or those that match `only`, with so many
/// rounds each.
pub(crate) fn run(workspace: &Workspace, rounds: usize, only: Option<&str>) -> Result<()> {
    let environment = environment::ensure(workspace)?;
    let small = model::ensure(workspace, &environment)?;
    let directory = workspace.models().join("speed");
    fs::create_dir_all(&directory)
        .with_context(|| format!("cannot make {}", directory.display()))?;
    let mut make = environment.command();
    make.args(["-c", MAKE_MODELS]).arg(&small).arg(&directory);
    process::run_quietly("models", &mut make)?;
    process::run(environment.cargo().current_dir(workspace.root()).args([
        "build",
        "--quiet",
        "--release",
        "--package",
        "kernel-model",
        "--example",
        "measure",
    ]))?;
    let ours = workspace.built().join("examples/measure");

    println!(
        "{:32} {:>19} {:>19} {:>7} {:>17} {:>17} {:>19}",
        "model",
        "decode tok/s",
        "of the limit",
        "",
        "prefill tok/s",
        "first token s",
        "peak RSS - weights"
    );
    for name in MODELS {
        for dtype in DTYPES {
            for threads in THREADS {
                let label = format!("{name} {dtype} {threads} threads");
                if only.is_some_and(|only| !label.contains(only)) {
                    continue;
                }
                let path = directory.join(format!("{name}-{dtype}"));
                let case = Case {
                    path,
                    dtype,
                    threads,
                };
                println!("{label:32} {}", case.compare(&ours, &environment, rounds)?);
            }
        }
    }
    println!("Figures are ours / transformers' = ratio; best of {rounds} rounds in turns.");
    Ok(())
}

struct Case {
    path: PathBuf,
    dtype: &'static str,
    threads: usize,
}

impl Case {
    fn compare(&self, ours: &Path, environment: &Environment, rounds: usize) -> Result<String> {
        let (mut a, mut b) = (Vec::new(), Vec::new());
        for _ in 0..rounds.max(1) {
            a.push(self.figures(&mut Command::new(ours))?);
            let mut peer = environment.command();
            b.push(self.figures(peer.args(["-c", MEASURE_PEER]))?);
        }
        let weights = fs::metadata(self.path.join("model.safetensors"))?.len() as f64;
        let most =
            |all: &[Figures], of: fn(&Figures) -> f64| all.iter().map(of).fold(0.0, f64::max);
        let least =
            |all: &[Figures], of: fn(&Figures) -> f64| all.iter().map(of).fold(f64::MAX, f64::min);
        let limit = most(&a, |f| f.read_bytes_per_s) / weights;
        let (decode, peer) = (most(&a, decode), most(&b, decode));
        let (prefill, peer_prefill) = (most(&a, prefill), most(&b, prefill));
        let (first, peer_first) = (least(&a, first), least(&b, first));
        let megabytes = |bytes: f64| (bytes - weights) / 1e6;
        Ok(format!(
            "{decode:5.1} / {peer:5.1} = {:4.1} {:3.0}% of {limit:5.1} {:14.0} / {:5.0} = {:4.1} {first:5.2} / {peer_first:5.2} = {:4.2} {:5.0} / {:5.0} MB",
            decode / peer,
            100.0 * decode / limit,
            prefill,
            peer_prefill,
            prefill / peer_prefill,
            first / peer_first,
            megabytes(least(&a, |f| f.peak_resident_bytes)),
            megabytes(least(&b, |f| f.peak_resident_bytes)),
        ))
    }

    fn figures(&self, command: &mut Command) -> Result<Figures> {
        let output = command
            .arg(&self.path)
            .args([self.dtype, &self.threads.to_string(), "256", "48"])
            .env("OMP_NUM_THREADS", self.threads.to_string())
            .output()
            .with_context(|| format!("cannot start `{}`", command.get_program().display()))?;
        if !output.status.success() {
            bail!("a run failed:\n{}", String::from_utf8_lossy(&output.stderr));
        }
        serde_json::from_slice(&output.stdout).context("a run printed no figures")
    }
}

fn decode(figures: &Figures) -> f64 {
    figures.decode_tokens_per_s
}

fn prefill(figures: &Figures) -> f64 {
    figures.prefill_tokens_per_s
}

fn first(figures: &Figures) -> f64 {
    figures.first_token_s
}
