//! `cargo xtask test`: everything CI runs, in the order in which it fails fastest.

use anyhow::Result;

use crate::environment::Environment;
use crate::workspace::Workspace;
use crate::{demo, environment, kernels, model, process};

/// Runs all checks; `quick` leaves out what takes minutes.
pub(crate) fn run(workspace: &Workspace, quick: bool) -> Result<()> {
    let environment = environment::ensure(workspace)?;
    let plain = model::ensure(workspace, &environment)?;
    demo::with_kernels(&plain)?;

    step("format");
    cargo(workspace, &environment, &["fmt", "--all", "--check"])?;
    step("lints");
    cargo(
        workspace,
        &environment,
        &[
            "clippy",
            "--quiet",
            "--workspace",
            "--all-targets",
            "--",
            "--deny",
            "warnings",
        ],
    )?;
    step("the built kernels are those of their sources");
    kernels::check(workspace)?;
    // All targets, as in the lints before and the tests after it: another choice of targets is another
    // choice of features, and would compile the dependencies once more. The end-to-end tests run the
    // program, which opens the runtime library beside it; `cargo test` alone does not make that.
    step("build");
    cargo(
        workspace,
        &environment,
        &["build", "--quiet", "--workspace", "--all-targets"],
    )?;
    step("tests of the crates, and the end-to-end tests");
    cargo(workspace, &environment, &["test", "--quiet", "--workspace"])?;
    if !quick {
        step("kernels: parity and the TPU compiler");
        kernels::test(workspace, &environment)?;
    }
    Ok(())
}

fn step(name: &str) {
    println!("== {name}");
}

fn cargo(workspace: &Workspace, environment: &Environment, arguments: &[&str]) -> Result<()> {
    process::run(
        environment
            .cargo()
            .current_dir(workspace.root())
            .args(arguments),
    )
}
