//! `cargo xtask test`: everything CI runs, in the order in which it fails fastest.

use anyhow::Result;

use crate::environment::Environment;
use crate::workspace::{Profile, Workspace};
use crate::{demo, environment, kernels, model, process};

/// Crates that need neither Python nor libtorch: they are checked first and build in a minute.
const LIGHT: [&str; 5] = ["kernel-spec", "hub-fixture", "kernel-registry", "kernel-cli", "xtask"];
/// Crates that link libtorch or Python.
const HEAVY: [&str; 4] = ["kernel-bridge", "kernel-model", "kernel-bench", "kernel-runtime"];

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
        &["clippy", "--quiet", "--workspace", "--all-targets", "--", "--deny", "warnings"],
    )?;
    step("the built kernels are those of their sources");
    kernels::check(workspace)?;
    // The end-to-end tests run the program, which opens the runtime library beside it.
    step("build");
    cargo(
        workspace,
        &environment,
        &["build", "--quiet", "--profile", Profile::Dev.name(), "-p", "kernel-cli", "-p", "kernel-runtime"],
    )?;
    for crates in [&LIGHT[..], &HEAVY[..]] {
        step(&format!("tests of {}", crates.join(", ")));
        let mut arguments = vec!["test", "--quiet"];
        for name in crates {
            arguments.extend(["--package", name]);
        }
        cargo(workspace, &environment, &arguments)?;
    }
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
    process::run(environment.cargo().current_dir(workspace.root()).args(arguments))
}
