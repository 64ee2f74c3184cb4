//! `vendor`: kernels in a folder, for machines without a network.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use kernel_registry::vendor::vendor;
use serde::Serialize;

use super::Context;
use super::selection::Selection;
use crate::failure::Failure;
use crate::output::bytes;

/// Fetches kernels as `fetch` does and copies what was verified to DIR/ORG/NAME/build/VARIANT.
/// There they are found with `--vendor DIR`, or by Python with LOCAL_KERNELS=ORG/NAME=DIR/ORG/NAME.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  kernel-cli vendor ./kernels org/name@v1
  kernel-cli vendor ./kernels --config ./model --backend tpu
  kernel-cli fetch org/name@v1 --vendor ./kernels --offline")]
pub(crate) struct Arguments {
    /// The folder; it is made where it does not exist
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    #[command(flatten)]
    selection: Selection,
}

#[derive(Serialize)]
struct Report {
    path: PathBuf,
    kernels: Vec<Kernel>,
}

#[derive(Serialize)]
struct Kernel {
    repo: String,
    variant: String,
    path: PathBuf,
    bytes: u64,
}

pub(crate) fn run(arguments: &Arguments, context: &Context<'_>) -> Result<ExitCode, Failure> {
    let output = context.output;
    let mut kernels: Vec<Kernel> = Vec::new();
    for installed in arguments.selection.install(context)? {
        for vendored in vendor(&installed, &arguments.folder)? {
            let kernel = Kernel {
                repo: vendored.repository.to_string(),
                variant: vendored.variant,
                path: vendored.path,
                bytes: vendored.bytes,
            };
            if !output.json {
                output.note(format!(
                    "`{}`: build `{}`, {}",
                    kernel.repo,
                    kernel.variant,
                    bytes(kernel.bytes)
                ));
                output.line(kernel.path.display().to_string())?;
            }
            kernels.push(kernel);
        }
    }
    if output.json {
        output.json(&Report {
            path: arguments.folder.clone(),
            kernels,
        })?;
    }
    Ok(ExitCode::SUCCESS)
}
