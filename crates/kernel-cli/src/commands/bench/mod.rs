//! `bench`: measure kernels, and look at what was measured.

mod ab;
mod arm;
mod estimated;
mod measured;
mod report;
mod script;

use std::process::ExitCode;

use clap::Subcommand;

pub(super) use self::ab::{Sizes, parse_shape};
use super::Context;
use crate::failure::Failure;

#[derive(Debug, Subcommand)]
pub(crate) enum Arguments {
    /// Compare B with A: results first, then times in rounds, with an interval for the ratio
    Ab(ab::Arguments),
    /// Be one arm of a comparison, for the process on standard input
    #[command(hide = true)]
    Arm,
    /// Run the benchmark scripts that a kernel ships, with our timing: A is their reference, B the kernel
    Script(script::Arguments),
    /// Show records: a table, one HTML page, changes between files, a gate for CI
    Report(report::Arguments),
}

pub(crate) fn run(arguments: &Arguments, context: &Context<'_>) -> Result<ExitCode, Failure> {
    match arguments {
        Arguments::Ab(arguments) => ab::run(arguments, context),
        Arguments::Arm => arm::run(),
        Arguments::Script(arguments) => script::run(arguments, context),
        Arguments::Report(arguments) => report::run(arguments, context),
    }
}
