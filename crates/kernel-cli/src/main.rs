//! The command: arguments in, one command run, an exit code out.
//!
//! | module | owns |
//! | --- | --- |
//! | `commands` | one file for each command |
//! | `shared` | the flags that every command takes, and what is made of them |
//! | `output` | standard output and standard error |
//! | `failure` | errors as people and programs read them, and exit codes |
//! | `interrupt` | Ctrl-C |
//! | `launch` | several processes for one model |
//! | `runtime` | the shared library behind `generate` and `bench` |

mod commands;
mod failure;
mod interrupt;
mod launch;
mod output;
mod runtime;
mod shared;

use std::process::ExitCode;

use clap::Parser;

use commands::{Command, Context};
use failure::Failure;
use output::Output;
use shared::Shared;

/// Finds, checks and runs kernels of the Hugging Face Hub.
///
/// A kernel is named by a reference: `org/name@v1`, `org/name@<branch, tag or commit>`, or
/// `org/name` for the newest version that fits this machine. `:Symbol` behind it means one layer or
/// function. `./path` and `/path` name a kernel on this machine.
#[derive(Debug, Parser)]
#[command(
    name = "kernel-cli",
    version,
    propagate_version = false,
    max_term_width = 100
)]
#[command(
    after_help = "Exit codes: 0 done, 1 it failed or the answer is no, 2 the call is wrong, \
    130 interrupted.\nSee `kernel-cli COMMAND --help` for the options of a command."
)]
#[command(after_long_help = LONG_HELP)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    shared: Shared,
}

const LONG_HELP: &str = "\
Examples:
  kernel-cli list                               what there is for which op and device
  kernel-cli variants org/name@v1               which of its builds fits here, and why not the others
  kernel-cli fetch org/name@v1                  download it and check every byte
  kernel-cli fetch --config ./model             the kernels that a model's config.json asks for
  kernel-cli lock && kernel-cli fetch --locked  the same commits everywhere

Environment:
  HF_ENDPOINT, HF_TOKEN, HF_HOME, HF_HUB_CACHE, HF_HUB_OFFLINE, KERNELS_CACHE, LOCAL_KERNELS
  mean what they mean to the Python libraries. NO_COLOR turns colours off.

Exit codes:
  0    done
  1    it failed, or the answer is no
  2    the call is wrong
  130  interrupted";

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return failure::report_usage(&error),
    };
    let output = cli.shared.output();
    match run(&cli, &output) {
        Ok(code) => code,
        Err(failure) => failure.report(&output),
    }
}

fn run(cli: &Cli, output: &Output) -> Result<ExitCode, Failure> {
    interrupt::install(output)?;
    output.start_log();
    cli.command.run(&Context {
        output,
        shared: &cli.shared,
    })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_arguments_are_consistent() {
        Cli::command().debug_assert();
    }
}
