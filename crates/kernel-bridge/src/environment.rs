//! Finds the Python environment and judges it without starting Python.
//!
//! A wrong environment otherwise shows itself as an abort inside libpython or a missing symbol in
//! libtorch; here it is an error that names the folder, what is wrong, and the command that mends it.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use crate::error::EnvironmentError;

/// The variable that names an environment and goes before all else.
pub const VARIABLE: &str = "KERNEL_PYTHON_ENVIRONMENT";
/// The torch release that tch 0.26 is made for.
pub const TORCH_VERSION: &str = "2.13.0";

/// A Python environment (a folder with `bin/python` and `pyvenv.cfg`) that fits this library.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Environment {
    root: PathBuf,
    site_packages: PathBuf,
}

impl Environment {
    /// The environment of `KERNEL_PYTHON_ENVIRONMENT`, else the one that this library was built
    /// for, else the active one (`VIRTUAL_ENV`).
    ///
    /// The build's own goes before the active one because libtorch and libpython are linked from it.
    ///
    /// # Errors
    /// [`EnvironmentError`], about the first of the three that is set.
    pub fn discover() -> Result<Self, EnvironmentError> {
        Self::choose(
            std::env::var_os(VARIABLE),
            option_env!("KERNEL_BRIDGE_ENVIRONMENT"),
            std::env::var_os("VIRTUAL_ENV"),
        )
    }

    fn choose(
        named: Option<OsString>,
        built_for: Option<&str>,
        active: Option<OsString>,
    ) -> Result<Self, EnvironmentError> {
        let set = |value: Option<OsString>| value.filter(|v| !v.is_empty()).map(PathBuf::from);
        if let Some(root) = set(named) {
            return Self::at(&root);
        }
        let built_for = built_for.map(PathBuf::from).filter(|root| root.is_dir());
        match built_for.or_else(|| set(active)) {
            Some(root) => Self::at(&root),
            None => Err(EnvironmentError::None),
        }
    }

    /// The environment in a folder.
    ///
    /// # Errors
    /// [`EnvironmentError`]: what is missing there, or of another version.
    pub fn at(root: &Path) -> Result<Self, EnvironmentError> {
        let python = root.join("bin/python");
        if !python.exists() {
            return Err(EnvironmentError::NoPython { root: root.to_owned() });
        }
        let wanted = option_env!("KERNEL_BRIDGE_PYTHON_VERSION").unwrap_or("3.11");
        let found = python_version(root).unwrap_or_else(|| wanted.to_owned());
        if found != wanted {
            return Err(EnvironmentError::PythonVersion {
                root: root.to_owned(),
                found,
                wanted: wanted.to_owned(),
            });
        }
        let site_packages = root.join("lib").join(format!("python{found}")).join("site-packages");
        let environment = Self { root: root.to_owned(), site_packages };
        match environment.installed("torch") {
            None => Err(EnvironmentError::Missing { root: root.to_owned(), package: "torch" }),
            Some(version) if version.split('+').next() != Some(TORCH_VERSION) => {
                Err(EnvironmentError::TorchVersion { root: root.to_owned(), found: version })
            }
            Some(_) => Ok(environment),
        }
    }

    /// The environment's folder.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The interpreter within it.
    pub fn python(&self) -> PathBuf {
        self.root.join("bin/python")
    }

    /// The version of an installed package, read from its dist-info folder.
    pub fn installed(&self, package: &str) -> Option<String> {
        let wanted = package.replace('-', "_").to_lowercase();
        fs::read_dir(&self.site_packages).ok()?.filter_map(Result::ok).find_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let (package, version) = name.strip_suffix(".dist-info")?.split_once('-')?;
            (package.replace('-', "_").to_lowercase() == wanted).then(|| version.to_owned())
        })
    }
}

/// `major.minor` from pyvenv.cfg.
fn python_version(root: &Path) -> Option<String> {
    let text = fs::read_to_string(root.join("pyvenv.cfg")).ok()?;
    let version = text.lines().find_map(|line| {
        let (key, value) = line.split_once('=')?;
        matches!(key.trim(), "version" | "version_info").then(|| value.trim().to_owned())
    })?;
    let mut parts = version.split('.');
    Some(format!("{}.{}", parts.next()?, parts.next()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted_python() -> &'static str {
        option_env!("KERNEL_BRIDGE_PYTHON_VERSION").unwrap_or("3.11")
    }

    fn fake(python: &str, packages: &[&str]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        fs::create_dir_all(root.join("bin")).unwrap();
        fs::write(root.join("bin/python"), "").unwrap();
        fs::write(root.join("pyvenv.cfg"), format!("home = /x\nversion = {python}.7\n")).unwrap();
        let site = root.join(format!("lib/python{python}/site-packages"));
        for package in packages {
            fs::create_dir_all(site.join(format!("{package}.dist-info"))).unwrap();
        }
        folder
    }

    #[test]
    fn a_fitting_environment_is_taken_and_knows_its_packages() {
        let folder = fake(wanted_python(), &["torch-2.13.0+cpu", "torch_tpu-0.2.0"]);
        let environment = Environment::at(folder.path()).unwrap();
        assert_eq!(environment.installed("torch-tpu").as_deref(), Some("0.2.0"));
        assert_eq!(environment.installed("jax"), None);
    }

    #[test]
    fn each_unfit_environment_gets_its_own_error_and_hint() {
        let empty = tempfile::tempdir().unwrap();
        let old = fake("3.9", &["torch-2.13.0"]);
        let bare = fake(wanted_python(), &[]);
        let other = fake(wanted_python(), &["torch-2.12.1"]);
        for (folder, words) in [
            (&empty, "no Python"),
            (&old, "3.9"),
            (&bare, "`torch` is not installed"),
            (&other, "2.12.1"),
        ] {
            let error = Environment::at(folder.path()).unwrap_err();
            assert!(error.to_string().contains(words), "{error}");
            assert!(error.hint().contains("cargo xtask env"), "{error:?}");
        }
        assert_eq!(Environment::choose(None, None, None), Err(EnvironmentError::None));
    }

    #[test]
    fn pyo3_4841_a_named_environment_goes_before_all_others() {
        let named = fake(wanted_python(), &["torch-2.13.0"]);
        let other = fake(wanted_python(), &["torch-2.13.0"]);
        let chosen = Environment::choose(
            Some(named.path().into()),
            other.path().to_str(),
            Some(other.path().into()),
        );
        assert_eq!(chosen.unwrap().root(), named.path());
    }
}
