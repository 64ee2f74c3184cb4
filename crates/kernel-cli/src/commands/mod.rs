//! One file for each command.

mod bench;
mod fetch;
mod generate;

use std::process::ExitCode;

use clap::Subcommand;

use crate::failure::Failure;
use crate::output::Output;
use crate::shared::Shared;

/// What a command works with.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Context<'a> {
    pub(crate) output: &'a Output,
    pub(crate) shared: &'a Shared,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Download kernels and check every byte of them
    Fetch(fetch::Arguments),
    /// Continue a prompt with a model whose ops run on kernels
    Generate(generate::Arguments),
    /// Compare kernels: correctness first, then time
    #[command(subcommand)]
    Bench(bench::Arguments),
}

impl Command {
    pub(crate) fn run(&self, context: &Context<'_>) -> Result<ExitCode, Failure> {
        match self {
            Self::Fetch(arguments) => fetch::run(arguments, context),
            Self::Generate(arguments) => generate::run(arguments, context),
            Self::Bench(arguments) => bench::run(arguments, context),
        }
    }
}
