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
/// `major.minor` of the Python that this library is linked with.
pub(crate) const PYTHON_VERSION: &str = match option_env!("KERNEL_BRIDGE_PYTHON_VERSION") {
    Some(version) => version,
    None => "3.11",
};
/// The environment that this library was built in.
const BUILT_IN: Option<&str> = option_env!("KERNEL_BRIDGE_ENVIRONMENT");

/// A Python environment (a folder with `bin/python` and `pyvenv.cfg`) that fits this library.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Environment {
    root: PathBuf,
    site_packages: PathBuf,
}

impl Environment {
    /// The environment of `KERNEL_PYTHON_ENVIRONMENT`, else the active one (`VIRTUAL_ENV`), else the
    /// one that this library was built in.
    ///
    /// A named environment is used or refused. The active one may belong to something else that
    /// the user works on, so where it does not fit and the build's own does, that one is taken.
    ///
    /// # Errors
    /// [`EnvironmentError`] about the first of the three that is there.
    pub fn discover() -> Result<Self, EnvironmentError> {
        Self::choose(
            std::env::var_os(VARIABLE),
            std::env::var_os("VIRTUAL_ENV"),
            BUILT_IN,
        )
    }

    fn choose(
        named: Option<OsString>,
        active: Option<OsString>,
        built_in: Option<&str>,
    ) -> Result<Self, EnvironmentError> {
        let set = |value: Option<OsString>| value.filter(|v| !v.is_empty()).map(PathBuf::from);
        if let Some(root) = set(named) {
            return Self::at(&root);
        }
        let built_in = built_in.map(Path::new).filter(|root| root.is_dir());
        match (set(active), built_in) {
            (None, None) => Err(EnvironmentError::None),
            (None, Some(root)) => Self::at(root),
            (Some(root), None) => Self::at(&root),
            (Some(active), Some(built_in)) => Self::at(&active).or_else(|unfit| {
                let other = Self::at(built_in).map_err(|_| unfit.clone())?;
                tracing::info!(
                    "the active environment is passed over for `{}`: {unfit}",
                    built_in.display()
                );
                Ok(other)
            }),
        }
    }

    /// The environment in a folder.
    ///
    /// # Errors
    /// [`EnvironmentError`]: what is missing there, or of another version.
    pub fn at(root: &Path) -> Result<Self, EnvironmentError> {
        let root = std::path::absolute(root).unwrap_or_else(|_| root.to_owned());
        if !root.join("bin/python").exists() {
            return Err(EnvironmentError::NoPython { root });
        }
        let settings = Settings::read(&root);
        let found = settings
            .version
            .unwrap_or_else(|| PYTHON_VERSION.to_owned());
        if found != PYTHON_VERSION {
            return Err(EnvironmentError::PythonVersion { root, found });
        }
        if let Some(base) = settings.base
            && !has_shared_library(&base)
        {
            return Err(EnvironmentError::NoSharedLibrary { root, base });
        }
        let site_packages = root.join(format!("lib/python{found}/site-packages"));
        let environment = Self {
            root,
            site_packages,
        };
        environment.check_packages()?;
        Ok(environment)
    }

    fn check_packages(&self) -> Result<(), EnvironmentError> {
        let root = || self.root.clone();
        let version = |package| {
            self.installed(package)
                .ok_or_else(|| EnvironmentError::Missing {
                    root: root(),
                    package,
                })
        };
        let torch = version("torch")?;
        if torch.split('+').next() != Some(TORCH_VERSION) {
            return Err(EnvironmentError::TorchVersion {
                root: root(),
                found: torch,
            });
        }
        let jax = version("jax")?;
        version("jaxlib")?;
        if is_faulty_jax(&jax) {
            return Err(EnvironmentError::JaxVersion {
                root: root(),
                found: jax,
            });
        }
        Ok(())
    }

    /// The environment's folder.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The folder with its packages.
    pub fn site_packages(&self) -> &Path {
        &self.site_packages
    }

    /// The interpreter within it.
    pub fn python(&self) -> PathBuf {
        self.root.join("bin/python")
    }

    /// The version of an installed package, read from its dist-info folder.
    pub fn installed(&self, package: &str) -> Option<String> {
        let wanted = normalised(package);
        fs::read_dir(&self.site_packages)
            .ok()?
            .filter_map(Result::ok)
            .find_map(|entry| {
                let name = entry.file_name().into_string().ok()?;
                let (package, version) = name.strip_suffix(".dist-info")?.split_once('-')?;
                (normalised(package) == wanted).then(|| version.to_owned())
            })
    }
}

fn normalised(package: &str) -> String {
    package.replace(['-', '.'], "_").to_lowercase()
}

/// jax 0.11 and 0.12 give a kernel that is called with several grids the size of the first
/// (jax-ml/jax#40847): wrong results without a word.
fn is_faulty_jax(version: &str) -> bool {
    version.starts_with("0.11.") || version.starts_with("0.12.")
}

/// What pyvenv.cfg says.
struct Settings {
    /// `major.minor`.
    version: Option<String>,
    /// Folder of the Python that the environment was made from.
    base: Option<PathBuf>,
}

impl Settings {
    fn read(root: &Path) -> Self {
        let text = fs::read_to_string(root.join("pyvenv.cfg")).unwrap_or_default();
        let value = |names: &[&str]| {
            text.lines().find_map(|line| {
                let (key, value) = line.split_once('=')?;
                names.contains(&key.trim()).then(|| value.trim())
            })
        };
        let version = value(&["version", "version_info"]).and_then(|version| {
            let mut parts = version.split('.');
            Some(format!("{}.{}", parts.next()?, parts.next()?))
        });
        // `home` is the folder with the base interpreter, usually `.../bin`.
        let base = value(&["home"]).and_then(|home| Path::new(home).parent().map(Path::to_owned));
        Self { version, base }
    }
}

/// Whether a Python installation brings libpython as a shared library. Looked at on Linux only:
/// elsewhere it has other names and places.
fn has_shared_library(base: &Path) -> bool {
    if !cfg!(target_os = "linux") {
        return true;
    }
    let name = format!("libpython{PYTHON_VERSION}.so");
    let multiarch = format!("lib/{}-linux-gnu", std::env::consts::ARCH);
    ["lib", "lib64", &multiarch].iter().any(|folder| {
        fs::read_dir(base.join(folder)).is_ok_and(|entries| {
            entries
                .filter_map(Result::ok)
                .any(|entry| entry.file_name().to_string_lossy().starts_with(&name))
        })
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// An environment that fits, without anything in its packages.
    pub(crate) fn complete() -> tempfile::TempDir {
        fake(PYTHON_VERSION, &COMPLETE)
    }

    #[test]
    fn the_torch_of_tch_is_the_one_that_is_pinned() {
        let pins = include_str!("../../../python-requirements.txt");
        assert!(
            pins.lines()
                .any(|line| line == format!("torch=={TORCH_VERSION}"))
        );
    }

    const COMPLETE: [&str; 3] = ["torch-2.13.0+cpu", "jax-0.10.2", "jaxlib-0.10.2"];

    /// An environment in a temporary folder, with a base Python beside it.
    fn fake(python: &str, packages: &[&str]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        fs::create_dir_all(root.join("bin")).unwrap();
        fs::create_dir_all(root.join("base/lib")).unwrap();
        fs::write(
            root.join(format!("base/lib/libpython{PYTHON_VERSION}.so.1.0")),
            "",
        )
        .unwrap();
        fs::write(root.join("bin/python"), "").unwrap();
        let home = root.join("base/bin");
        fs::write(
            root.join("pyvenv.cfg"),
            format!("home = {}\nversion = {python}.7\n", home.display()),
        )
        .unwrap();
        let site = root.join(format!("lib/python{python}/site-packages"));
        for package in packages {
            fs::create_dir_all(site.join(format!("{package}.dist-info"))).unwrap();
        }
        folder
    }

    #[test]
    fn a_fitting_environment_is_taken_and_knows_its_packages() {
        let folder = fake(
            PYTHON_VERSION,
            &[&COMPLETE[..], &["torch_tpu-0.2.0"]].concat(),
        );
        let environment = Environment::at(folder.path()).unwrap();
        assert_eq!(environment.installed("torch-tpu").as_deref(), Some("0.2.0"));
        assert_eq!(environment.installed("tokamax"), None);
    }

    #[test]
    fn each_unfit_environment_gets_its_own_error_and_hint() {
        let empty = tempfile::tempdir().unwrap();
        let old = fake("3.9", &COMPLETE);
        let new = fake("3.19", &COMPLETE);
        let bare = fake(PYTHON_VERSION, &[]);
        let other = fake(
            PYTHON_VERSION,
            &["torch-2.12.1", "jax-0.10.2", "jaxlib-0.10.2"],
        );
        let without_jax = fake(PYTHON_VERSION, &["torch-2.13.0"]);
        let static_python = fake(PYTHON_VERSION, &COMPLETE);
        fs::remove_dir_all(static_python.path().join("base/lib")).unwrap();
        for (folder, words) in [
            (&empty, "no Python"),
            (&old, "holds Python 3.9"),
            (&new, "holds Python 3.19"),
            (&bare, "`torch` is not installed"),
            (&other, "holds torch 2.12.1"),
            (&without_jax, "`jax` is not installed"),
            (&static_python, "no shared library"),
        ] {
            let error = Environment::at(folder.path()).unwrap_err();
            assert!(error.to_string().contains(words), "{error}");
            assert!(
                error
                    .to_string()
                    .contains(&folder.path().display().to_string()),
                "{error}"
            );
            assert!(error.hint().contains("cargo xtask env"), "{error:?}");
        }
        assert_eq!(
            Environment::choose(None, None, None),
            Err(EnvironmentError::None)
        );
    }

    #[test]
    fn jax_40847_versions_that_mix_up_grids_are_refused() {
        let faulty = fake(
            PYTHON_VERSION,
            &["torch-2.13.0", "jax-0.11.1", "jaxlib-0.11.1"],
        );
        let error = Environment::at(faulty.path()).unwrap_err();
        assert!(
            matches!(error, EnvironmentError::JaxVersion { .. }),
            "{error}"
        );
        assert!(error.hint().contains("cargo xtask env"));
    }

    #[test]
    fn pyo3_4841_a_named_environment_goes_before_all_others() {
        let named = fake(PYTHON_VERSION, &COMPLETE);
        let other = fake(PYTHON_VERSION, &COMPLETE);
        let chosen = Environment::choose(
            Some(named.path().into()),
            Some(other.path().into()),
            other.path().to_str(),
        );
        assert_eq!(chosen.unwrap().root(), named.path());
        let unfit = tempfile::tempdir().unwrap();
        let chosen = Environment::choose(Some(unfit.path().into()), None, other.path().to_str());
        assert!(matches!(chosen, Err(EnvironmentError::NoPython { .. })));
    }

    #[test]
    fn an_active_environment_of_another_project_does_not_stop_the_build_s_own() {
        let active = fake(PYTHON_VERSION, &["requests-2.0"]);
        let built_in = fake(PYTHON_VERSION, &COMPLETE);
        let choose = |built_in| Environment::choose(None, Some(active.path().into()), built_in);
        assert_eq!(
            choose(built_in.path().to_str()).unwrap().root(),
            built_in.path()
        );
        assert!(matches!(
            choose(None),
            Err(EnvironmentError::Missing {
                package: "torch",
                ..
            })
        ));
    }
}
