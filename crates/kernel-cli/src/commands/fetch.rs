//! `fetch`: resolve, download, verify.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use kernel_registry::{InstalledKernel, Signature, Signer};
use serde::Serialize;

use super::Context;
use super::selection::Selection;
use crate::failure::Failure;
use crate::output::bytes;

/// Resolves kernels, downloads the build that fits this machine, and compares every byte with the
/// kernel's digest. Prints where each lies. Kernels that a kernel needs come with it.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  kernel-cli fetch hub-kernels/rms-norm@v1
  kernel-cli fetch --config ./model --backend tpu
  kernel-cli fetch --locked
  kernel-cli fetch org/name@v1 --all-variants")]
pub(crate) struct Arguments {
    #[command(flatten)]
    selection: Selection,
}

#[derive(Serialize)]
struct Report {
    kernels: Vec<Kernel>,
}

#[derive(Serialize)]
struct Kernel {
    r#ref: String,
    repo: Option<String>,
    version: Option<u64>,
    commit: Option<String>,
    variant: String,
    path: PathBuf,
    cached: bool,
    bytes: u64,
    origin: &'static str,
    trust: &'static str,
    signature: &'static str,
    signer: Option<Signer>,
}

impl From<&InstalledKernel> for Kernel {
    fn from(installed: &InstalledKernel) -> Self {
        let resolved = &installed.resolved;
        Self {
            r#ref: resolved.reference.to_string(),
            repo: resolved.repository.as_ref().map(ToString::to_string),
            version: resolved.version,
            commit: resolved.commit.as_ref().map(ToString::to_string),
            variant: resolved.variant.clone(),
            path: installed.path.clone(),
            cached: installed.cached,
            bytes: installed.bytes,
            origin: resolved.origin.as_str(),
            trust: resolved.trust.as_str(),
            signature: resolved.signature.as_str(),
            signer: resolved.signature.signer().cloned(),
        }
    }
}

pub(crate) fn run(arguments: &Arguments, context: &Context<'_>) -> Result<ExitCode, Failure> {
    let output = context.output;
    let installed = arguments.selection.install(context)?;
    if output.json {
        output.json(&Report {
            kernels: installed.iter().map(Kernel::from).collect(),
        })?;
        return Ok(ExitCode::SUCCESS);
    }
    for kernel in &installed {
        let name = kernel.resolved.name();
        let verb = if kernel.cached {
            "already here"
        } else {
            "fetched"
        };
        output.note(format!(
            "`{name}`: build `{}`, {}, {verb}, every byte checked; trust: {}, signature: {}",
            kernel.resolved.variant,
            bytes(kernel.bytes),
            kernel.resolved.trust,
            signature(&kernel.resolved.signature)
        ));
        output.line(kernel.path.display().to_string())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// A signature in words, with who made it.
fn signature(signature: &Signature) -> String {
    match signature.signer() {
        Some(signer) => format!("{signature}, by {signer}"),
        None => signature.to_string(),
    }
}
