//! The program, the models, and what is made of the program's answers.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

pub(crate) const QUESTION: &str = "What is the capital of France?";
pub(crate) const OPS: [&str; 5] = ["attention", "decode_attention", "mlp", "rms_norm", "rotary"];

pub(crate) fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .unwrap()
        .to_path_buf()
}

/// SmolLM2-135M-Instruct.
pub(crate) fn model() -> PathBuf {
    let path = workspace().join("models/SmolLM2-135M-Instruct");
    assert!(
        path.join("config.json").exists(),
        "run `cargo xtask model` first"
    );
    path
}

/// A random Llama of two layers, head_dim 16, without a tokenizer.
pub(crate) fn small_model() -> PathBuf {
    workspace().join("crates/kernel-model/tests/golden/llama")
}

pub(crate) fn run(arguments: &[&str]) -> Output {
    run_in(&tempfile::tempdir().unwrap(), arguments, &[])
}

pub(crate) fn run_in(
    cache: &tempfile::TempDir,
    arguments: &[&str],
    variables: &[(&str, &str)],
) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kernel-cli"));
    command
        .args(arguments)
        .env("KERNELS_CACHE", cache.path())
        .env("HF_HUB_OFFLINE", "1");
    for name in [
        "DISABLE_KERNEL_MAPPING",
        "USE_HUB_KERNELS",
        "LOCAL_KERNELS",
        "VIRTUAL_ENV",
    ] {
        command.env_remove(name);
    }
    command
        .envs(variables.iter().copied())
        .output()
        .expect("the program starts")
}

/// The JSON document of a run that has to go well.
pub(crate) fn json_of(output: &Output) -> Value {
    assert!(output.status.success(), "{}", describe(output));
    serde_json::from_slice(&output.stdout).expect("standard output is one JSON document")
}

/// The error of a run that has to fail with exit code 1.
pub(crate) fn error_of(output: &Output) -> Value {
    assert_eq!(output.status.code(), Some(1), "{}", describe(output));
    let value: Value = serde_json::from_slice(&output.stdout).expect("the error is JSON");
    value["error"].clone()
}

pub(crate) fn describe(output: &Output) -> String {
    format!(
        "{}\n{}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

/// A copy of a model directory with a changed config; the other files are links.
pub(crate) fn with_config(model: &Path, change: impl FnOnce(&mut Value)) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(model).unwrap() {
        let path = entry.unwrap().path();
        std::os::unix::fs::symlink(&path, copy.path().join(path.file_name().unwrap())).unwrap();
    }
    let mut config: Value =
        serde_json::from_slice(&fs::read(model.join("config.json")).unwrap()).unwrap();
    change(&mut config);
    fs::remove_file(copy.path().join("config.json")).unwrap();
    fs::write(copy.path().join("config.json"), config.to_string()).unwrap();
    copy
}

pub(crate) fn all_ops(config: &mut Value) {
    let example = workspace().join("examples/kernel-config/all-ops.json");
    let example: Value = serde_json::from_slice(&fs::read(example).unwrap()).unwrap();
    config["kernel_config"] = example["kernel_config"].clone();
}
