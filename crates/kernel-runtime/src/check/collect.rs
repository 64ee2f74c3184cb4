//! Gathers the answers of a check and makes its response of them.

use std::collections::HashMap;

use kernel_bench::workload::OpShape;
use kernel_bridge::check::chip::Target;
use kernel_bridge::check::estimate::ratio;
use kernel_bridge::check::{Account, Answer, BuildArm, Case, Job, Offered, ParityPart, RaceReport};
use kernel_spec::protocol::check::{
    BuildEntry, CheckResponse, Finding, ParityEntry, RaceEntry, Severity, TargetEntry,
};

use super::builds::{self, Builder, Outcome, Row};
use super::findings::{self, Site};
use super::plan;
use super::runner::Handler;
use crate::failure::RuntimeError;

/// One op that is checked.
#[derive(Debug)]
pub(super) struct Subject {
    pub(super) offered: Offered,
    /// Where it is compiled.
    pub(super) shapes: Vec<OpShape>,
    /// In which it is compared.
    pub(super) dtypes: Vec<String>,
    /// Whether somebody says that it takes these dtypes: the caller, or the index.
    pub(super) promised: bool,
    /// In which it is compiled.
    pub(super) built_in: String,
}

impl Subject {
    /// The cases that it is compared on.
    pub(super) fn cases(&self) -> Vec<Case> {
        let windows = self.offered.parameters.iter().any(|name| name == "window");
        plan::cases(self.offered.op, &self.shapes, &self.dtypes, windows)
    }

    /// The sizes of its race check.
    pub(super) fn race_sizes(&self) -> plan::Sizes {
        plan::race_sizes(self.offered.op, &self.shapes[0])
    }
}

/// What a job of a check is about.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Key {
    /// Comparison of a subject.
    Parity(usize),
    /// Race check of a subject, with so many cores.
    Races(usize, u32),
    /// Build of a row.
    Build(usize, BuildArm),
}

/// The answers so far.
pub(super) struct Collector<'a> {
    subjects: &'a [Subject],
    /// One for each shape of each op on each target.
    pub(super) rows: Vec<Row>,
    limit_s: f64,
    builder: Builder,
    outcomes: HashMap<(usize, BuildArm), Outcome>,
    parts: Vec<(usize, ParityPart)>,
    races: Vec<RaceEntry>,
    findings: Vec<Finding>,
}

impl<'a> Collector<'a> {
    pub(super) fn new(subjects: &'a [Subject], targets: &[Target], limit_s: f64) -> Self {
        let mut rows = Vec::new();
        for subject in subjects {
            for shape in &subject.shapes {
                rows.extend(targets.iter().map(|target| Row {
                    op: subject.offered.op,
                    symbol: Some(subject.offered.symbol.clone()),
                    sizes: plan::sizes(shape),
                    dtype: subject.built_in.clone(),
                    target: *target,
                }));
            }
        }
        Self {
            subjects,
            rows,
            limit_s,
            builder: Builder::default(),
            outcomes: HashMap::new(),
            parts: Vec::new(),
            races: Vec::new(),
            findings: Vec::new(),
        }
    }

    fn site(&self, subject: usize) -> Site {
        Site::of(&self.subjects[subject].offered.op)
    }

    /// Notes what a step printed.
    fn printed(&mut self, site: &Site, account: &Account) {
        if let Some(finding) = findings::printed(site, account)
            && !self.findings.iter().any(|other| other.kind == finding.kind)
        {
            self.findings.push(finding);
        }
    }

    fn parity(&mut self, subject: usize, answer: Answer) {
        let site = self.site(subject);
        match answer {
            Answer::Part(value) => match serde_json::from_value(value) {
                Ok(part) => self.parts.push((subject, part)),
                Err(error) => self.internal(&site, &error),
            },
            Answer::Done(_, account) => self.printed(&site, &account),
            Answer::Raised(exception, _) => {
                self.findings
                    .push(findings::raised(&site, "exception", &exception));
            }
            Answer::Ended { how, said, .. } => {
                let done = self
                    .parts
                    .iter()
                    .filter(|(of, part)| *of == subject && part.poison.is_none());
                let cases = self.subjects[subject].cases();
                let site = match cases.get(done.count()) {
                    Some(case) => {
                        let shape = plan::describe(self.subjects[subject].offered.op, &case.sizes);
                        site.at(shape, &case.dtype)
                    }
                    None => site,
                };
                let finding = findings::ended(&site, "a run on the CPU", &how, &said, self.limit_s);
                self.findings.push(finding);
            }
        }
    }

    fn internal(&mut self, site: &Site, error: &serde_json::Error) {
        let message = format!("the child process answered something else: {error}");
        self.findings
            .push(site.finding(Severity::Error, "internal", message));
    }

    fn race(&mut self, subject: usize, cores: u32, answer: Answer) {
        let of = &self.subjects[subject];
        let shape = plan::describe(of.offered.op, &of.race_sizes());
        let site = self.site(subject).at(shape.clone(), &of.dtypes[0]);
        let mut entry = RaceEntry {
            op: of.offered.op.to_string(),
            shape,
            cores,
            simulated: false,
            found: None,
        };
        match answer {
            Answer::Part(_) => return,
            Answer::Done(value, account) => match serde_json::from_value::<RaceReport>(value) {
                Ok(report) => {
                    entry.simulated = report.simulated;
                    entry.found = Some(report.found);
                    self.findings
                        .extend(findings::races(&site, cores, &report, &account));
                }
                Err(error) => self.internal(&site, &error),
            },
            Answer::Raised(exception, _) => self.findings.push(Finding {
                severity: Severity::Warning,
                ..findings::raised(&site, "not-simulated", &exception)
            }),
            Answer::Ended { how, said, .. } => {
                let step = "the simulation of a TPU's memory";
                let finding = findings::ended(&site, step, &how, &said, self.limit_s);
                self.findings.push(Finding {
                    severity: Severity::Warning,
                    ..finding
                });
            }
        }
        self.races.push(entry);
    }

    /// Fills the response.
    pub(super) fn finish(mut self, response: &mut CheckResponse) -> Result<(), RuntimeError> {
        let wrong = self.judge_parity(response);
        // What a kernel that fails in plain interpretation does in the simulation says nothing new.
        self.findings
            .retain(|finding| finding.kind != "not-simulated" || !wrong.contains(&finding.op));
        for (number, row) in self.rows.iter().enumerate() {
            let site = Site {
                target: Some(row.target.to_string()),
                ..Site::of(&row.op).at(plan::describe(row.op, &row.sizes), &row.dtype)
            };
            let Some(outcome) = self.outcomes.get(&(number, BuildArm::Kernel)) else {
                continue;
            };
            let (floor, roofline) = builds::floor(row)?;
            let (kernel, ours) = builds::entry(outcome, &floor);
            let (baseline, theirs) = match self.outcomes.get(&(number, BuildArm::Default)) {
                Some(outcome) => {
                    let (entry, estimate) = builds::entry(outcome, &floor);
                    (Some(entry), Some(estimate))
                }
                None => (None, None),
            };
            let compared = match &theirs {
                Some(theirs) => ratio(theirs, &ours),
                None => Err("the default op was not built".to_owned()),
            };
            self.findings
                .extend(build_findings(&site, outcome, &kernel));
            response.targets.push(TargetEntry {
                target: row.target.to_string(),
                op: row.op.to_string(),
                shape: plan::describe(row.op, &row.sizes),
                dtype: row.dtype.clone(),
                kernel,
                baseline,
                ratio: compared.as_ref().ok().copied(),
                ratio_reason: compared.err(),
                roofline,
            });
        }
        response.races = self.races;
        response.findings.extend(merged(self.findings));
        Ok(())
    }

    /// Judges the comparisons; returns the ops in which the kernel raised something.
    fn judge_parity(&mut self, response: &mut CheckResponse) -> Vec<Option<String>> {
        let mut raised = Vec::new();
        for (number, subject) in self.subjects.iter().enumerate() {
            let cases = subject.cases();
            let parts: Vec<&ParityPart> = self
                .parts
                .iter()
                .filter(|(of, part)| *of == number && part.case < cases.len())
                .map(|(_, part)| part)
                .collect();
            let refused = refused_dtypes(subject, &cases, &parts);
            for dtype in &refused {
                let failure = parts
                    .iter()
                    .find(|part| cases[part.case].dtype == *dtype)
                    .and_then(|part| part.failure.as_ref());
                if let Some(failure) = failure {
                    let site = Site {
                        dtype: Some(dtype.clone()),
                        ..Site::of(&subject.offered.op)
                    };
                    let severity = if subject.promised {
                        Severity::Error
                    } else {
                        Severity::Warning
                    };
                    let finding = findings::raised(&site, "dtype", failure);
                    self.findings.push(Finding {
                        severity,
                        message: format!("the kernel does not take {dtype}: {}", finding.message),
                        ..finding
                    });
                }
            }
            let plainly_wrong = parts.iter().any(|part| part.poison.is_none() && !part.ok);
            for part in parts {
                let case = &cases[part.case];
                let sizes = plan::describe(subject.offered.op, &case.sizes);
                let shape = match case.window {
                    Some(window) => format!("{sizes} window={window}"),
                    None => sizes,
                };
                if !refused.contains(&case.dtype) {
                    let site = Site::of(&subject.offered.op).at(shape.clone(), &case.dtype);
                    if part.failure.is_some() {
                        raised.push(site.op.clone());
                    }
                    // A kernel that is wrong on plain numbers is wrong on NaN, too.
                    if part.poison.is_none() || !plainly_wrong {
                        self.findings.extend(findings::parity(&site, part));
                    }
                }
                response.parity.push(ParityEntry {
                    op: subject.offered.op.to_string(),
                    shape,
                    dtype: case.dtype.clone(),
                    poison: part.poison.clone(),
                    ok: part.ok,
                    error: part.error,
                    default_error: part.default_error,
                    tolerance: part.tolerance,
                    interpreted: part.interpreted,
                });
            }
        }
        raised
    }
}

/// Dtypes in which every case raised an exception while another dtype gave a result.
fn refused_dtypes(subject: &Subject, cases: &[Case], parts: &[&ParityPart]) -> Vec<String> {
    let all_raise = |dtype: &String| {
        let mut of = parts
            .iter()
            .filter(|part| cases[part.case].dtype == *dtype)
            .peekable();
        of.peek().is_some() && of.all(|part| part.failure.is_some())
    };
    let refused: Vec<String> = subject
        .dtypes
        .iter()
        .filter(|d| all_raise(d))
        .cloned()
        .collect();
    if refused.len() == subject.dtypes.len() {
        return Vec::new();
    }
    refused
}

fn build_findings(site: &Site, outcome: &Outcome, entry: &BuildEntry) -> Vec<Finding> {
    match outcome {
        Outcome::Failed {
            diagnosis,
            message,
            place,
            detail,
            ..
        } => vec![Finding {
            place: place.clone(),
            hint: diagnosis.hint.clone(),
            detail: Some(detail.clone()).filter(|text| !text.is_empty()),
            ..site.finding(Severity::Error, diagnosis.kind, message.clone())
        }],
        Outcome::Built { build, .. } => {
            let mut found: Vec<Finding> = build
                .launches
                .iter()
                .flat_map(|launch| &launch.hazards)
                .map(|name| Finding {
                    target: None,
                    ..findings::hazard(site, name)
                })
                .collect();
            if build.launches.is_empty() {
                found.push(Finding {
                    target: None,
                    ..site.finding(
                        Severity::Note,
                        "no-jax",
                        "the kernel launches no JAX function, so there is nothing for the compiler for TPUs",
                    )
                });
            } else if !entry.torch_ops.is_empty() {
                found.push(Finding {
                    target: None,
                    ..site.finding(
                        Severity::Note,
                        "torch-ops",
                        format!(
                            "torch ops run around the JAX functions, in no figure: {}",
                            entry.torch_ops.join(", ")
                        ),
                    )
                });
            }
            found
        }
    }
}

/// Findings that say the same once, with the number of places.
fn merged(findings: Vec<Finding>) -> Vec<Finding> {
    let mut merged: Vec<(Finding, usize)> = Vec::new();
    for finding in findings {
        let same = |other: &Finding| {
            other.severity == finding.severity
                && other.kind == finding.kind
                && other.op == finding.op
                && other.hint == finding.hint
                && other.place == finding.place
                && other.target.is_some() == finding.target.is_some()
                && (finding.target.is_none() || other.message == finding.message)
        };
        match merged.iter_mut().find(|(other, _)| same(other)) {
            Some((first, count)) => {
                *count += 1;
                if let (Some(all), Some(target)) = (&mut first.target, &finding.target)
                    && !all.split(", ").any(|name| name == target)
                {
                    *all = format!("{all}, {target}");
                }
            }
            None => merged.push((finding, 1)),
        }
    }
    merged
        .into_iter()
        .map(|(finding, count)| match count {
            1 => finding,
            _ if finding.target.is_some() => finding,
            count => Finding {
                message: format!("{} (and in {} more)", finding.message, count - 1),
                ..finding
            },
        })
        .collect()
}

impl Handler for Collector<'_> {
    type Key = Key;

    fn prepare(&mut self, key: &Key, job: &mut Job) {
        if let Key::Build(number, arm) = key {
            self.builder
                .prepare(*number, &self.rows[*number], *arm, job);
        }
    }

    fn answer(&mut self, key: &Key, answer: Answer) -> Vec<(Key, Job)> {
        match key {
            Key::Parity(subject) => self.parity(*subject, answer),
            Key::Races(subject, cores) => self.race(*subject, *cores, answer),
            Key::Build(number, arm) => {
                let row = &self.rows[*number];
                match self.builder.answer(*number, row, *arm, answer) {
                    Ok(Some(outcome)) => {
                        self.outcomes.insert((*number, *arm), outcome);
                    }
                    Ok(None) => {}
                    Err(again) => return vec![(key.clone(), *again)],
                }
            }
        }
        Vec::new()
    }
}
