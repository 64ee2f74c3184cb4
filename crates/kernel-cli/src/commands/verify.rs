//! `verify`: digests and signatures of what is on this machine.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use kernel_registry::verify::{DigestStatus, Verification};
use kernel_registry::{Signature, Signer};
use serde::Serialize;

use super::Context;
use crate::failure::Failure;
use crate::shared::parse_reference;

/// Compares every file of kernels on this machine with the digest in their metadata, checks the
/// signature over the metadata, and shows everything that is wrong. Nothing is downloaded. Of a repository, all builds in the cache are
/// checked; a path is a build, or a folder of builds.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Exits with 1 where a build must not be loaded, where its signature does not hold, or where it has no
signature that counts and --require-signed is given.

Examples:
  kernel-cli verify org/name@v1
  kernel-cli verify ./build/torch-tpu")]
pub(crate) struct Arguments {
    /// Kernels and folders
    #[arg(value_name = "REF|PATH", required = true)]
    references: Vec<String>,
}

#[derive(Serialize)]
struct Report {
    results: Vec<Checked>,
}

#[derive(Serialize)]
struct Checked {
    path: PathBuf,
    digest: &'static str,
    violations: Vec<String>,
    /// Whether there is a signature, and whether it counts: `verified`, `unsigned`, `unknown-signer`,
    /// `other-kernel`, `invalid`.
    signature: &'static str,
    signer: Option<Signer>,
    /// Why a signature does not count.
    signature_reason: Option<String>,
    ok: bool,
}

pub(crate) fn run(arguments: &Arguments, context: &Context<'_>) -> Result<ExitCode, Failure> {
    let (output, signed) = (context.output, context.shared.require_signed);
    let registry = context.shared.registry(output)?;
    let mut found = Vec::new();
    for text in &arguments.references {
        found.extend(registry.verify(&parse_reference(text)?)?);
    }
    let results: Vec<_> = found.iter().map(|one| checked(one, signed)).collect();
    let ok = results.iter().all(|result| result.ok);
    if output.json {
        output.json(&Report { results })?;
    } else {
        for result in &results {
            let word = if result.ok { "ok" } else { "FAILED" };
            output.line(format!(
                "{word} {} (digest {}, signature {})",
                result.path.display(),
                result.digest,
                result.signature
            ))?;
            if let Some(signer) = &result.signer {
                output.line(format!("  signed by {signer}"))?;
            }
            for violation in &result.violations {
                output.line(format!("  {violation}"))?;
            }
        }
    }
    Ok(ExitCode::from(u8::from(!ok)))
}

fn checked(found: &Verification, signed: bool) -> Checked {
    let signature = &found.signature;
    // One that is broken, or another kernel's, means that somebody changed something.
    let signed_enough = match signature {
        Signature::Verified(_) => true,
        Signature::Unsigned | Signature::UnknownSigner { .. } => !signed,
        _ => false,
    };
    // A file that must not be there is a deviation, even where the digest knows it.
    let digest = match found.digest {
        DigestStatus::Ok if !found.refused.is_empty() => DigestStatus::Mismatch,
        other => other,
    };
    let mut violations = found.violations.clone();
    violations.extend(found.refused.iter().cloned());
    match signature.reason() {
        Some(reason) => violations.push(format!("signature: {reason}")),
        None if !signed_enough => {
            violations.push("signature: there is none, and one is required".to_owned());
        }
        None => {}
    }
    Checked {
        path: found.path.clone(),
        digest: digest.as_str(),
        violations,
        signature: signature.as_str(),
        signer: signature.signer().cloned(),
        signature_reason: signature.reason().map(str::to_owned),
        ok: found.is_ok() && signed_enough,
    }
}
