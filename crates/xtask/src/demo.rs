//! `cargo xtask demo`: the whole way once, from nothing to an answer and an A/B table.
//!
//! Everything it does is done with the commands that a user has; it prints each before it runs it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::workspace::Workspace;
use crate::{environment, model, process};

const QUESTION: &str = "What is the capital of France?";

/// Runs the demo.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    let environment = environment::ensure(workspace)?;
    let plain = model::ensure(workspace, &environment)?;
    println!("Building kernel-cli and its runtime library (minutes the first time)");
    process::run(environment.cargo().current_dir(workspace.root()).args([
        "build",
        "--quiet",
        "--release",
        "--package",
        "kernel-cli",
        "--package",
        "kernel-runtime",
    ]))?;
    let cli = Cli {
        program: workspace.built().join("kernel-cli"),
    };
    let patched = with_kernels(&plain)?;

    heading("The kernels that the model's config declares, fetched and verified");
    cli.show(&["fetch", "--config", text(&patched)?])?;

    heading("The answer with the default ops");
    let default = cli.answer(&["--model", text(&plain)?, "--kernels", "off"])?;
    println!("{}", default.text);
    heading("The answer with the kernels, and what runs on what");
    let kernels = cli.answer(&["--model", text(&patched)?])?;
    println!("{}", kernels.text);
    if !default.text.contains("Paris") {
        bail!("the answer does not name Paris: {:?}", default.text);
    }
    if default.text != kernels.text {
        bail!(
            "the answers differ: {:?} with the default ops, {:?} with kernels",
            default.text,
            kernels.text
        );
    }
    println!("Both answers are the same text.");

    heading("A/B: the default ops (A) against the kernels (B), whole model");
    cli.show(&[
        "bench",
        "ab",
        "default",
        "config",
        "--model",
        text(&patched)?,
    ])
}

/// A copy of the model directory whose config declares the kernels of the index. The weights are
/// linked, not copied.
pub(crate) fn with_kernels(plain: &Path) -> Result<PathBuf> {
    let mut name = plain
        .file_name()
        .context("the model directory has a name")?
        .to_owned();
    name.push("-kernels");
    let patched = plain.with_file_name(name);
    fs::create_dir_all(&patched).with_context(|| format!("cannot make {}", patched.display()))?;
    for entry in fs::read_dir(plain).with_context(|| format!("cannot read {}", plain.display()))? {
        let entry = entry?;
        let link = patched.join(entry.file_name());
        if entry.file_name() != "config.json" && link.symlink_metadata().is_err() {
            std::os::unix::fs::symlink(entry.path(), &link)
                .with_context(|| format!("cannot link {}", link.display()))?;
        }
    }
    let config = plain.join("config.json");
    let bytes = fs::read(&config).with_context(|| format!("cannot read {}", config.display()))?;
    let mut value: Value = serde_json::from_slice(&bytes)
        .with_context(|| format!("{} is not JSON", config.display()))?;
    value["kernel_config"] = kernel_config();
    let written = patched.join("config.json");
    fs::write(&written, serde_json::to_vec_pretty(&value)?)
        .with_context(|| format!("cannot write {}", written.display()))?;
    Ok(patched)
}

fn kernel_config() -> Value {
    json!({
        "kernel_mapping": {
            "attention": "hub-kernels/attention@v1:attention",
            "decode_attention": "hub-kernels/decode-attention@v1:decode_attention",
            "RMSNorm": "hub-kernels/rms-norm@v1:RMSNorm",
            "SwiGLUMLP": "hub-kernels/swiglu-mlp@v1:SwiGLUMLP",
            "rotary_pos_emb": "hub-kernels/rotary@v1:rotary_pos_emb",
        },
        "fallback": "warn",
    })
}

struct Cli {
    program: PathBuf,
}

struct Answer {
    text: String,
}

impl Cli {
    /// Prints a command and runs it with the terminal as its output.
    fn show(&self, arguments: &[&str]) -> Result<()> {
        println!("$ kernel-cli {}", arguments.join(" "));
        process::run(Command::new(&self.program).args(arguments))
    }

    /// Asks the question greedily and returns the text; the report goes to the terminal.
    fn answer(&self, arguments: &[&str]) -> Result<Answer> {
        println!(
            "$ kernel-cli generate {} --chat {QUESTION:?} --greedy",
            arguments.join(" ")
        );
        let output = Command::new(&self.program)
            .arg("generate")
            .args(arguments)
            .args([
                "--chat",
                QUESTION,
                "--greedy",
                "--max-new-tokens",
                "32",
                "--json",
            ])
            .stderr(Stdio::inherit())
            .output()
            .context("cannot start kernel-cli")?;
        let value: Value = serde_json::from_slice(&output.stdout)
            .context("kernel-cli generate printed no JSON")?;
        if !output.status.success() {
            bail!("kernel-cli generate failed: {}", value["error"]["message"]);
        }
        let text = value["text"]
            .as_str()
            .context("the answer has no `text`")?
            .to_owned();
        Ok(Answer { text })
    }
}

fn heading(text: &str) {
    println!("\n== {text}");
}

fn text(path: &Path) -> Result<&str> {
    path.to_str()
        .with_context(|| format!("{} is not UTF-8", path.display()))
}
