//! `fetch`: resolve, download, verify.

use std::process::ExitCode;

use clap::Args;

use super::Context;
use crate::failure::Failure;
use crate::shared::parse_reference;

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Kernels
    #[arg(value_name = "REF")]
    references: Vec<String>,
}

pub(crate) fn run(arguments: &Arguments, context: &Context<'_>) -> Result<ExitCode, Failure> {
    let registry = context.shared.registry(context.output)?;
    for text in &arguments.references {
        let installed = registry.install(&registry.resolve(&parse_reference(text)?)?)?;
        let size = crate::output::bytes(installed.bytes);
        context
            .output
            .line(format!("{} ({size})", installed.path.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}
