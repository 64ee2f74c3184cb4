//! The answer of `check` for people: what was looked at, what is wrong, what it costs.

use std::fmt::Write as _;

use kernel_spec::protocol::check::{
    BuildEntry, CheckResponse, Finding, ParityEntry, Severity, TargetEntry,
};

use crate::output::{bytes, table};

/// The whole report.
pub(super) fn render(response: &CheckResponse, verbose: bool) -> String {
    let mut text = String::new();
    heading(response, &mut text);
    comparisons(response, &mut text);
    targets(response, &mut text);
    for finding in &response.findings {
        text += &describe(finding, verbose);
    }
    let errors = response
        .findings
        .iter()
        .filter(|finding| finding.severity == Severity::Error)
        .count();
    let _ = match errors {
        0 => writeln!(
            text,
            "\nok: nothing wrong was found ({:.0} s)",
            response.seconds
        ),
        1 => writeln!(text, "\nFAILED: 1 error ({:.0} s)", response.seconds),
        n => writeln!(text, "\nFAILED: {n} errors ({:.0} s)", response.seconds),
    };
    text
}

fn heading(response: &CheckResponse, text: &mut String) {
    let kernel = &response.kernel;
    let commit = kernel.commit.as_deref().unwrap_or("local");
    let commit = commit.get(..12).unwrap_or(commit);
    let _ = writeln!(
        text,
        "{} ({commit}, build {})",
        kernel.reference, kernel.variant
    );
    for op in &response.ops {
        let _ = writeln!(
            text,
            "  {}: {} {}({})",
            op.op,
            op.kind,
            op.symbol,
            op.parameters.join(", ")
        );
    }
}

/// One line for each op: how many comparisons, how many right, the largest deviations.
fn comparisons(response: &CheckResponse, text: &mut String) {
    if response.parity.is_empty() && response.races.is_empty() {
        return;
    }
    text.push('\n');
    for op in &response.ops {
        let of: Vec<&ParityEntry> = response
            .parity
            .iter()
            .filter(|entry| entry.op == op.op)
            .collect();
        if !of.is_empty() {
            let _ = writeln!(text, "{}", parity_line(&op.op, &of));
        }
        for race in response.races.iter().filter(|race| race.op == op.op) {
            let cores = if race.cores == 1 {
                "one core"
            } else {
                "two cores"
            };
            let outcome = match (race.simulated, race.found) {
                (_, Some(true)) => "RACES in the simulated memory of a TPU",
                (true, _) => "none in the simulated memory of a TPU",
                (false, Some(_)) => "no Pallas call to simulate",
                (false, None) => "could not be simulated",
            };
            let _ = writeln!(
                text,
                "races    {}: {outcome}, {cores} ({})",
                op.op, race.shape
            );
        }
    }
}

fn parity_line(op: &str, entries: &[&ParityEntry]) -> String {
    let right = entries.iter().filter(|entry| entry.ok).count();
    let mut line = if right == entries.len() {
        format!("parity   {op}: right on all {right} cases")
    } else {
        format!(
            "parity   {op}: WRONG on {} of {} cases",
            entries.len() - right,
            entries.len()
        )
    };
    let mut dtypes: Vec<&str> = entries.iter().map(|entry| entry.dtype.as_str()).collect();
    dtypes.sort_unstable();
    dtypes.dedup();
    for dtype in dtypes {
        let worst = |figure: fn(&ParityEntry) -> Option<f64>| {
            entries
                .iter()
                .filter(|entry| entry.dtype == dtype && entry.poison.is_none())
                .filter_map(|entry| figure(entry))
                .max_by(f64::total_cmp)
        };
        if let (Some(error), Some(default)) = (worst(|e| e.error), worst(|e| e.default_error)) {
            let _ = write!(
                line,
                "; {dtype} off by {error:.0e} (default op {default:.0e})"
            );
        }
    }
    if right == entries.len() && entries.iter().any(|entry| entry.poison.is_some()) {
        line += "; NaN and infinity stay where they belong";
    }
    line
}

fn targets(response: &CheckResponse, text: &mut String) {
    let mut seen: Vec<(&str, &str)> = Vec::new();
    for entry in &response.targets {
        if seen.contains(&(&entry.op, &entry.shape)) {
            continue;
        }
        seen.push((&entry.op, &entry.shape));
        let of: Vec<&TargetEntry> = response
            .targets
            .iter()
            .filter(|other| (&other.op, &other.shape) == (&entry.op, &entry.shape))
            .collect();
        let _ = writeln!(
            text,
            "\n{} {} {} (estimates)",
            entry.op, entry.shape, entry.dtype
        );
        text.push_str(&table(
            [
                "target",
                "builds",
                "cycles",
                "default",
                "ratio",
                "roofline",
                "bundles",
                "spills",
                "VMEM",
                "HBM scratch",
                "busiest units",
            ],
            of.iter().map(|entry| row(entry)),
        ));
        // Targets that have the same reason share a line.
        let mut reasons: Vec<(&str, Vec<&str>)> = Vec::new();
        for entry in of {
            if let (true, Some(reason)) = (entry.kernel.compiles, &entry.ratio_reason) {
                match reasons.iter_mut().find(|(other, _)| other == reason) {
                    Some((_, targets)) => targets.push(&entry.target),
                    None => reasons.push((reason, vec![&entry.target])),
                }
            }
        }
        for (reason, targets) in reasons {
            let _ = writeln!(text, "  no ratio on {}: {reason}", targets.join(", "));
        }
    }
    if !response.targets.is_empty() {
        text.push_str("  cycles are the compiler's own estimate; `<` marks a figure that the chip's peaks forbid\n");
    }
}

fn row(entry: &TargetEntry) -> [String; 11] {
    let roofline = &entry.roofline;
    let floor = roofline.arithmetic_cycles.max(roofline.memory_cycles);
    let kernel = &entry.kernel;
    let default = entry
        .baseline
        .as_ref()
        .map_or_else(|| "-".to_owned(), cycles);
    [
        entry.target.clone(),
        if kernel.compiles { "yes" } else { "NO" }.to_owned(),
        cycles(kernel),
        default,
        entry
            .ratio
            .map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}")),
        format!("{} {}", thousands(floor.ceil() as u64), roofline.bound),
        optional(kernel.bundles, thousands),
        optional(kernel.spills, thousands),
        optional(kernel.vmem_bytes, bytes),
        scratch(entry),
        busiest(kernel),
    ]
}

fn cycles(entry: &BuildEntry) -> String {
    match (
        entry.compiles,
        entry.estimated_cycles,
        entry.modelled_cycles,
    ) {
        (false, ..) => "-".to_owned(),
        (_, Some(cycles), _) => thousands(cycles),
        (_, None, Some(cycles)) => format!("<{}", thousands(cycles)),
        _ => "not modelled".to_owned(),
    }
}

/// Scratch of the kernel, and that of the default op where it differs.
fn scratch(entry: &TargetEntry) -> String {
    let own = optional(entry.kernel.temp_bytes, bytes);
    match entry
        .baseline
        .as_ref()
        .and_then(|baseline| baseline.temp_bytes)
    {
        Some(theirs) if entry.kernel.temp_bytes != Some(theirs) => {
            format!("{own} (default {})", bytes(theirs))
        }
        _ => own,
    }
}

fn busiest(entry: &BuildEntry) -> String {
    let mut units: Vec<(&String, &f64)> = entry.utilisation.iter().collect();
    units.sort_by(|one, other| other.1.total_cmp(one.1));
    let shown: Vec<String> = units
        .into_iter()
        .filter(|(_, share)| **share >= 0.005)
        .take(3)
        .map(|(name, share)| format!("{name} {:.0}%", share * 100.0))
        .collect();
    if shown.is_empty() {
        "-".to_owned()
    } else {
        shown.join(", ")
    }
}

fn optional(value: Option<u64>, show: impl Fn(u64) -> String) -> String {
    value.map_or_else(|| "-".to_owned(), show)
}

fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn describe(finding: &Finding, verbose: bool) -> String {
    let label = match finding.severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
        Severity::Note => "note",
    };
    let site: Vec<&str> = [&finding.op, &finding.target, &finding.shape, &finding.dtype]
        .into_iter()
        .flatten()
        .map(String::as_str)
        .collect();
    let mut text = format!("\n{label}[{}]: {}\n", finding.kind, finding.message);
    let mut line = |name: &str, value: &str| {
        let _ = writeln!(text, "  {name}: {value}");
    };
    if !site.is_empty() {
        line("at", &site.join(", "));
    }
    if let Some(place) = &finding.place {
        line("in", place);
    }
    if let Some(hint) = &finding.hint {
        line("hint", hint);
    }
    if let Some(detail) = finding.detail.as_ref().filter(|_| verbose) {
        for detail in detail.lines() {
            let _ = writeln!(text, "    {detail}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use kernel_spec::protocol::check::Roofline;

    use super::*;

    #[test]
    fn numbers_are_grouped_by_thousands() {
        for (number, text) in [
            (0, "0"),
            (999, "999"),
            (1_000, "1,000"),
            (1_234_567, "1,234,567"),
        ] {
            assert_eq!(thousands(number), text);
        }
    }

    #[test]
    fn a_figure_that_is_not_believed_is_marked() {
        let built = |estimated, modelled| BuildEntry {
            compiles: true,
            estimated_cycles: estimated,
            modelled_cycles: modelled,
            ..BuildEntry::default()
        };
        assert_eq!(cycles(&built(Some(1_500), Some(1_500))), "1,500");
        assert_eq!(cycles(&built(None, Some(700))), "<700");
        assert_eq!(cycles(&built(None, None)), "not modelled");
        assert_eq!(cycles(&BuildEntry::default()), "-");
    }

    #[test]
    fn the_report_ends_with_the_verdict_and_names_place_and_hint() {
        let finding = Finding {
            severity: Severity::Error,
            kind: "vmem".to_owned(),
            op: Some("attention".to_owned()),
            target: Some("v5e".to_owned()),
            shape: Some("B=1 T=8".to_owned()),
            dtype: Some("bfloat16".to_owned()),
            message: "too much".to_owned(),
            place: Some("_kernel.py:3: x".to_owned()),
            hint: Some("smaller blocks".to_owned()),
            detail: Some("Traceback".to_owned()),
        };
        let entry = TargetEntry {
            target: "v5e".to_owned(),
            op: "attention".to_owned(),
            shape: "B=1 T=8".to_owned(),
            roofline: Roofline {
                bound: "HBM".to_owned(),
                ..Roofline::default()
            },
            ..TargetEntry::default()
        };
        let response = CheckResponse {
            findings: vec![finding],
            targets: vec![entry],
            ..CheckResponse::default()
        };
        let text = render(&response, false);
        assert!(text.contains("error[vmem]: too much\n  at: attention, v5e, B=1 T=8, bfloat16\n  in: _kernel.py:3: x\n  hint: smaller blocks\n"), "{text}");
        assert!(text.ends_with("FAILED: 1 error (0 s)\n"), "{text}");
        assert!(!text.contains("Traceback"));
        assert!(render(&response, true).contains("Traceback"));
    }
}
