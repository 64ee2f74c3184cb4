//! `lock`: write `kernels.lock`, or compare it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use kernel_registry::Registry;
use kernel_spec::lockfile::LOCKFILE_NAME;
use kernel_spec::project::{self, PROJECT_FILE};
use kernel_spec::{Dependency, Lockfile, Requirement};
use serde::Serialize;

use super::Context;
use super::selection::{CONFIG_FILE, ConfigKernels};
use crate::failure::Failure;

/// Writes the commits of all kernels that a project needs to kernels.lock, byte for byte as
/// Python's `kernels lock` does. The needs are `[tool.kernels.dependencies]` of pyproject.toml or,
/// where there is none, the kernels in a model's config.json for every device.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  kernel-cli lock
  kernel-cli lock ./model --trust org/name
  kernel-cli lock --check")]
pub(crate) struct Arguments {
    /// Folder of the project or model
    #[arg(value_name = "DIR", default_value = ".")]
    folder: PathBuf,
    /// Write nothing; exit with 1 where the lock would change. --locked means the same here
    #[arg(long)]
    check: bool,
}

#[derive(Serialize)]
struct Report {
    path: PathBuf,
    locked: Vec<Entry>,
    changed: bool,
}

#[derive(Serialize)]
struct Entry {
    repo: String,
    version: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    revision: Option<String>,
    commit: String,
}

pub(crate) fn run(arguments: &Arguments, context: &Context<'_>) -> Result<ExitCode, Failure> {
    let (output, shared) = (context.output, context.shared);
    let check = arguments.check || shared.locked || shared.frozen;
    let path = arguments.folder.join(LOCKFILE_NAME);
    let (registry, needs) = needs(&arguments.folder, context)?;
    let lock = registry.write_lock(&needs)?;
    let text = lock.render();
    let before = read(&path)?;
    let changed = before.as_deref() != Some(text.as_bytes());
    if changed && !check {
        write(&path, &text)?;
    }
    if output.json {
        output.json(&report(&path, &lock, changed))?;
    } else {
        for (dependency, commit) in lock.iter() {
            output.line(format!("{dependency} {commit}"))?;
        }
        let shown = path.display();
        match (changed, check, before.is_some()) {
            (false, ..) => output.note(format!("`{shown}` is up to date")),
            (true, false, _) => output.note(format!("wrote `{shown}`")),
            (true, true, true) => output.warning(format!("`{shown}` is stale")),
            (true, true, false) => output.warning(format!("`{shown}` does not exist")),
        }
    }
    Ok(ExitCode::from(u8::from(check && changed)))
}

/// What the project needs, and the registry to ask.
fn needs(folder: &Path, context: &Context<'_>) -> Result<(Registry, Vec<Dependency>), Failure> {
    // The lock that is to be made is not the one to follow.
    let registry = |vouched| {
        context.shared.registry_with(context.output, |builder| {
            let builder = builder.locked(false).frozen(false).trust(vouched);
            if context.shared.frozen {
                builder.offline(true)
            } else {
                builder
            }
        })
    };
    let project = folder.join(PROJECT_FILE);
    if let Some(bytes) = read(&project)? {
        let text = String::from_utf8_lossy(&bytes);
        return Ok((registry(Vec::new())?, project::dependencies(&text)?));
    }
    if !folder.join(CONFIG_FILE).is_file() {
        let message = format!(
            "`{}` has neither `{PROJECT_FILE}` nor `{CONFIG_FILE}`",
            folder.display()
        );
        return Err(Failure::new("project", message).with_hint(
            "declare kernels in `[tool.kernels.dependencies]` of pyproject.toml, such as \
             `\"org/name\" = 1`",
        ));
    }
    let asked = ConfigKernels::read(folder)?;
    let registry = registry(asked.vouched())?;
    let mut needs = Vec::new();
    for reference in asked.on_all(&registry)? {
        // Kernels in folders have no commit to lock.
        needs.extend(registry.dependency_of(&reference)?);
    }
    Ok((registry, needs))
}

fn report(path: &Path, lock: &Lockfile, changed: bool) -> Report {
    let entry = |(dependency, commit): (&Dependency, &kernel_spec::CommitId)| {
        let (version, revision) = match &dependency.requirement {
            Requirement::Version(version) => (Some(*version), None),
            Requirement::Revision(revision) => (None, Some(revision.clone())),
        };
        Entry {
            repo: dependency.repository.to_string(),
            version,
            revision,
            commit: commit.to_string(),
        }
    };
    Report {
        path: path.to_owned(),
        locked: lock.iter().map(entry).collect(),
        changed,
    }
}

fn read(path: &Path) -> Result<Option<Vec<u8>>, Failure> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Failure::io("read", path, &error)),
    }
}

/// Writes the lock under another name first, so that it is never half there.
fn write(path: &Path, text: &str) -> Result<(), Failure> {
    let temporary = path.with_extension(format!("lock.{}", std::process::id()));
    fs::write(&temporary, text)
        .and_then(|()| fs::rename(&temporary, path))
        .map_err(|error| {
            let _ = fs::remove_file(&temporary);
            Failure::io("write", path, &error)
        })
}
