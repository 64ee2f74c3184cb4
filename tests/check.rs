//! `kernel-cli check` on kernels that are right and on kernels that are wrong in a known way.
//!
//! Starting Python and the compiler takes seconds, so what CI runs is one kernel with a fault in each op,
//! one build that does not fit, and one that does. The rest is ignored: `cargo test --workspace --test
//! check -- --ignored`.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "helpers of tests may panic"
)]

use std::path::Path;
use std::process::Command;

use hub_fixture::{Build, KernelTree};
use serde_json::Value;

/// A kernel on disk with this source as its build for TPUs.
fn kernel(source: &'static str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let build = Build::new("torch-tpu").file("__init__.py", source);
    KernelTree::new("broken/sample")
        .build("v1", build)
        .write_branch("v1", folder.path())
        .unwrap();
    folder
}

/// The report, and whether the exit code says that all is well.
fn check(reference: &str, arguments: &[&str]) -> (Value, bool) {
    let output = Command::new(env!("CARGO_BIN_EXE_kernel-cli"))
        .args(["check", reference, "--json", "--offline"])
        .args(arguments)
        .env_remove("VIRTUAL_ENV")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    let report = serde_json::from_slice(&output.stdout).expect(&said);
    (report, output.status.success())
}

/// The finding of a kind about an op.
fn finding<'a>(report: &'a Value, op: &str, kind: &str) -> &'a Value {
    let all = report["findings"].as_array().unwrap();
    all.iter()
        .find(|finding| finding["op"] == op && finding["kind"] == kind)
        .unwrap_or_else(|| panic!("no `{kind}` of {op} in {all:#?}"))
}

fn text<'a>(finding: &'a Value, key: &str) -> &'a str {
    finding[key].as_str().unwrap_or_default()
}

#[test]
fn each_fault_of_a_kernel_gets_its_own_verdict() {
    let folder = kernel(include_str!("broken-kernels/faults.py"));
    let path = folder.path().to_str().unwrap();
    let (report, ok) = check(
        path,
        &[
            "--skip",
            "targets",
            "--target",
            "v5e",
            "--time-limit",
            "300",
        ],
    );
    assert!(!ok);
    assert_eq!(report["passed"], false);

    let layout = finding(&report, "attention", "layout");
    assert!(text(layout, "hint").contains("[B, T, H, D]"), "{layout}");
    let length = finding(&report, "decode_attention", "wrong-result");
    assert!(
        text(length, "hint").contains("one entry too many"),
        "{length}"
    );
    let raised = finding(&report, "rotary_pos_emb", "exception");
    assert!(
        text(raised, "message").contains("not written yet"),
        "{raised}"
    );
    assert!(text(raised, "place").contains("__init__.py:"), "{raised}");
    let gemma = finding(&report, "RMSNorm", "wrong-result");
    assert!(text(gemma, "hint").contains("1 + weight"), "{gemma}");
    let dtype = finding(&report, "RMSNorm", "dtype");
    assert!(
        text(dtype, "message").contains("does not take bfloat16"),
        "{dtype}"
    );
    assert_eq!(dtype["severity"], "warning");
    let race = finding(&report, "SiluAndMul", "race");
    assert!(text(race, "hint").contains("DMA"), "{race}");
    let prints = finding(&report, "SiLU", "prints");
    assert!(
        text(prints, "message").contains("hello from the kernel"),
        "{prints}"
    );
    let window = finding(&report, "attention", "signature");
    assert!(text(window, "message").contains("`window`"), "{window}");
}

#[test]
fn a_kernel_that_does_not_fit_gets_the_compilers_error_and_a_hint_beside_the_default_that_does() {
    let folder = kernel(include_str!("broken-kernels/vmem.py"));
    let path = folder.path().to_str().unwrap();
    let large = [
        "--op",
        "SiLU",
        "--skip",
        "parity,races",
        "--target",
        "v5e",
        "--shape",
        "R=2048,I=4096",
    ];
    let (report, ok) = check(path, &large);
    assert!(!ok);
    let vmem = finding(&report, "SiLU", "vmem");
    assert_eq!(vmem["target"], "v5e");
    assert!(text(vmem, "hint").contains("vmem_limit_bytes"), "{vmem}");
    let target = &report["targets"][0];
    assert_eq!(
        (&target["compiles"], &target["baseline"]["compiles"]),
        (&false.into(), &true.into())
    );
    assert!(target["ratio"].is_null());
}

#[test]
fn a_kernel_of_the_index_passes_and_its_figures_lie_above_the_roofline() {
    let arguments = [
        "--skip",
        "parity,races",
        "--target",
        "v5e",
        "--shape",
        "R=512,H=4096",
    ];
    let (report, ok) = check("hub-kernels/rms-norm@v1:RMSNorm", &arguments);
    assert!(ok, "{:#}", report["findings"]);
    let target = &report["targets"][0];
    let cycles = target["estimated_cycles"].as_f64().unwrap();
    let floor = target["roofline"]["memory_cycles"].as_f64().unwrap();
    assert!(
        cycles >= floor && cycles < 3.0 * floor,
        "{cycles} cycles, {floor} at least"
    );
    assert_eq!(target["method"], "static profile");
    assert!(target["bundles"].as_u64().unwrap() > 0);
    assert!(target["vmem_bytes"].as_u64().unwrap() > 0);
    assert!(target["utilisation"]["VALU"].as_f64().unwrap() > 0.0);
    assert_eq!(report["estimate"], true);
}

#[test]
#[ignore = "waits for time limits"]
fn a_compile_that_never_ends_and_one_that_aborts_are_reported_and_end_nothing() {
    let folder = kernel(include_str!("broken-kernels/stuck.py"));
    let path = folder.path().to_str().unwrap();
    let (report, ok) = check(path, &["--target", "v5e,v4", "--time-limit", "20"]);
    assert!(!ok);
    let stuck = finding(&report, "SiLU", "time-limit");
    assert!(text(stuck, "message").contains("20 s"), "{stuck}");
    let aborted = finding(&report, "SiluAndMul", "crash");
    assert!(text(aborted, "message").contains("signal 6"), "{aborted}");
    let compiler = finding(&report, "SiluAndMul", "compiler-abort");
    assert!(text(compiler, "target").contains("v4"), "{compiler}");
}

#[test]
#[ignore = "minutes: every kernel of the index on every TPU generation"]
fn every_kernel_of_the_index_passes_on_every_generation() {
    for name in [
        "attention",
        "decode-attention",
        "rms-norm",
        "rotary",
        "swiglu-mlp",
    ] {
        let (report, ok) = check(&format!("hub-kernels/{name}@v1"), &["--time-limit", "600"]);
        assert!(ok, "{name}: {:#}", report["findings"]);
        let targets = report["targets"].as_array().unwrap();
        assert!(
            targets.iter().all(|target| target["compiles"] == true),
            "{name}"
        );
    }
}

#[test]
fn a_call_that_makes_no_sense_names_the_option() {
    let folder = kernel(include_str!("broken-kernels/vmem.py"));
    let path = folder.path().to_str().unwrap();
    for (arguments, option) in [
        (["--target", "v9"], "--target"),
        (["--skip", "everything"], "--skip"),
        (["--time-limit", "0"], "--time-limit"),
    ] {
        let (report, ok) = check(path, &arguments);
        let message = report["error"]["message"].as_str().unwrap();
        assert!(!ok && message.contains(option), "{message}");
    }
    assert!(!Path::new("kernels.lock").exists());
}
