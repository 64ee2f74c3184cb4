//! The corpora of `tests/conformance` through the command: what `kernels` 0.17.2 does with the same
//! builds and metadata. Where we differ on purpose is in `docs/differences.md`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use serde_json::{Value, json};

use crate::support::Place;

/// Metadata that the Python library reads and we refuse; kernel-spec's tests have the reasons.
const REFUSED: [&str; 4] = [
    "digest-7.json",
    "kernel-depends-8.json",
    "kernel-depends-9.json",
    "positional-array.json",
];

fn corpus(name: &str) -> PathBuf {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/conformance");
    Path::new(root).join(name)
}

fn read(name: &str) -> Value {
    serde_json::from_slice(&fs::read(corpus(name)).unwrap()).unwrap()
}

fn report(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
        let text = String::from_utf8_lossy(&output.stderr);
        panic!("{error}: {text}")
    })
}

#[test]
fn builds_are_judged_as_by_the_python_library() {
    let place = Place::alone();
    for (number, case) in read("variants.json")["cases"]
        .as_array()
        .unwrap()
        .iter()
        .enumerate()
    {
        let name = case["name"].as_str().unwrap();
        let kernel = place.work().join(number.to_string());
        let mut canonical = BTreeMap::new();
        for variant in case["variants"].as_array().unwrap() {
            let variant = variant.as_str().unwrap();
            let rendered = case["canonical"][variant].as_str().unwrap_or(variant);
            canonical.insert(variant.to_owned(), rendered.to_owned());
            if !variant.is_empty() {
                fs::create_dir_all(kernel.join("build").join(variant)).unwrap();
            }
        }
        let mut system = case["system"].clone();
        system["backend"] = case["backend"].clone();
        let machine = place.work().join("machine.json");
        fs::write(&machine, system.to_string()).unwrap();
        let output = place
            .command_for(&machine, &["variants", kernel.to_str().unwrap(), "--json"])
            .output()
            .unwrap();
        assert!(output.status.success(), "{name}: {output:?}");
        let report = report(&output);
        let rendered = |name: &Value| canonical[name.as_str().unwrap()].clone();
        let accepted: Vec<_> = report["accepted"]
            .as_array()
            .unwrap()
            .iter()
            .map(rendered)
            .collect();
        let expected: Vec<_> = case["expected_order"]
            .as_array()
            .unwrap()
            .iter()
            .map(|name| name.as_str().unwrap().to_owned())
            .collect();
        let tie = accepted.iter().any(|name| name.starts_with("tvm-ffi"))
            && accepted.iter().any(|name| name.matches('-').count() == 1);
        if tie {
            // A tvm-ffi build and a Python build are of equal rank, and the Python library takes
            // them in any order.
            let set = |names: &[String]| names.iter().cloned().collect::<BTreeSet<_>>();
            assert_eq!(set(&accepted), set(&expected), "{name}");
        } else {
            assert_eq!(accepted, expected, "{name}");
        }
        let rejected: BTreeMap<_, _> = report["rejected"]
            .as_array()
            .unwrap()
            .iter()
            .map(|one| (rendered(&one["variant"]), one["reason"].clone()))
            .collect();
        assert_eq!(json!(rejected), case["rejected"], "{name}");
        let unparsable: BTreeSet<_> = report["unparsable"]
            .as_array()
            .unwrap()
            .iter()
            .map(|one| one["name"].as_str().unwrap())
            .collect();
        let expected = case["parse_errors"]
            .as_object()
            .unwrap()
            .keys()
            .map(String::as_str)
            // No folder can have no name.
            .filter(|name| !name.is_empty());
        assert_eq!(unparsable, expected.collect(), "{name}");
    }
}

#[test]
fn metadata_is_read_as_by_the_python_library() {
    let place = Place::alone();
    let kernel = place.work().join("kernel");
    fs::create_dir_all(&kernel).unwrap();
    for case in read("metadata/cases.json")["cases"].as_array().unwrap() {
        let file = case["file"].as_str().unwrap();
        let bytes = fs::read(corpus("metadata").join(file)).unwrap();
        fs::write(kernel.join("metadata.json"), bytes).unwrap();
        let output = place.run("info ./kernel --json");
        let report = report(&output);
        let readable = case["ok"].as_bool().unwrap() && !REFUSED.contains(&file);
        assert_eq!(
            output.status.code(),
            Some(i32::from(!readable)),
            "{file}: {report}"
        );
        if !readable {
            assert!(report["error"]["message"].is_string(), "{file}: {report}");
            continue;
        }
        let expected = &case["metadata"];
        for (key, recorded) in [
            ("id", "id"),
            ("name", "name"),
            ("version", "version"),
            ("license", "license"),
            ("kernels-minver", "kernels_minver"),
            ("upstream", "upstream"),
            ("source", "source"),
            ("python-depends", "python_depends"),
            ("kernel-depends", "kernel_depends"),
            ("digest", "digest"),
        ] {
            assert_eq!(report[key], expected[recorded], "{file}: {key}");
        }
        assert_eq!(
            report["backend"]["type"], expected["backend"]["type"],
            "{file}"
        );
    }
}

#[test]
fn the_digest_is_that_of_the_python_library() {
    let place = Place::alone();
    let case = read("digest.json");
    let build = place.work().join("kernel/build/torch-cpu");
    for (name, content) in case["files_base64"].as_object().unwrap() {
        let content = decode(content.as_str().unwrap());
        let path = build.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
    for algorithm in ["sha256", "sha512"] {
        let metadata = json!({
            "name": "digest", "id": "_digest", "version": 1, "license": "", "python-depends": [],
            "backend": {"type": "cpu"},
            "digest": {"algorithm": algorithm, "files": case["expected"][algorithm]},
        });
        fs::write(build.join("metadata.json"), metadata.to_string()).unwrap();
        let report = report(&place.run("verify ./kernel --json"));
        let result = &report["results"][0];
        // Bytecode is refused, and is the only thing that is wrong.
        let others: Vec<_> = result["violations"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|text| {
                let text = text.as_str().unwrap();
                !text.contains("bytecode") && !text.starts_with("signature: ")
            })
            .collect();
        assert!(others.is_empty(), "{algorithm}: {others:?}");
    }
}

fn decode(text: &str) -> Vec<u8> {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD
        .decode(text)
        .unwrap()
}
