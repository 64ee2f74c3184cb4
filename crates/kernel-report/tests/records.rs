//! Records on disk: what is written is what is read, and what is wrong is named.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod support;

use std::path::Path;

use kernel_report::record::{Comparison, Record};
use kernel_report::report::text;
use support::comparison;

fn parse(text: &str) -> Result<Record, String> {
    Record::parse(text, Path::new("r.json")).map_err(|error| error.to_string())
}

fn changed(change: impl Fn(&mut serde_json::Value)) -> String {
    let mut document = serde_json::to_value(comparison(&[("w", 1.0)], 1)).unwrap();
    change(&mut document);
    document.to_string()
}

#[test]
fn a_record_survives_the_way_through_a_file() {
    let record = comparison(&[("norm R=1", 0.9), ("norm R=512", 1.2)], 1);
    let text = serde_json::to_string_pretty(&record).unwrap();
    let Ok(Record::Comparison(read)) = parse(&text) else {
        panic!("not a record of ours");
    };
    assert_eq!(text::comparison(&read), text::comparison(&record));
    let times = |record: &Comparison| record.samples[1].measurement.clone().unwrap().b;
    let (written, found) = (times(&record), times(&read));
    assert_eq!(written.len(), found.len());
    // A decimal number is read to the last bit or one beside it.
    assert!(
        written
            .iter()
            .zip(&found)
            .all(|(one, other)| (one / other - 1.0).abs() < 1e-15)
    );
}

#[test]
fn what_is_wrong_with_a_file_is_named() {
    for (text, word) in [
        ("{".to_owned(), "not JSON"),
        ("[]".to_owned(), "neither a record"),
        (changed(|d| d["format"] = 2.into()), "format 2"),
        (
            changed(|d| d["samples"][0]["ratio"] = "fast".into()),
            "samples[0].ratio",
        ),
        (
            changed(|d| {
                d["samples"][0]["measurement"]["b"]
                    .as_array_mut()
                    .unwrap()
                    .pop();
            }),
            "399 of B",
        ),
    ] {
        let error = parse(&text).unwrap_err();
        assert!(
            error.contains("`r.json`") && error.contains(word),
            "{error}"
        );
    }
    let error = Record::read(Path::new("/nonexistent/r.json")).unwrap_err();
    assert!(error.to_string().contains("/nonexistent/r.json"));
}

#[test]
fn a_document_of_the_python_library_is_read() {
    // Written by `kernels benchmark` 0.17.2.
    let path = Path::new(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/data/kernels-benchmark.json"
    ));
    let Record::Peer(peer) = Record::read(path).unwrap() else {
        panic!("not a record of the Python library");
    };
    let first = &peer.results[0];
    assert_eq!(
        (first.workload.as_str(), first.verified),
        ("RMSNorm.decode_f32", Some(true))
    );
    assert_eq!(first.timing_results.iterations, 50);
    assert!(first.timing_results.min_ms <= first.timing_results.mean_ms);
}

#[test]
fn every_field_of_a_record_is_explained() {
    fn names(value: &serde_json::Value, found: &mut std::collections::BTreeSet<String>) {
        match value {
            // Names of packages are data.
            serde_json::Value::Object(fields) => {
                for (name, value) in fields.iter().filter(|(name, _)| *name != "torch") {
                    found.insert(name.clone());
                    names(value, found);
                }
            }
            serde_json::Value::Array(items) => items.iter().for_each(|item| names(item, found)),
            _ => {}
        }
    }
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../docs/benchmark-record.md"
    );
    let page = std::fs::read_to_string(path).unwrap();
    let mut found = std::collections::BTreeSet::new();
    names(
        &serde_json::to_value(comparison(&[("w", 1.0)], 1)).unwrap(),
        &mut found,
    );
    let missing: Vec<_> = found
        .iter()
        .filter(|name| !page.contains(&format!("`{name}`")))
        .collect();
    assert!(
        missing.is_empty(),
        "docs/benchmark-record.md does not explain {missing:?}"
    );
}

#[test]
fn a_record_whose_row_was_stopped_is_not_complete() {
    let mut record = comparison(&[("w", 1.0)], 1);
    assert!(record.complete);
    let mut rows = std::mem::take(&mut record.samples);
    if let Some(samples) = &mut rows[0].measurement {
        samples.cut_short = true;
    }
    assert!(!Comparison::new(support::about(), rows).complete);
}
