//! `completions`: what a shell needs to complete arguments.

use std::process::ExitCode;

use clap::{Args, CommandFactory};
use clap_complete::Shell;
use serde::Serialize;

use super::Context;
use crate::failure::Failure;

/// Prints a completion script. For bash, put it into
/// ~/.local/share/bash-completion/completions/kernel-cli.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// The shell
    #[arg(value_enum, value_name = "SHELL")]
    shell: Shell,
}

#[derive(Serialize)]
struct Report {
    shell: String,
    script: String,
}

pub(crate) fn run(arguments: &Arguments, context: &Context<'_>) -> Result<ExitCode, Failure> {
    let mut bytes = Vec::new();
    let mut command = crate::Cli::command();
    clap_complete::generate(arguments.shell, &mut command, "kernel-cli", &mut bytes);
    let script = String::from_utf8_lossy(&bytes).into_owned();
    if context.output.json {
        context.output.json(&Report {
            shell: arguments.shell.to_string(),
            script,
        })?;
    } else {
        context.output.data(script)?;
    }
    Ok(ExitCode::SUCCESS)
}
