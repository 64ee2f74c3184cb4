//! `info`: a kernel's metadata.

use std::process::ExitCode;

use clap::Args;
use kernel_registry::Resolved;
use kernel_spec::Metadata;
use serde::Serialize;

use super::Context;
use crate::failure::Failure;
use crate::shared::parse_reference;

/// Shows what a kernel says of itself: the metadata of the build that fits this machine, with the
/// commit and where it was found. Only the metadata is downloaded.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// The kernel
    #[arg(value_name = "REF|PATH")]
    reference: String,
}

#[derive(Serialize)]
struct Report<'a> {
    r#ref: String,
    repo: Option<String>,
    commit: Option<String>,
    variant: &'a str,
    origin: &'static str,
    trust: &'static str,
    signature: &'static str,
    #[serde(flatten)]
    metadata: &'a Metadata,
}

pub(crate) fn run(arguments: &Arguments, context: &Context<'_>) -> Result<ExitCode, Failure> {
    let output = context.output;
    let registry = context.shared.registry(output)?;
    let resolved = registry.resolve(&parse_reference(&arguments.reference)?)?;
    if output.json {
        output.json(&Report {
            r#ref: resolved.reference.to_string(),
            repo: resolved.repository.as_ref().map(ToString::to_string),
            commit: resolved.commit.as_ref().map(ToString::to_string),
            variant: &resolved.variant,
            origin: resolved.origin.as_str(),
            trust: resolved.trust.as_str(),
            signature: resolved.signature.as_str(),
            metadata: &resolved.metadata,
        })?;
        return Ok(ExitCode::SUCCESS);
    }
    for (name, value) in lines(&resolved) {
        output.line(format!("{name:<12} {value}"))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn lines(resolved: &Resolved) -> Vec<(&'static str, String)> {
    let metadata = &resolved.metadata;
    let optional = |name, value: Option<String>| value.map(|value| (name, value));
    let list = |values: Vec<String>| (!values.is_empty()).then(|| values.join(", "));
    let needs = metadata.kernel_depends.iter().map(ToString::to_string);
    let files = metadata.digest.as_ref().map(|digest| digest.files.len());
    let entries = [
        Some(("name", metadata.name.to_string())),
        optional(
            "repository",
            resolved.repository.as_ref().map(ToString::to_string),
        ),
        Some(("version", metadata.version.to_string())),
        optional("commit", resolved.commit.as_ref().map(ToString::to_string)),
        Some(("build", resolved.variant.clone())),
        Some(("backend", metadata.backend.kind.to_string())),
        optional("license", list(vec![metadata.license.clone()])),
        optional(
            "upstream",
            metadata.upstream.as_ref().map(ToString::to_string),
        ),
        optional("source", metadata.source.as_ref().map(ToString::to_string)),
        optional("packages", list(metadata.python_depends.clone())),
        optional("kernels", list(needs.collect())),
        optional("digest", files.map(|count| format!("over {count} files"))),
        Some(("trust", resolved.trust.to_string())),
        Some(("signature", resolved.signature.to_string())),
        Some(("found in", resolved.origin.to_string())),
    ];
    entries.into_iter().flatten().collect()
}
