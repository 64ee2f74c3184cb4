//! `generate`, with kernels and without, and the examples.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::support::*;

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
