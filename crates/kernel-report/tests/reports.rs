//! What a reader sees: tables, changes between records, the gate, and the page.

mod support;

use kernel_report::Correctness;
use kernel_report::record::{ArmEstimate, Comparison, Estimate, Limits, Row};
use kernel_report::report::compare::{Basis, changes};
use kernel_report::report::gate::{Gate, Outcome};
use kernel_report::report::{html, text};
use kernel_report::statistics::Verdict;
use support::{AGREE, about, comparison, named, samples};

#[test]
fn a_table_shows_both_arms_their_distributions_and_the_verdict() {
    let table = text::comparison(&comparison(&[("norm R=1", 0.5), ("norm R=2", 1.0)], 1));
    for words in [
        "A: default",
        "B: org/norm@v1:RMSNorm, commit 0123456789ab",
        "build torch-cpu, replaced: rms_norm (61 of 61",
        "0.501 [0.499, 0.502]",
        "faster",
        "no difference",
        "far out",
        "of the limit (200.0 us)",
        "all rows: B / A 0.7",
    ] {
        assert!(table.contains(words), "{words}:\n{table}");
    }
    assert!(table.contains('█'), "{table}");
}

#[test]
fn a_wrong_kernel_an_interpreted_one_and_one_that_compiled_get_no_ratio() {
    let wrong = Correctness { ok: false, ..AGREE };
    let mut interpreted = Row::new("interpreted".into(), AGREE);
    interpreted.functional = true;
    let rows = vec![
        Row::new("wrong".into(), wrong).untimed("the arms do not agree"),
        interpreted.timed(samples(1e-3, 0.1, 1), 0, 1),
        Row::new("compiled".into(), AGREE).timed(samples(1e-3, 0.1, 1), 2, 1),
    ];
    let record = Comparison::new(about(), rows);
    assert!(
        record
            .samples
            .iter()
            .all(|row| row.ratio.is_none() && row.verdict.is_none())
    );
    assert_eq!((record.ratio, record.verdict), (None, None));
    let reasons: Vec<_> = record
        .samples
        .iter()
        .filter_map(|row| row.reason.as_deref())
        .collect();
    assert!(reasons[1].contains("functional only"), "{reasons:?}");
    assert!(reasons[2].contains("2 compiles"), "{reasons:?}");
    assert!(!text::comparison(&record).contains("faster"));
}

#[test]
fn before_and_after_are_compared_through_the_same_a() {
    // The machine was half as fast the second time, and B 10% faster against A.
    let before = comparison(&[("w", 1.0), ("only before", 1.0)], 1);
    let row = Row::new("w".into(), AGREE).timed(samples(2e-3, 0.9, 5), 0, 5);
    let after = Comparison::new(about(), vec![row]);
    let found = changes(&[named("before", before), named("after", after)], 0.95);
    assert_eq!(found.len(), 1);
    assert_eq!(
        (found[0].basis, found[0].verdict),
        (Basis::AgainstTheSameA, Verdict::Faster)
    );
    assert!(
        (found[0].ratio.estimate - 0.9).abs() < 0.02,
        "{:?}",
        found[0]
    );
}

#[test]
fn another_a_and_another_machine_are_said() {
    let before = comparison(&[("w", 1.0)], 1);
    let mut after = comparison(&[("w", 1.0)], 2);
    "org/other@v1".clone_into(&mut after.a.name);
    let of = |after: &Comparison| {
        changes(
            &[named("x", before.clone()), named("y", after.clone())],
            0.95,
        )[0]
        .basis
    };
    assert_eq!(of(&after), Basis::Times);
    "Other CPU".clone_into(&mut after.environment.cpu);
    assert_eq!(of(&after), Basis::TimesOfTwoMachines);
}

#[test]
fn a_gate_fails_on_what_is_certain_and_names_what_it_cannot_rule_out() {
    let gate = |factor, limit| {
        let records = [named("r", comparison(&[("w", factor)], 3))];
        Gate::new(limit, &records, &[])
    };
    assert!(gate(1.0, 0.03).passed);
    let failed = gate(1.10, 0.03);
    assert!(!failed.passed);
    assert!(
        failed.findings()[0].contains("slower than the 3% allowed"),
        "{:?}",
        failed.findings()
    );
    let unsure = gate(1.03, 0.03);
    assert!(unsure.passed);
    assert_eq!(unsure.checks[0].outcome, Outcome::CannotTell);
    assert!(unsure.findings()[0].contains("cannot rule out"));
}

#[test]
fn a_gate_over_files_fails_on_a_row_that_became_wrong() {
    let before = comparison(&[("w", 1.0), ("v", 1.0)], 1);
    let mut rows = comparison(&[("v", 1.0)], 2).samples;
    let wrong = Correctness { ok: false, ..AGREE };
    rows.push(Row::new("w".into(), wrong).untimed("wrong"));
    let records = [
        named("before", before),
        named("after", Comparison::new(about(), rows)),
    ];
    let gate = Gate::new(0.5, &records, &changes(&records, 0.95));
    assert!(!gate.passed, "{gate:?}");
    // Nothing in common is nothing checked, which is no pass.
    let records = [
        named("x", comparison(&[("w", 1.0)], 1)),
        named("y", comparison(&[("z", 1.0)], 1)),
    ];
    assert!(!Gate::new(0.5, &records, &changes(&records, 0.95)).passed);
}

#[test]
fn estimates_are_labelled_and_get_no_verdict() {
    let mut row = Row::new("attention T=1024".into(), AGREE);
    row.estimate = Some(Estimate {
        target: "v5e".into(),
        method: "schedule of the TPU compiler".into(),
        a: ArmEstimate {
            seconds: Some(2e-4),
            ..ArmEstimate::default()
        },
        b: ArmEstimate {
            seconds: Some(1e-4),
            ..ArmEstimate::default()
        },
        limits: Some(Limits {
            flops_per_s: 197e12,
            bytes_per_s: 819e9,
            method: "maker's figures".into(),
        }),
    });
    let record = Comparison::new(about(), vec![row]);
    assert!(record.estimate && record.verdict.is_none());
    let table = text::comparison(&record);
    assert!(
        table.contains("estimate") && table.contains("v5e"),
        "{table}"
    );
    assert!(table.contains("0.500 (estimate)"), "{table}");
    let page = html::page(&[named("e", record)], &[], None).unwrap();
    assert!(page.contains("Nothing here was measured on the chip"));
}

#[test]
fn the_page_needs_nothing_else_and_says_in_words_what_charts_show() {
    let records = [
        named(
            "before.json",
            comparison(&[("norm <R=1>", 0.5), ("norm R=2", 1.0)], 1),
        ),
        named("after.json", comparison(&[("norm <R=1>", 0.6)], 9)),
    ];
    let changes = changes(&records, 0.95);
    let gate = Gate::new(0.03, &records, &changes);
    let page = html::page(&records, &changes, Some(&gate)).unwrap();
    // The one address is the name of the SVG namespace, which nothing fetches.
    let addresses: Vec<&str> = page
        .match_indices("http")
        .map(|(at, _)| &page[at..at + 26])
        .collect();
    assert!(
        addresses
            .iter()
            .all(|address| *address == "http://www.w3.org/2000/svg"),
        "{addresses:?}"
    );
    for forbidden in ["<script", "<link", "<img", "@import", "url("] {
        assert!(!page.contains(forbidden), "{forbidden}");
    }
    // What a file says is text, never markup.
    assert!(!page.contains("<R=1>") && page.contains("norm &lt;R=1&gt;"));
    let charts = page.matches("<svg ").count();
    assert!(charts >= 10, "{charts}");
    assert_eq!(page.matches("role=\"img\" aria-label=\"").count(), charts);
    // Each chart is drawn for a screen and for a phone.
    assert_eq!(page.matches("class=\"wide\"").count() * 2, charts);
    for section in [
        "Ratio by workload",
        "Distributions",
        "Roofline",
        "What was replaced",
        "Environment",
        "Method",
    ] {
        assert!(page.contains(section), "{section}");
    }
}

#[test]
fn the_page_of_a_record_of_the_python_library_has_its_figures() {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/data/kernels-benchmark.json"
    );
    let records = kernel_report::report::Named::read_all(&[path, path]).unwrap();
    let found = changes(&records, 0.95);
    assert!(found.iter().all(|change| change.basis == Basis::Means));
    assert!(
        found
            .iter()
            .all(|change| change.verdict == Verdict::NoDifference)
    );
    let page = html::page(&records, &found, None).unwrap();
    assert!(page.contains("RMSNorm.decode_f32") && page.contains("keeps no samples"));
}
