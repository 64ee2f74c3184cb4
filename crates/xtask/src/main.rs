//! The chores of this repository, in Rust: what a newcomer, a developer and CI run.
//!
//! `cargo xtask demo` and `cargo xtask test` are the two commands of the README; the others are
//! their parts. Nothing but Rust and Python has to be there beforehand.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "chores talk to the terminal"
)]

mod bench_method;
mod demo;
mod environment;
#[cfg(test)]
mod index_schema;
mod kernels;
mod model;
mod process;
mod speed;
mod test;
mod workspace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::workspace::Workspace;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "The chores of this repository")]
struct Arguments {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Make the Python environment `.venv` with the versions of python-requirements.txt
    Env,
    /// Obtain SmolLM2-135M-Instruct as a model directory in `models/`
    Model,
    /// Environment, model, kernels, an answer, and an A/B table
    Demo,
    /// The kernels of `kernels-index/`
    #[command(subcommand)]
    Kernels(KernelChore),
    /// The figures of docs/ab-method.md, on this machine: a quarter of an hour
    BenchMethod {
        /// Only the spread against `kernels benchmark`
        #[arg(long)]
        spread: bool,
    },
    /// Our runtime and transformers side by side on the CPU: decode, prefill, loading, memory
    Speed {
        /// Runs of each; the best counts
        #[arg(long, default_value_t = 3)]
        rounds: usize,
        /// Only cases whose label contains this, such as `SmolLM2` or `bfloat16 2 threads`
        #[arg(long)]
        only: Option<String>,
    },
    /// Everything CI runs
    Test {
        /// Leave out what takes minutes: the TPU compiler and the end-to-end runs
        #[arg(long)]
        quick: bool,
    },
}

#[derive(Subcommand)]
enum KernelChore {
    /// Make the builds, their metadata and the index from the sources
    Build,
    /// Fail where a build or the index is not what its source gives
    Check,
    /// Parity, races, the layer contract, and the TPU compiler
    Test,
    /// Estimated cycles of the kernels and their peers, and the tables of them; takes minutes
    Estimates {
        /// Passed on to kernels-index/estimates.py (see its `--help`)
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let result = Workspace::find().and_then(|workspace| match arguments.chore {
        Chore::Env => environment::ensure(&workspace).map(|_| ()),
        Chore::Model => model::ensure(&workspace, &environment::ensure(&workspace)?).map(|_| ()),
        Chore::Demo => demo::run(&workspace),
        Chore::Kernels(KernelChore::Build) => kernels::build(&workspace),
        Chore::Kernels(KernelChore::Check) => kernels::check(&workspace),
        Chore::Kernels(KernelChore::Test) => {
            kernels::test(&workspace, &environment::ensure(&workspace)?)
        }
        Chore::BenchMethod { spread } => {
            let environment = environment::ensure(&workspace)?;
            if spread {
                bench_method::spread(&workspace, &environment)
            } else {
                bench_method::run(&workspace, &environment)
            }
        }
        Chore::Speed { rounds, only } => speed::run(&workspace, rounds, only.as_deref()),
        Chore::Kernels(KernelChore::Estimates { arguments }) => {
            kernels::estimates(&workspace, &environment::ensure(&workspace)?, &arguments)
        }
        Chore::Test { quick } => test::run(&workspace, quick),
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
