//! One file for each command.

mod bench;
mod cache;
mod check;
mod completions;
mod doctor;
mod fetch;
mod generate;
mod info;
mod list;
mod lock;
mod plan;
mod selection;
mod shown;
mod variants;
mod vendor;
mod verify;
mod versions;

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
    /// Write kernels.lock, so that the same commits are used everywhere
    Lock(lock::Arguments),
    /// Check the files of kernels against their digests
    Verify(verify::Arguments),
    /// Show every build of a kernel, and why it fits this machine or not
    Variants(variants::Arguments),
    /// Show a kernel's metadata
    Info(info::Arguments),
    /// Show a kernel's versions, and the build that each gives here
    Versions(versions::Arguments),
    /// List known and installed kernels, by op and device
    List(list::Arguments),
    /// Look at the shared cache, or remove some of it
    Cache(cache::Arguments),
    /// Copy kernels into a folder for machines without a network
    Vendor(vendor::Arguments),
    /// Say what would run on what, the bytes on each device, and what stands against it
    Plan(plan::Arguments),
    /// Continue a prompt with a model whose ops run on kernels
    Generate(Box<generate::Arguments>),
    /// Find out whether a kernel is right, builds for every TPU, and what it may cost there
    Check(check::Arguments),
    /// Compare kernels: correctness first, then time
    #[command(subcommand)]
    Bench(bench::Arguments),
    /// Say what is installed, what is missing, and what to do about it
    Doctor(doctor::Arguments),
    /// Print a completion script for a shell
    Completions(completions::Arguments),
}

impl Command {
    pub(crate) fn run(&self, context: &Context<'_>) -> Result<ExitCode, Failure> {
        match self {
            Self::Fetch(arguments) => fetch::run(arguments, context),
            Self::Lock(arguments) => lock::run(arguments, context),
            Self::Verify(arguments) => verify::run(arguments, context),
            Self::Variants(arguments) => variants::run(arguments, context),
            Self::Info(arguments) => info::run(arguments, context),
            Self::Versions(arguments) => versions::run(arguments, context),
            Self::List(arguments) => list::run(arguments, context),
            Self::Cache(arguments) => cache::run(arguments, context),
            Self::Vendor(arguments) => vendor::run(arguments, context),
            Self::Plan(arguments) => plan::run(arguments, context),
            Self::Generate(arguments) => generate::run(arguments, context),
            Self::Check(arguments) => check::run(arguments, context),
            Self::Bench(arguments) => bench::run(arguments, context),
            Self::Doctor(arguments) => doctor::run(arguments, context),
            Self::Completions(arguments) => completions::run(arguments, context),
        }
    }
}
