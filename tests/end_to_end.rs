//! The command, its runtime library, the index's kernels and a real model, all at once.
//!
//! The model directories are made by `cargo xtask model`; the runtime library is built beside the
//! command by `cargo build --workspace --all-targets`.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "helpers of tests may panic"
)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};

const QUESTION: &str = "What is the capital of France?";
const OPS: [&str; 5] = ["attention", "decode_attention", "mlp", "rms_norm", "rotary"];

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .unwrap()
        .to_path_buf()
}

/// SmolLM2-135M-Instruct.
fn model() -> PathBuf {
    let path = workspace().join("models/SmolLM2-135M-Instruct");
    assert!(
        path.join("config.json").exists(),
        "run `cargo xtask model` first"
    );
    path
}

/// A random Llama of two layers, head_dim 16, without a tokenizer.
fn small_model() -> PathBuf {
    workspace().join("crates/kernel-model/tests/golden/llama")
}

fn run(arguments: &[&str]) -> Output {
    run_in(&tempfile::tempdir().unwrap(), arguments, &[])
}

fn run_in(cache: &tempfile::TempDir, arguments: &[&str], variables: &[(&str, &str)]) -> Output {
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
fn json_of(output: &Output) -> Value {
    assert!(output.status.success(), "{}", describe(output));
    serde_json::from_slice(&output.stdout).expect("standard output is one JSON document")
}

/// The error of a run that has to fail with exit code 1.
fn error_of(output: &Output) -> Value {
    assert_eq!(output.status.code(), Some(1), "{}", describe(output));
    let value: Value = serde_json::from_slice(&output.stdout).expect("the error is JSON");
    value["error"].clone()
}

fn describe(output: &Output) -> String {
    format!(
        "{}\n{}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

/// A copy of a model directory with a changed config; the other files are links.
fn with_config(model: &Path, change: impl FnOnce(&mut Value)) -> tempfile::TempDir {
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

fn all_ops(config: &mut Value) {
    let example = workspace().join("examples/kernel-config/all-ops.json");
    let example: Value = serde_json::from_slice(&fs::read(example).unwrap()).unwrap();
    config["kernel_config"] = example["kernel_config"].clone();
}

#[test]
fn kernels_answer_as_the_default_ops_do() {
    let patched = with_config(&model(), all_ops);
    let ask = |rest: &[&str]| {
        let mut arguments = vec!["generate", "--model", patched.path().to_str().unwrap()];
        arguments.extend([
            "--chat",
            QUESTION,
            "--greedy",
            "--max-new-tokens",
            "16",
            "--json",
        ]);
        arguments.extend(rest);
        json_of(&run(&arguments))
    };
    let kernels = ask(&[]);
    let default = ask(&["--kernels", "off"]);

    assert!(
        kernels["text"].as_str().unwrap().contains("Paris"),
        "{kernels}"
    );
    assert_eq!(kernels["text"], default["text"]);
    let entries = kernels["kernels"].as_array().unwrap();
    assert_eq!(
        entries
            .iter()
            .map(|entry| entry["op"].as_str().unwrap())
            .collect::<Vec<_>>(),
        OPS
    );
    for entry in entries {
        assert_eq!(entry["replaced"], entry["total"], "{entry}");
        assert!(
            entry["repo"].as_str().unwrap().starts_with("hub-kernels/"),
            "{entry}"
        );
        assert_eq!(entry["commit"].as_str().unwrap().len(), 40, "{entry}");
    }
    for entry in default["kernels"].as_array().unwrap() {
        assert_eq!(
            (&entry["replaced"], &entry["implementation"]),
            (&json!(0), &json!("default"))
        );
    }
    assert!(kernels["compiles"].as_u64().unwrap() > 0 && default["compiles"] == 0);
}

#[test]
fn text_streams_to_standard_output_and_the_report_to_standard_error() {
    let model = model();
    let arguments = [
        "generate",
        "--model",
        model.to_str().unwrap(),
        "--chat",
        QUESTION,
    ];
    let output = run(&[&arguments[..], &["--greedy", "--max-new-tokens", "8"]].concat());
    assert!(output.status.success(), "{}", describe(&output));
    assert!(String::from_utf8_lossy(&output.stdout).contains("Paris"));
    let report = String::from_utf8_lossy(&output.stderr);
    assert!(OPS.iter().all(|op| report.contains(op)), "{report}");
}

#[test]
fn logits_of_rows_of_different_length_are_dumped() {
    let folder = tempfile::tempdir().unwrap();
    let dump = folder.path().join("logits.safetensors");
    let model = small_model();
    let answer = json_of(&run(&[
        "generate",
        "--model",
        model.to_str().unwrap(),
        "--prompt-ids",
        "5,6,7",
        "--prompt-ids",
        "9,8,7,6,5",
        "--greedy",
        "--ignore-eos",
        "--max-new-tokens",
        "4",
        "--dump-logits",
        dump.to_str().unwrap(),
        "--json",
    ]));
    assert_eq!(answer["prompt_tokens"], json!([3, 5]));
    assert_eq!(answer["tokens"].as_array().unwrap().len(), 2);
    let bytes = fs::read(&dump).unwrap();
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..8 + header]).unwrap();
    assert_eq!(header["prefill_logits"]["shape"], json!([2, 5, 256]));
    assert_eq!(header["decode_logits"]["shape"], json!([2, 3, 256]));
    assert_eq!(header["generated_ids"]["shape"], json!([2, 4]));
}

/// One error of `generate` on the small model with a changed config.
fn refused(change: impl FnOnce(&mut Value), rest: &[&str]) -> Value {
    let copy = with_config(&small_model(), change);
    let mut arguments = vec!["generate", "--model", copy.path().to_str().unwrap()];
    arguments.extend(["--prompt-ids", "1,2,3", "--max-new-tokens", "2", "--json"]);
    arguments.extend(rest);
    error_of(&run(&arguments))
}

#[test]
fn an_unknown_op_is_named_with_its_key() {
    let mapping = json!({"kernel_mapping": {"RMSNrm": "org/x@v1:RMSNorm"}});
    let error = refused(|config| config["kernel_config"] = mapping, &[]);
    let text = error.to_string();
    assert!(
        text.contains("RMSNrm") && text.contains("RMSNorm"),
        "{text}"
    );
}

#[test]
fn a_kernel_that_does_not_fit_is_a_line_of_the_report_or_an_error_as_asked() {
    let copy = with_config(&small_model(), |config| {
        config["kernel_config"] =
            json!({"kernel_mapping": {"attention": "hub-kernels/attention@v1:attention"}});
    });
    let model = copy.path().to_str().unwrap();
    let arguments = [
        "generate",
        "--model",
        model,
        "--prompt-ids",
        "1,2",
        "--max-new-tokens",
        "2",
        "--json",
    ];
    let answer = json_of(&run(&arguments));
    let attention = &answer["kernels"][0];
    assert_eq!(
        (&attention["op"], &attention["replaced"]),
        (&json!("attention"), &json!(0))
    );
    assert!(
        attention["reason"]
            .as_str()
            .unwrap()
            .contains("head dimension 16"),
        "{attention}"
    );

    let error = error_of(&run(&[&arguments[..], &["--fallback", "error"]].concat()));
    assert!(
        error["message"]
            .as_str()
            .unwrap()
            .contains("head dimension 16"),
        "{error}"
    );
    assert!(
        error["hint"].as_str().unwrap().contains("--fallback warn"),
        "{error}"
    );
}

#[test]
fn a_prompt_longer_than_the_context_is_refused_before_it_runs() {
    let ids = vec!["3"; 129].join(",");
    let model = small_model();
    let error = error_of(&run(&[
        "generate",
        "--model",
        model.to_str().unwrap(),
        "--prompt-ids",
        &ids,
        "--json",
    ]));
    assert_eq!(error["kind"], "prompt");
    assert!(
        error["message"].as_str().unwrap().contains("129 tokens"),
        "{error}"
    );
}

#[test]
fn a_truncated_weight_file_is_named() {
    let copy = with_config(&small_model(), |_| {});
    let file = copy.path().join("model.safetensors");
    let bytes = fs::read(&file).unwrap();
    fs::remove_file(&file).unwrap();
    fs::write(&file, &bytes[..bytes.len() - 100]).unwrap();
    let error = error_of(&run(&[
        "generate",
        "--model",
        copy.path().to_str().unwrap(),
        "--prompt-ids",
        "1",
        "--json",
    ]));
    assert!(
        error["message"]
            .as_str()
            .unwrap()
            .contains("model.safetensors"),
        "{error}"
    );
    assert!(
        error["hint"].as_str().unwrap().contains("truncated"),
        "{error}"
    );
}

#[test]
fn an_environment_that_is_not_there_is_a_reason_of_the_report() {
    let copy = with_config(&small_model(), |config| {
        config["kernel_config"] =
            json!({"kernel_mapping": {"RMSNorm": "hub-kernels/rms-norm@v1:RMSNorm"}});
    });
    let model = copy.path().to_str().unwrap();
    let arguments = [
        "generate",
        "--model",
        model,
        "--prompt-ids",
        "1,2",
        "--max-new-tokens",
        "2",
        "--json",
    ];
    let cache = tempfile::tempdir().unwrap();
    let variables = [("KERNEL_PYTHON_ENVIRONMENT", "/nonexistent/venv")];
    let answer = json_of(&run_in(&cache, &arguments, &variables));
    let norm = &answer["kernels"][3];
    assert_eq!(
        (&norm["op"], &norm["replaced"]),
        (&json!("rms_norm"), &json!(0))
    );
    assert!(
        norm["reason"]
            .as_str()
            .unwrap()
            .contains("/nonexistent/venv"),
        "{norm}"
    );
}

#[test]
fn an_op_is_compared_with_the_default_and_judged_by_an_interval() {
    let record = json_of(&run(&[
        "bench",
        "ab",
        "default",
        "hub-kernels/rms-norm@v1:RMSNorm",
        "--op",
        "rms_norm",
        "--shape",
        "R=64,H=576",
        "--budget",
        "0.5",
        "--json",
    ]));
    assert_eq!(
        (&record["correctness"]["ok"], &record["estimate"]),
        (&json!(true), &json!(false))
    );
    let ratio = &record["ratio"];
    assert!(ratio["low"].as_f64().unwrap() <= ratio["estimate"].as_f64().unwrap());
    assert!(ratio["estimate"].as_f64().unwrap() <= ratio["high"].as_f64().unwrap());
    let verdicts = ["faster", "slower", "no difference"];
    assert!(
        verdicts.contains(&record["verdict"].as_str().unwrap()),
        "{record}"
    );
    assert_eq!(record["samples"][0]["compiles_in_span"], 0);
}

#[test]
fn a_kernel_in_interpret_mode_is_compared_and_never_judged() {
    let kernel = fs::canonicalize("../../kernels-index/rms-norm").unwrap();
    let only_tpu = tempfile::tempdir().unwrap();
    let build = only_tpu.path().join("build");
    fs::create_dir(&build).unwrap();
    let copied = Command::new("cp")
        .arg("-r")
        .arg(kernel.join("build/torch-tpu"))
        .arg(&build)
        .status();
    assert!(copied.unwrap().success());
    let reference = format!("{}:RMSNorm", only_tpu.path().display());
    let arguments = format!(
        "bench ab default {reference} --op rms_norm --shape R=8,H=128 --budget 0.2 --interpret --json"
    );
    let arguments: Vec<&str> = arguments.split(' ').collect();
    let record = json_of(&run(&arguments));
    let row = &record["samples"][0];
    assert_eq!(
        (&row["functional"], &row["verdict"], &row["ratio"]),
        (&json!(true), &json!(null), &json!(null))
    );
    assert!(
        row["reason"].as_str().unwrap().contains("functional only"),
        "{row}"
    );
}

#[test]
fn the_script_that_a_kernel_ships_is_timed_against_its_reference() {
    let record = json_of(&run(&[
        "bench",
        "script",
        "../../kernels-index/rms-norm",
        "--budget",
        "0.2",
        "--json",
    ]));
    assert_eq!(
        (&record["level"], &record["correctness"]["ok"]),
        (&json!("script"), &json!(true))
    );
    let names: Vec<&str> = record["samples"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|row| row["workload"].as_str())
        .collect();
    assert!(names.contains(&"RMSNorm.decode_f32"), "{names:?}");
}

#[test]
fn a_layer_and_a_whole_model_are_compared_and_ctrl_c_keeps_what_was_measured() {
    let model = small_model();
    let model = model.to_str().unwrap();
    let common = [
        "--model",
        model,
        "--prompt-tokens",
        "8",
        "--new-tokens",
        "4",
        "--json",
    ];
    let layer = [
        &[
            "bench", "ab", "default", "default", "--layer", "1", "--budget", "0.2",
        ][..],
        &common,
    ]
    .concat();
    let record = json_of(&run(&layer));
    assert_eq!(
        (&record["level"], &record["complete"]),
        (&json!("layer"), &json!(true))
    );
    assert_eq!(record["samples"].as_array().unwrap().len(), 2);

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("record.json");
    let long = [
        &[
            "bench",
            "ab",
            "default",
            "default",
            "--budget",
            "600",
            "--output",
            path.to_str().unwrap(),
        ][..],
        &common,
    ]
    .concat();
    // Longer than loading and warm-up take, on a busy machine too, and less than the budget.
    for seconds in [5, 20, 40, 80] {
        let child = Command::new(env!("CARGO_BIN_EXE_kernel-cli"))
            .args(&long)
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(std::time::Duration::from_secs(seconds));
        let sent = Command::new("kill")
            .args(["-INT", &child.id().to_string()])
            .status();
        assert!(sent.unwrap().success());
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(130));
        if path.exists() {
            break;
        }
    }
    let record: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    assert_eq!(record["complete"], json!(false));
    let row = &record["samples"][0];
    assert_eq!(row["measurement"]["cut_short"], json!(true));
    assert!(
        row["measurement"]["a"].as_array().unwrap().len() >= 5,
        "{row}"
    );
}

#[test]
fn a_runtime_library_that_is_not_there_is_an_error_with_a_command() {
    let cache = tempfile::tempdir().unwrap();
    let model = small_model();
    let arguments = [
        "generate",
        "--model",
        model.to_str().unwrap(),
        "--prompt-ids",
        "1",
        "--json",
    ];
    let variables = [(
        "KERNEL_RUNTIME_LIBRARY",
        "/nonexistent/libkernel_runtime.so",
    )];
    let error = error_of(&run_in(&cache, &arguments, &variables));
    assert_eq!(error["kind"], "runtime-library");
    assert!(
        error["hint"].as_str().unwrap().contains("cargo build"),
        "{error}"
    );
}

/// Runs an example, which `cargo build --workspace --all-targets` makes.
fn example(name: &str, arguments: &[&str]) -> String {
    let folder = Path::new(env!("CARGO_BIN_EXE_kernel-cli"))
        .parent()
        .unwrap();
    let program = folder.join("examples").join(name);
    assert!(
        program.exists(),
        "build all targets first: there is no {}",
        program.display()
    );
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", describe(&output));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_examples_do_what_they_say() {
    let small = small_model();
    let counted = example("own_norm", &[small.to_str().unwrap()]);
    // Four forward passes with five norms each.
    assert!(counted.contains("with 20 calls of the norm"), "{counted}");
    let model = model();
    let answer = example("complete", &[model.to_str().unwrap(), QUESTION]);
    assert!(answer.contains("Paris"), "{answer}");
}
