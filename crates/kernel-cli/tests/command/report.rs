//! `bench report`, on records that `bench ab` and `kernels benchmark` really wrote.

use crate::support::Place;

const BEFORE: &str = include_str!("../data/before.json");
const AFTER: &str = include_str!("../data/after.json");
const PEER: &str = include_str!("../../../kernel-report/tests/data/kernels-benchmark.json");

fn place() -> Place {
    let place = Place::alone();
    place.write("before.json", BEFORE);
    place.write("after.json", AFTER);
    place.write("peer.json", PEER);
    place
}

#[test]
fn a_record_is_a_table_and_two_are_a_change() {
    let place = place();
    place.check("report", "bench report before.json");
    place.check("report_change", "bench report before.json after.json");
    // Not a snapshot: the last digits of a logarithm are the machine's.
    let document = place
        .run("bench report before.json after.json --json")
        .stdout;
    let document: serde_json::Value = serde_json::from_slice(&document).unwrap();
    assert_eq!(document["format"], 1);
    assert_eq!(document["records"][0]["kind"], "bench-ab");
    assert_eq!(document["changes"][0]["basis"], "against_the_same_a");
    assert!(
        document["changes"][0]["ratio"]["estimate"]
            .as_f64()
            .unwrap()
            > 0.0
    );
}

#[test]
fn a_record_of_the_python_library_is_shown_and_compared_by_its_means() {
    let place = place();
    place.check("report_peer", "bench report peer.json peer.json");
}

#[test]
fn a_gate_exits_with_1_and_says_what_it_found() {
    let place = place();
    // B of the record is several times slower than A.
    place.check(
        "report_gate_failed",
        "bench report before.json --fail-if-slower 3%",
    );
    let output = place.run("bench report before.json --fail-if-slower 900%");
    assert!(output.status.success(), "{output:?}");
    place.check(
        "report_gate_wrong",
        "bench report before.json --fail-if-slower much",
    );
}

#[test]
fn what_is_no_record_is_named() {
    let place = place();
    place.write("other.json", "{\"a\": 1}");
    place.write("broken.json", "{");
    place.check_both("report_missing", "bench report missing.json");
    place.check("report_other", "bench report before.json other.json");
    place.check("report_broken", "bench report broken.json");
}

#[test]
fn a_page_is_one_file_that_needs_no_other() {
    let place = place();
    place.run_well("bench report before.json after.json --html page.html");
    let page = std::fs::read_to_string(place.work().join("page.html")).unwrap();
    assert!(page.starts_with("<!DOCTYPE html>") && !page.contains("<script"));
    assert!(page.contains("Ratio by workload") && page.contains("Environment"));
    let output = place.run("bench report before.json --html /nonexistent/page.html");
    assert_eq!(output.status.code(), Some(1));
}
