//! From answers of the child process to findings: what is wrong, how bad, where, and what to do.

use kernel_bridge::check::{Account, Exception, Offered, ParityPart, RaceReport};
use kernel_spec::protocol::check::{Finding, Severity};

use super::hint::brief;

/// Where a finding belongs.
#[derive(Debug, Clone, Default)]
pub(super) struct Site {
    pub(super) op: Option<String>,
    pub(super) target: Option<String>,
    pub(super) shape: Option<String>,
    pub(super) dtype: Option<String>,
}

impl Site {
    pub(super) fn of(op: &impl ToString) -> Self {
        Self {
            op: Some(op.to_string()),
            ..Self::default()
        }
    }

    pub(super) fn at(mut self, shape: String, dtype: &str) -> Self {
        self.shape = Some(shape);
        self.dtype = Some(dtype.to_owned());
        self
    }

    pub(super) fn finding(
        &self,
        severity: Severity,
        kind: &str,
        message: impl Into<String>,
    ) -> Finding {
        Finding {
            severity,
            kind: kind.to_owned(),
            op: self.op.clone(),
            target: self.target.clone(),
            shape: self.shape.clone(),
            dtype: self.dtype.clone(),
            message: message.into(),
            place: None,
            hint: None,
            detail: None,
        }
    }
}

/// What an exception of the kernel's own code is.
pub(super) fn raised(site: &Site, kind: &str, exception: &Exception) -> Finding {
    Finding {
        place: exception.place.clone(),
        detail: Some(exception.traceback.clone()),
        ..site.finding(
            Severity::Error,
            kind,
            format!("{}: {}", exception.class, brief(&exception.message)),
        )
    }
}

/// What the end of a step's process is.
pub(super) fn ended(site: &Site, step: &str, how: &str, said: &str, limit_s: f64) -> Finding {
    let (kind, message, hint) = match how {
        "time limit" => (
            "time-limit",
            format!("{step} was not done after {limit_s:.0} s"),
            Some("raise `--time-limit`, or look for a loop that does not end"),
        ),
        "memory limit" => (
            "memory-limit",
            format!("{step} took more memory than a step may"),
            None,
        ),
        other => ("crash", format!("{step} ended its process ({other})"), None),
    };
    Finding {
        hint: hint.map(str::to_owned),
        detail: Some(said.to_owned()).filter(|said| !said.is_empty()),
        ..site.finding(Severity::Error, kind, message)
    }
}

/// What a signature says.
pub(super) fn signature(offered: &Offered) -> Vec<Finding> {
    let site = Site::of(&offered.op);
    let what = format!("{} `{}`", offered.kind, offered.symbol);
    let problems = offered.problems.iter().map(|problem| Finding {
        hint: problem.contains("static (annotated").then(|| {
            "annotate it as `jax.Array`; a static value that changes from call to call compiles each time"
                .to_owned()
        }),
        ..site.finding(Severity::Error, "signature", format!("{what}: {problem}"))
    });
    let notes = offered
        .notes
        .iter()
        .map(|note| site.finding(Severity::Note, "signature", format!("{what}: {note}")));
    problems.chain(notes).collect()
}

/// What one comparison says; nothing where the kernel is right.
pub(super) fn parity(site: &Site, part: &ParityPart) -> Vec<Finding> {
    let mut findings = Vec::new();
    let with = part
        .poison
        .as_ref()
        .map(|poison| format!("with {poison}, "))
        .unwrap_or_default();
    let explained = |finding: Finding| Finding {
        hint: part.explanation.clone(),
        ..finding
    };
    let layout = part
        .explanation
        .as_ref()
        .is_some_and(|text| text.contains("[B, T, H, D]"));
    if let Some(exception) = &part.failure {
        let kind = if layout { "layout" } else { "exception" };
        findings.push(explained(raised(site, kind, exception)));
    } else if let Some(form) = &part.form {
        let kind = if layout { "layout" } else { "wrong-form" };
        findings.push(explained(site.finding(
            Severity::Error,
            kind,
            format!("{with}the kernel {form}"),
        )));
    } else if !part.ok {
        let kind = match (layout, part.spread > 0) {
            (true, _) => "layout",
            (_, true) => "not-finite",
            _ => "wrong-result",
        };
        let message = if part.spread > 0 {
            format!(
                "{with}{} values of the result are NaN or infinite that must not be",
                part.spread
            )
        } else {
            format!(
                "{with}the result is off by {:.1e} of its largest value; the default op is off by {:.1e}, {:.0e} is allowed",
                part.error.unwrap_or(f64::NAN),
                part.default_error.unwrap_or(f64::NAN),
                part.tolerance.unwrap_or(f64::NAN),
            )
        };
        findings.push(explained(site.finding(Severity::Error, kind, message)));
    } else if part.lost > 0 {
        findings.push(site.finding(
            Severity::Warning,
            "hides-nan",
            format!(
                "{with}{} values of the result are finite where the default op's are not",
                part.lost
            ),
        ));
    }
    for input in &part.changed_inputs {
        findings.push(site.finding(
            Severity::Error,
            "changes-input",
            format!("the kernel writes to its input `{input}`"),
        ));
    }
    for warning in &part.truncated {
        findings.push(Finding {
            hint: Some(
                "JAX has 32 bits here: name 32-bit types, and keep indices below 2^31".to_owned(),
            ),
            ..site.finding(Severity::Warning, "64-bit", warning.clone())
        });
    }
    findings
}

/// What the simulated memory of a TPU says.
pub(super) fn races(
    site: &Site,
    cores: u32,
    report: &RaceReport,
    account: &Account,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    if report.found {
        let hint = if cores > 1 {
            "grid steps along a dimension that is declared parallel must not share what they write"
        } else {
            "wait for a DMA before its memory is used, and write each block of the result in one place"
        };
        findings.push(Finding {
            hint: Some(hint.to_owned()),
            detail: Some(account.printed.clone()).filter(|text| !text.is_empty()),
            ..site.finding(
                Severity::Error,
                "race",
                format!("accesses to memory race, with {cores} TensorCore(s) sharing the grid"),
            )
        });
    }
    if report.uninitialized > 0 {
        findings.push(Finding {
            hint: Some(
                "initialise scratch memory and accumulators in the first grid step".to_owned(),
            ),
            ..site.finding(
                Severity::Error,
                "uninitialized",
                format!(
                    "{} values of the result come from memory that nothing was written to",
                    report.uninitialized
                ),
            )
        });
    } else if report.simulated && !report.found && report.error > report.tolerance {
        findings.push(site.finding(
            Severity::Error,
            "wrong-result",
            format!(
                "in the simulated memory of a TPU the result is off by {:.1e}",
                report.error
            ),
        ));
    }
    findings
}

/// What hazards that were seen before compiling mean.
pub(super) fn hazard(site: &Site, name: &str) -> Finding {
    match name {
        "f32-matmul-rounded" => Finding {
            hint: Some(
                "pass `precision=lax.Precision.HIGHEST` where float32 is meant; the interpreter on a CPU does not round"
                    .to_owned(),
            ),
            ..site.finding(
                Severity::Warning,
                "f32-matmul-rounded",
                "a product of float32 matrices at default precision: the MXU rounds its factors to bfloat16",
            )
        },
        "64-bit" => Finding {
            hint: Some("TPUs emulate 64-bit types with two of 32 bits".to_owned()),
            ..site.finding(Severity::Warning, "64-bit", "the kernel computes in 64 bits")
        },
        other => site.finding(Severity::Warning, "hazard", other),
    }
}

/// What a step printed.
pub(super) fn printed(site: &Site, account: &Account) -> Option<Finding> {
    let text = account.printed.trim();
    (!text.is_empty()).then(|| Finding {
        hint: Some("remove it: a program's standard output belongs to its data".to_owned()),
        detail: Some(account.printed.clone()),
        ..site.finding(
            Severity::Warning,
            "prints",
            format!(
                "the kernel prints to standard output: `{}`",
                brief(text.lines().next().unwrap_or(text))
            ),
        )
    })
}
