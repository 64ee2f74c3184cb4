//! Help, version, and calls that are wrong.

use crate::support::Place;

#[test]
fn help_names_every_command() {
    Place::alone().check("help", "-h");
}

#[test]
fn the_version_is_printed() {
    let output = Place::alone().run("--version");
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        concat!("kernel-cli ", env!("CARGO_PKG_VERSION"), "\n")
    );
}

#[test]
fn wrong_calls_end_with_2() {
    let place = Place::alone();
    place.check_both("unknown_flag", "fetch --bogus");
    place.check_both("bad_reference", "fetch relu");
    place.check_both(
        "bad_backend",
        "variants hub-kernels/rms-norm --backend cuda",
    );
    place.check_both("bad_op", "list --op RMSNrom");
    place.check_both("nothing_to_fetch", "fetch");
}

#[test]
fn completions_know_the_commands() {
    let output = Place::alone().run("completions bash");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("variants"), "{text}");
}

#[test]
fn the_doctor_says_what_is_missing() {
    let output = Place::alone().run("doctor --json");
    assert_eq!(output.status.code(), Some(1));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let checks = report["checks"].as_array().unwrap();
    let names: Vec<_> = checks
        .iter()
        .map(|check| check["name"].as_str().unwrap())
        .collect();
    for name in [
        "python",
        "torch",
        "jax",
        "libtpu",
        "tpu",
        "runtime library",
        "cache",
    ] {
        assert!(names.contains(&name), "{names:?}");
    }
    let torch = checks
        .iter()
        .find(|check| check["name"] == "torch")
        .unwrap();
    assert_eq!(torch["ok"], false);
    assert!(torch["hint"].as_str().unwrap().contains("cargo xtask env"));
}
