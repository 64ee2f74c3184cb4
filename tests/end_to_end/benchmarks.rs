//! `bench ab` and `bench script`.

use std::fs;
use std::process::Command;

use serde_json::{Value, json};

use crate::support::*;

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

/// Each arm's answer through its own process is the answer through this one.
#[test]
fn arms_in_processes_of_their_own_are_compared_as_arms_of_one_process_are() {
    let op = [
        "--op", "rms_norm", "--shape", "R=8,H=64", "--shape", "R=3,H=40",
    ];
    let model = small_model();
    let layer = [
        "--model",
        model.to_str().unwrap(),
        "--layer",
        "1",
        "--prompt-tokens",
        "8",
    ];
    let kernel = "hub-kernels/rms-norm@v1:RMSNorm";
    let in_model = format!("rms_norm={kernel}");
    for (b, workload) in [(kernel, &op[..]), (&in_model, &layer[..])] {
        let common = ["bench", "ab", "default", b, "--budget", "0.2", "--json"];
        let together = json_of(&run(&[&common[..], workload].concat()));
        let apart = json_of(&run(&[&common[..], workload, &["--apart"]].concat()));
        for (record, processes) in [(&together, 1), (&apart, 3)] {
            assert_eq!(record["method"]["processes"], processes);
            assert_eq!(record["complete"], true);
            assert_eq!(record["samples"].as_array().unwrap().len(), 2);
        }
        for field in ["a", "b", "correctness"] {
            assert_eq!(together[field], apart[field]);
        }
        let row = &apart["samples"][0];
        assert_eq!(row["measurement"]["starts"].as_array().unwrap().len(), 5);
        assert!(row["ratio"]["low"].is_f64(), "{row}");
        assert_eq!(
            together["environment"]["versions"],
            apart["environment"]["versions"]
        );
    }
}

#[test]
fn what_fails_in_the_process_of_an_arm_is_told_as_in_this_one_with_the_arm() {
    let call = [
        "bench",
        "ab",
        "default",
        "org/none@v1",
        "--op",
        "rms_norm",
        "--json",
    ];
    let together = error_of(&run(&call));
    let apart = error_of(&run(&[&call[..], &["--apart"]].concat()));
    assert_eq!(
        (&together["kind"], &together["hint"]),
        (&apart["kind"], &apart["hint"])
    );
    let message = format!(
        "arm `org/none@v1`: {}",
        together["message"].as_str().unwrap()
    );
    assert_eq!(apart["message"], message);
}

#[test]
fn a_process_of_an_arm_that_dies_is_named_and_no_process_stays() {
    let child = Command::new(env!("CARGO_BIN_EXE_kernel-cli"))
        .args(["bench", "ab", "default", "default", "--op", "rms_norm"])
        .args(["--budget", "600", "--apart", "--json"])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let path = format!("/proc/{0}/task/{0}/children", child.id());
    let arms = || -> Vec<String> {
        let found = fs::read_to_string(&path).unwrap();
        found.split_whitespace().map(str::to_owned).collect()
    };
    let mut pids = arms();
    while pids.len() < 3 {
        std::thread::sleep(std::time::Duration::from_millis(100));
        pids = arms();
    }
    let killed = Command::new("kill").args(["-KILL", &pids[1]]).status();
    assert!(killed.unwrap().success());
    let error = error_of(&child.wait_with_output().unwrap());
    assert_eq!(error["kind"], "arm-process");
    assert!(
        error["message"].as_str().unwrap().contains("SIGKILL"),
        "{error}"
    );
    for pid in &pids {
        let left = Command::new("kill").args(["-0", pid]).output();
        assert!(!left.unwrap().status.success(), "{pid}");
    }
}

#[test]
fn a_benchmark_arm_without_its_socket_says_what_it_is_for() {
    let error = error_of(&run(&["bench", "arm", "--json"]));
    assert_eq!(error["kind"], "arm-process");
    assert!(
        error["message"]
            .as_str()
            .unwrap()
            .contains("bench ab --apart"),
        "{error}"
    );
}
