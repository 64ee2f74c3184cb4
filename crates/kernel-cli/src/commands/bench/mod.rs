//! `bench`: measure kernels, and look at what was measured.

mod ab;
mod report;

use std::process::ExitCode;

use clap::Subcommand;

use super::Context;
use crate::failure::Failure;

#[derive(Debug, Subcommand)]
pub(crate) enum Arguments {
    /// Compare B with A: results first, then times in rounds, with an interval for the ratio
    Ab(ab::Arguments),
    /// Show records: a table, one HTML page, changes between files, a gate for CI
    Report(report::Arguments),
}

pub(crate) fn run(arguments: &Arguments, context: &Context<'_>) -> Result<ExitCode, Failure> {
    match arguments {
        Arguments::Ab(arguments) => ab::run(arguments, context),
        Arguments::Report(arguments) => report::run(arguments, context),
    }
}
