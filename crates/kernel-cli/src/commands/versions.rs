//! `versions`: the versions of a kernel, and the build that each gives on this machine.

use std::process::ExitCode;

use clap::Args;
use serde::Serialize;

use super::Context;
use crate::failure::Failure;
use crate::shared::parse_reference;

/// Shows the versions of a kernel with their commits, oldest first, and the build that each gives
/// on this machine.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// The kernel
    #[arg(value_name = "REF")]
    reference: String,
}

#[derive(Serialize)]
struct Report {
    repo: String,
    versions: Vec<Version>,
}

#[derive(Serialize)]
#[expect(clippy::struct_field_names, reason = "the name in JSON")]
struct Version {
    version: u64,
    commit: String,
    variant: Option<String>,
}

pub(crate) fn run(arguments: &Arguments, context: &Context<'_>) -> Result<ExitCode, Failure> {
    let output = context.output;
    let reference = parse_reference(&arguments.reference)?;
    let repository = reference.repository().ok_or_else(|| {
        Failure::usage(format!("`{reference}` is a folder, which has no versions"))
    })?;
    let registry = context.shared.registry(output)?;
    let found = registry.versions(repository, registry.system())?;
    let versions: Vec<_> = found
        .into_iter()
        .map(|version| Version {
            version: version.version,
            commit: version.commit.to_string(),
            variant: version
                .resolution
                .as_ref()
                .and_then(|resolution| resolution.best())
                .map(|best| best.name.clone()),
        })
        .collect();
    if output.json {
        output.json(&Report {
            repo: repository.to_string(),
            versions,
        })?;
        return Ok(ExitCode::SUCCESS);
    }
    for version in &versions {
        let variant = version.variant.as_deref().unwrap_or("no build fits");
        output.line(format!("v{} {} {variant}", version.version, version.commit))?;
    }
    Ok(ExitCode::SUCCESS)
}
