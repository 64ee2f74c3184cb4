//! The Python environment: one folder, one file of pinned versions, made once.
//!
//! A stamp in the folder holds the digest of that file, so a second run does nothing and a changed
//! pin is noticed. Two links in it keep `.cargo/config.toml` free of Python versions: `torch`
//! (site-packages/torch) and `include/python` (Python.h).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

use crate::process;
use crate::workspace::Workspace;

/// The Python versions that every pinned package has wheels for.
const OLDEST: (u32, u32) = (3, 11);
const NEWEST: (u32, u32) = (3, 14);

/// A complete Python environment.
pub(crate) struct Environment {
    root: PathBuf,
}

impl Environment {
    /// The interpreter of the environment.
    pub(crate) fn python(&self) -> PathBuf {
        self.root.join("bin/python")
    }

    /// A command that runs Python as this project does: torch without device plug-ins, JAX on the CPU.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(self.python());
        command
            .env("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
            .env("JAX_PLATFORMS", "cpu");
        command
    }

    /// A cargo command whose build scripts find this environment's Python first.
    pub(crate) fn cargo(&self) -> Command {
        let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        let old = std::env::var_os("PATH").unwrap_or_default();
        let folders = std::iter::once(self.root.join("bin")).chain(std::env::split_paths(&old));
        if let Ok(path) = std::env::join_paths(folders) {
            command.env("PATH", path);
        }
        command
    }
}

/// Makes the environment, or finds it complete and does nothing.
pub(crate) fn ensure(workspace: &Workspace) -> Result<Environment> {
    let root = workspace.environment();
    let requirements = workspace.requirements();
    let pins = fs::read(&requirements)
        .with_context(|| format!("cannot read {}", requirements.display()))?;
    let wanted = hex::encode(Sha256::digest(&pins));
    let stamp = root.join("python-requirements.sha256");
    let environment = Environment { root };
    let interpreter_runs = process::output(&environment.python(), &["-c", ""]).is_some();
    if interpreter_runs && fs::read_to_string(&stamp).is_ok_and(|found| found.trim() == wanted) {
        return Ok(environment);
    }
    if !interpreter_runs {
        let python = find_python()?;
        println!(
            "Python environment: {} with {}",
            environment.root.display(),
            python.display()
        );
        let mut command = Command::new(&python);
        command
            .args(["-m", "venv", "--clear"])
            .arg(&environment.root);
        process::run_quietly("python -m venv", &mut command).context(
            "cannot make a virtual environment (on Debian and Ubuntu: `apt-get install python3-venv`)",
        )?;
    }
    install(&environment, &requirements)?;
    link(&environment)?;
    fs::write(&stamp, wanted).with_context(|| format!("cannot write {}", stamp.display()))?;
    Ok(environment)
}

fn install(environment: &Environment, requirements: &Path) -> Result<()> {
    // --no-deps: the file is the whole truth. --no-compile: half of the time would go into
    // bytecode of packages that are never imported.
    let mut command = Command::new(environment.python());
    command
        .args([
            "-m",
            "pip",
            "install",
            "--no-deps",
            "--no-compile",
            "--progress-bar",
            "off",
        ])
        .args(["--disable-pip-version-check", "--requirement"])
        .arg(requirements);
    process::run_quietly("pip install (about 3 GB to download)", &mut command)
        .context("cannot install the packages of python-requirements.txt")
}

/// The links that the build reads, see `.cargo/config.toml`.
fn link(environment: &Environment) -> Result<()> {
    let script = "import sysconfig, os; print(sysconfig.get_path('include')); \
                  print(os.path.join(sysconfig.get_path('purelib'), 'torch'))";
    let printed = process::output(&environment.python(), &["-c", script])
        .context("the environment's Python does not say where its headers lie")?;
    let mut lines = printed.lines();
    let (Some(include), Some(torch)) = (lines.next(), lines.next()) else {
        bail!("the environment's Python does not say where its headers lie");
    };
    if !Path::new(include).join("Python.h").exists() {
        bail!(
            "Python's headers are missing ({include}/Python.h); on Debian and Ubuntu: `apt-get \
             install python3-dev`, with pyenv they are always there"
        );
    }
    replace_link(Path::new(torch), &environment.root.join("torch"))?;
    replace_link(Path::new(include), &environment.root.join("include/python"))
}

fn replace_link(target: &Path, link: &Path) -> Result<()> {
    if let Some(parent) = link.parent() {
        fs::create_dir_all(parent).with_context(|| format!("cannot make {}", parent.display()))?;
    }
    if link.symlink_metadata().is_ok() {
        fs::remove_file(link).with_context(|| format!("cannot replace {}", link.display()))?;
    }
    std::os::unix::fs::symlink(target, link)
        .with_context(|| format!("cannot link {} to {}", link.display(), target.display()))
}

/// The first Python in PATH that can carry the environment; the reasons against the others are
/// part of the error.
fn find_python() -> Result<PathBuf> {
    let names = [
        "python3",
        "python3.11",
        "python3.12",
        "python3.13",
        "python3.14",
        "python",
    ];
    let mut reasons = Vec::new();
    for name in names {
        match examine(Path::new(name)) {
            Ok(path) => return Ok(path),
            Err(Unfit::Absent) => {}
            Err(Unfit::Reason(reason)) => reasons.push(format!("  {name}: {reason}")),
        }
    }
    if reasons.is_empty() {
        bail!(
            "no Python found in PATH; install Python {}.{} to {}.{} (on Debian and Ubuntu: `apt-get \
             install python3 python3-venv python3-dev`)",
            OLDEST.0,
            OLDEST.1,
            NEWEST.0,
            NEWEST.1
        );
    }
    bail!(
        "no Python in PATH can carry the environment:\n{}",
        reasons.join("\n")
    )
}

enum Unfit {
    Absent,
    Reason(String),
}

fn examine(program: &Path) -> Result<PathBuf, Unfit> {
    let script = "import sys, sysconfig, importlib.util as u; \
                  print(sys.version_info[0]); print(sys.version_info[1]); print(sys.executable); \
                  print(sysconfig.get_config_var('Py_ENABLE_SHARED') or 0); \
                  print(int(bool(u.find_spec('venv') and u.find_spec('ensurepip'))))";
    let printed = process::output(program, &["-c", script]).ok_or(Unfit::Absent)?;
    judge(&printed).map_err(Unfit::Reason)
}

/// The rule by which a Python is taken, on the five lines that it prints of itself.
fn judge(printed: &str) -> Result<PathBuf, String> {
    let lines: Vec<&str> = printed.lines().collect();
    let [major, minor, executable, shared, venv] = lines[..] else {
        return Err("it does not describe itself".into());
    };
    let version = (major.parse().unwrap_or(0), minor.parse().unwrap_or(0));
    if version < OLDEST {
        return Err(format!(
            "version {major}.{minor} is too old; {}.{} or newer is needed",
            OLDEST.0, OLDEST.1
        ));
    }
    if version > NEWEST {
        return Err(format!(
            "version {major}.{minor} is too new: the pinned packages have no wheels for it; \
             install Python {}.{} beside it",
            NEWEST.0, NEWEST.1
        ));
    }
    if shared != "1" {
        return Err(
            "it has no shared library (libpython), which a program that embeds Python needs; with \
             pyenv: `PYTHON_CONFIGURE_OPTS=--enable-shared pyenv install 3.11`"
                .into(),
        );
    }
    if venv != "1" {
        return Err(
            "its venv module is missing; on Debian and Ubuntu: `apt-get install \
                    python3-venv`"
                .into(),
        );
    }
    Ok(PathBuf::from(executable))
}

#[cfg(test)]
mod tests {
    use super::judge;

    #[test]
    fn a_fitting_python_is_taken() {
        assert_eq!(
            judge("3\n12\n/usr/bin/python3\n1\n1").unwrap().to_str(),
            Some("/usr/bin/python3")
        );
    }

    #[test]
    fn each_unfit_python_gets_its_own_reason() {
        for (printed, word) in [
            ("3\n9\n/p\n1\n1", "too old"),
            ("3\n15\n/p\n1\n1", "too new"),
            ("3\n11\n/p\n0\n1", "shared library"),
            ("3\n11\n/p\n1\n0", "venv"),
            ("", "describe itself"),
        ] {
            let reason = judge(printed).unwrap_err();
            assert!(reason.contains(word), "{printed:?}: {reason}");
        }
    }
}
