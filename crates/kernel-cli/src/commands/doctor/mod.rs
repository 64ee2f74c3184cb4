//! `doctor`: what is installed, what does not fit together, and what to do about it.
//!
//! Everything is read from names of files and folders. Python is not started, no lock is tried, and no
//! TPU is opened: its runtime hangs on a machine that has none.

mod packages;
mod tpus;

use std::process::ExitCode;

use clap::Args;
use kernel_registry::Registry;
use kernel_registry::system::pjrt;
use kernel_registry::system::python::PythonEnvironment;
use kernel_registry::tpu;
use serde::Serialize;

use super::Context;
use crate::failure::Failure;
use crate::runtime;

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

/// One line of the report.
#[derive(Debug, Serialize)]
struct Check {
    name: &'static str,
    ok: bool,
    found: Option<String>,
    wanted: Option<String>,
    hint: Option<String>,
}

impl Check {
    /// A line that informs and cannot be wrong.
    fn note(name: &'static str, found: String) -> Self {
        Self {
            name,
            ok: true,
            found: Some(found),
            wanted: None,
            hint: None,
        }
    }
}

pub(crate) fn run(_: &Arguments, context: &Context<'_>) -> Result<ExitCode, Failure> {
    let output = context.output;
    let registry = context.shared.registry(output)?;
    let environment = PythonEnvironment::find();
    let scan = tpu::scan();
    let mut checks = vec![
        python(environment.as_ref()),
        environment_check(environment.as_ref()),
    ];
    checks.extend(packages::checks(
        environment.as_ref(),
        !scan.functions.is_empty(),
    ));
    checks.push(tpus::chips(&scan));
    checks.extend(tpus::holders());
    checks.push(cpu_path(environment.as_ref()));
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

/// How kernels run on the CPU: without a plug-in they run as well, at about three times the cost of a
/// small call.
fn cpu_path(environment: Option<&PythonEnvironment>) -> Check {
    let found = match environment.map(|found| pjrt::find_plugin(found.site_packages())) {
        None => "none, without an environment".to_owned(),
        Some(Ok(plugin)) => format!("PJRT, {}", plugin.display()),
        Some(Err(absent)) => format!("JAX: {absent}"),
    };
    Check::note("kernels on the cpu", found)
}

/// Looks where the commands that need it look.
fn runtime_library() -> Check {
    let (found, hint) = match runtime::locate() {
        Ok(path) => (Some(path.display().to_string()), None),
        Err(error) => (None, error.hint()),
    };
    Check {
        name: "runtime library",
        ok: found.is_some(),
        found,
        wanted: Some(runtime::FILE.to_owned()),
        hint,
    }
}

fn machine(registry: &Registry) -> Check {
    let system = registry.system();
    let found = format!("{} {}, backend {}", system.cpu, system.os, system.backend);
    Check::note("machine", found)
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
