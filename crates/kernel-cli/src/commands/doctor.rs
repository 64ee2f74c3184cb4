//! `doctor`: what is installed, and what is missing.
//!
//! Everything is read from names of files and folders. Python is not started, and no TPU is
//! opened: its runtime hangs on a machine that has none.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use kernel_registry::Registry;
use kernel_registry::system::python::PythonEnvironment;
use kernel_registry::tpu;
use serde::Serialize;

use super::Context;
use crate::failure::Failure;

/// The versions that the runtime library is made for, see `python-requirements.txt`.
const PACKAGES: [(&str, &str); 2] = [("torch", "2.13.0"), ("jax", "0.10.2")];
/// The compiler for TPUs, which is needed for TPUs and for checks against them.
const LIBTPU: (&str, &str) = ("libtpu", "0.0.52");
const PYTHON: std::ops::RangeInclusive<(u32, u32)> = (3, 11)..=(3, 14);
const ENVIRONMENT_HINT: &str = "make the environment with `cargo xtask env`";

/// Compares what is installed with what is wanted. Fetching and checking kernels needs none of it;
/// running models does. Neither Python nor a TPU is started. Exits with 1 where something that is
/// needed is missing.
#[derive(Debug, Args)]
pub(crate) struct Arguments {}

#[derive(Serialize)]
struct Report {
    checks: Vec<Check>,
}

#[derive(Serialize)]
struct Check {
    name: &'static str,
    ok: bool,
    found: Option<String>,
    wanted: Option<String>,
    hint: Option<String>,
}

pub(crate) fn run(_: &Arguments, context: &Context<'_>) -> Result<ExitCode, Failure> {
    let output = context.output;
    let registry = context.shared.registry(output)?;
    let environment = PythonEnvironment::find();
    let mut checks = vec![
        python(environment.as_ref()),
        environment_check(environment.as_ref()),
    ];
    checks.extend(PACKAGES.map(|wanted| package(environment.as_ref(), wanted, true)));
    let tpus = tpu::scan();
    let has_tpu = !tpus.functions.is_empty();
    checks.push(package(environment.as_ref(), LIBTPU, has_tpu));
    checks.push(tpu_check(&tpus));
    checks.push(runtime_library());
    checks.push(machine(&registry));
    checks.push(cache(&registry));
    let ok = checks.iter().all(|check| check.ok);
    if output.json {
        output.json(&Report { checks })?;
    } else {
        for check in &checks {
            let word = if check.ok { "ok  " } else { "MISS" };
            let found = check.found.as_deref().unwrap_or("not found");
            let wanted = match &check.wanted {
                Some(wanted) if check.found.as_ref() != Some(wanted) => {
                    format!(" (wanted: {wanted})")
                }
                _ => String::new(),
            };
            output.line(format!("{word} {:<18} {found}{wanted}", check.name))?;
            if let Some(hint) = check.hint.as_ref().filter(|_| !check.ok) {
                output.line(format!("     {:<18} hint: {hint}", ""))?;
            }
        }
    }
    Ok(ExitCode::from(u8::from(!ok)))
}

fn python(environment: Option<&PythonEnvironment>) -> Check {
    let version = environment.and_then(PythonEnvironment::python_version);
    let numbers = version.and_then(|text| {
        let (major, minor) = text.split_once('.')?;
        Some((major.parse().ok()?, minor.parse().ok()?))
    });
    let (first, last) = (PYTHON.start(), PYTHON.end());
    Check {
        name: "python",
        ok: numbers.is_some_and(|numbers| PYTHON.contains(&numbers)),
        found: version.map(str::to_owned),
        wanted: Some(format!("{}.{} to {}.{}", first.0, first.1, last.0, last.1)),
        hint: Some(ENVIRONMENT_HINT.to_owned()),
    }
}

fn environment_check(environment: Option<&PythonEnvironment>) -> Check {
    Check {
        name: "environment",
        ok: environment.is_some(),
        found: environment.map(|found| found.root().display().to_string()),
        wanted: None,
        hint: Some(format!(
            "{ENVIRONMENT_HINT}, or name one in KERNEL_PYTHON_ENVIRONMENT"
        )),
    }
}

/// A package whose version is compared without its local part (`2.13.0+cpu`).
fn package(
    environment: Option<&PythonEnvironment>,
    (name, wanted): (&'static str, &str),
    needed: bool,
) -> Check {
    let found = environment.and_then(|environment| environment.version(name));
    let is_wanted = found.is_some_and(|found| found.split('+').next() == Some(wanted));
    Check {
        name,
        ok: is_wanted || (!needed && found.is_none()),
        found: found
            .or((!needed).then_some("none, and not needed without a TPU"))
            .map(str::to_owned),
        wanted: Some(wanted.to_owned()),
        hint: Some(ENVIRONMENT_HINT.to_owned()),
    }
}

fn tpu_check(scan: &tpu::TpuScan) -> Check {
    let count = scan.functions.len();
    let found = scan.generation().map_or_else(
        || "none".to_owned(),
        |generation| {
            format!(
                "{count} of generation {generation}, {} usable",
                scan.usable()
            )
        },
    );
    Check {
        name: "tpu",
        ok: scan.usable() == count,
        found: Some(found),
        wanted: None,
        hint: Some("give the devices under /dev/vfio to this container or user".to_owned()),
    }
}

/// Looks where the commands that need it look.
fn runtime_library() -> Check {
    let file = format!("libkernel_runtime{}", std::env::consts::DLL_SUFFIX);
    let named = std::env::var_os("KERNEL_RUNTIME_LIBRARY").filter(|value| !value.is_empty());
    let folder = std::env::current_exe()
        .ok()
        .and_then(|program| program.parent().map(PathBuf::from));
    let places = match (named, folder) {
        (Some(path), _) => vec![PathBuf::from(path)],
        (None, Some(folder)) => vec![folder.join(&file), folder.join("../lib").join(&file)],
        (None, None) => Vec::new(),
    };
    let found = places.into_iter().find(|path| path.is_file());
    Check {
        name: "runtime library",
        ok: found.is_some(),
        found: found.map(|path| path.display().to_string()),
        wanted: Some(file),
        hint: Some(
            "build it with `cargo build --release --package kernel-runtime` after `cargo xtask env`"
                .to_owned(),
        ),
    }
}

fn machine(registry: &Registry) -> Check {
    let system = registry.system();
    Check {
        name: "machine",
        ok: true,
        found: Some(format!(
            "{} {}, backend {}",
            system.cpu, system.os, system.backend
        )),
        wanted: None,
        hint: None,
    }
}

fn cache(registry: &Registry) -> Check {
    let root = registry.cache().root();
    // A folder that is not there yet is made in the first one above it that is.
    let existing = root.ancestors().find(|folder| folder.exists());
    let is_writable = existing
        .and_then(|folder| folder.metadata().ok())
        .is_some_and(|metadata| metadata.is_dir() && !metadata.permissions().readonly());
    Check {
        name: "cache",
        ok: is_writable,
        found: Some(root.display().to_string()),
        wanted: None,
        hint: Some("set KERNELS_CACHE to a folder that you may write to".to_owned()),
    }
}
