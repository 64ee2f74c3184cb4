//! `variants`: every build, and why it fits or not.

use std::process::ExitCode;

use clap::Args;
use kernel_spec::variant::Decision;
use serde::Serialize;

use super::Context;
use crate::failure::Failure;
use crate::shared::parse_reference;

/// Shows every build of a kernel in order of preference: those that fit this machine, the first of
/// which is the one to be used, then the others with the reason. Nothing of it is downloaded.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  kernel-cli variants org/name
  kernel-cli variants org/name@v1 --backend tpu
  kernel-cli variants ./kernel --system machine.json")]
pub(crate) struct Arguments {
    /// The kernel
    #[arg(value_name = "REF|PATH")]
    reference: String,
}

#[derive(Serialize)]
struct Report {
    r#ref: String,
    version: Option<u64>,
    commit: Option<String>,
    accepted: Vec<String>,
    rejected: Vec<Rejected>,
    unparsable: Vec<Unparsable>,
}

#[derive(Serialize)]
struct Rejected {
    variant: String,
    reason: String,
}

#[derive(Serialize)]
struct Unparsable {
    name: String,
    reason: String,
}

pub(crate) fn run(arguments: &Arguments, context: &Context<'_>) -> Result<ExitCode, Failure> {
    let output = context.output;
    let registry = context.shared.registry(output)?;
    let reference = parse_reference(&arguments.reference)?;
    let builds = registry.builds(&reference, registry.system())?;
    let resolution = builds.resolution;
    let reason = |decision: &Decision| decision.rejection.clone().unwrap_or_default();
    if output.json {
        output.json(&Report {
            r#ref: reference.to_string(),
            version: builds.version,
            commit: builds.commit.map(|commit| commit.to_string()),
            accepted: resolution
                .accepted
                .iter()
                .map(|one| one.name.clone())
                .collect(),
            rejected: resolution
                .rejected
                .iter()
                .map(|one| Rejected {
                    variant: one.name.clone(),
                    reason: reason(one),
                })
                .collect(),
            unparsable: resolution
                .unparsable
                .into_iter()
                .map(|(name, reason)| Unparsable { name, reason })
                .collect(),
        })?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(version) = builds.version {
        output.note(format!("builds of version {version}"));
    }
    for (index, decision) in resolution.accepted.iter().enumerate() {
        let preferred = if index == 0 { ", preferred" } else { "" };
        output.line(format!("{}: fits{preferred}", decision.name))?;
    }
    for decision in &resolution.rejected {
        output.line(format!("{}: {}", decision.name, reason(decision)))?;
    }
    for (name, reason) in &resolution.unparsable {
        output.line(format!("{name}: not a build: {reason}"))?;
    }
    Ok(ExitCode::SUCCESS)
}
