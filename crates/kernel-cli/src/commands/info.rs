//! `info`: a kernel's metadata.

use std::process::ExitCode;

use clap::Args;
use kernel_registry::{Description, Distrust, Signer};
use kernel_spec::Metadata;
use serde::Serialize;

use super::Context;
use crate::failure::Failure;
use crate::shared::parse_reference;

/// Shows what a kernel says of itself: the metadata of the build that fits this machine, with the
/// commit and where it was found. Only metadata and signature are downloaded, so that kernels of
/// publishers who are not trusted can be looked at.
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
    /// Why it is not trusted.
    trust_reason: Option<&'static str>,
    signature: &'static str,
    signer: Option<&'a Signer>,
    #[serde(flatten)]
    metadata: &'a Metadata,
}

pub(crate) fn run(arguments: &Arguments, context: &Context<'_>) -> Result<ExitCode, Failure> {
    let output = context.output;
    let registry = context.shared.registry(output)?;
    let kernel = registry.describe(&parse_reference(&arguments.reference)?)?;
    if output.json {
        output.json(&Report {
            r#ref: kernel.reference.to_string(),
            repo: kernel.repository.as_ref().map(ToString::to_string),
            commit: kernel.commit.as_ref().map(ToString::to_string),
            variant: &kernel.variant,
            origin: kernel.origin.as_str(),
            trust: kernel
                .trust
                .as_ref()
                .map_or("untrusted", |trust| trust.as_str()),
            trust_reason: kernel.trust.as_ref().err().map(Distrust::as_str),
            signature: kernel.signature.as_str(),
            signer: kernel.signature.signer(),
            metadata: &kernel.metadata,
        })?;
        return Ok(ExitCode::SUCCESS);
    }
    for (name, value) in lines(&kernel) {
        output.line(format!("{name:<12} {value}"))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn lines(kernel: &Description) -> Vec<(&'static str, String)> {
    let metadata = &kernel.metadata;
    let optional = |name, value: Option<String>| value.map(|value| (name, value));
    let list = |values: Vec<String>| (!values.is_empty()).then(|| values.join(", "));
    let needs = metadata.kernel_depends.iter().map(ToString::to_string);
    let files = metadata.digest.as_ref().map(|digest| digest.files.len());
    let entries = [
        Some(("name", metadata.name.to_string())),
        optional(
            "repository",
            kernel.repository.as_ref().map(ToString::to_string),
        ),
        Some(("version", metadata.version.to_string())),
        optional("commit", kernel.commit.as_ref().map(ToString::to_string)),
        Some(("build", kernel.variant.clone())),
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
        Some(("trust", trust(kernel).to_owned())),
        Some(("signature", kernel.signature.to_string())),
        Some(("found in", kernel.origin.to_string())),
    ];
    entries.into_iter().flatten().collect()
}

/// Why it may run; or, behind `untrusted:`, why it may not.
fn trust(kernel: &Description) -> &'static str {
    match &kernel.trust {
        Ok(trust) => trust.as_str(),
        Err(Distrust::NotListed) => "untrusted: publisher is not listed",
        Err(Distrust::NoOrganisation) => "untrusted: no organisation",
        Err(Distrust::NotRemembered) => "untrusted: not asked while online",
        Err(_) => "untrusted: the Hub could not be asked",
    }
}
