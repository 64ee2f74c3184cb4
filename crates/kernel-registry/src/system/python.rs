//! Versions of installed Python packages, read from folder names.
//!
//! A package's `NAME-VERSION.dist-info` folder says its version, so that resolving and `doctor` need
//! not start Python, which takes seconds once torch is imported.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use kernel_spec::version::MajorMinor;

/// Names the environment to use, before VIRTUAL_ENV.
const VARIABLE: &str = "KERNEL_PYTHON_ENVIRONMENT";

/// An environment's folder, and what is installed in it.
#[derive(Debug, Clone)]
pub struct PythonEnvironment {
    root: PathBuf,
    packages: PathBuf,
    /// Versions by normalised name.
    versions: BTreeMap<String, String>,
}

/// What PyTorch was built for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TorchFlavour {
    /// Version of CUDA.
    pub cuda: Option<MajorMinor>,
    /// Version of HIP, which is that of ROCm.
    pub hip: Option<MajorMinor>,
    /// Version of the oneAPI toolkit.
    pub xpu: Option<MajorMinor>,
    /// Whether the wheel's name says that it uses the C++11 ABI.
    pub cxx11_abi: bool,
}

impl PythonEnvironment {
    /// The project's environment: KERNEL_PYTHON_ENVIRONMENT, VIRTUAL_ENV, `.venv` in this folder or one
    /// above it, or the one that this program was built beside. None where there is no such folder.
    pub fn find() -> Option<Self> {
        let variable = |name| {
            std::env::var_os(name)
                .filter(|value| !value.is_empty())
                .map(PathBuf::from)
        };
        if let Some(root) = variable(VARIABLE).or_else(|| variable("VIRTUAL_ENV")) {
            return Self::at(&root);
        }
        let here = std::env::current_dir().ok();
        let beside = here
            .iter()
            .flat_map(|here| here.ancestors())
            .find_map(|folder| Self::at(&folder.join(".venv")));
        // What the runtime library is built with, see `.cargo/config.toml`.
        let of_the_build = || {
            option_env!("PYO3_PYTHON")
                .map(Path::new)?
                .ancestors()
                .nth(2)
        };
        beside.or_else(|| Self::at(of_the_build()?))
    }

    /// The environment in a folder; none where it holds no `site-packages`.
    pub fn at(root: &Path) -> Option<Self> {
        let packages = site_packages(root)?;
        let mut versions = BTreeMap::new();
        for entry in fs::read_dir(&packages).ok()?.flatten() {
            let Ok(name) = entry.file_name().into_string() else {
                continue;
            };
            if let Some((package, version)) = name
                .strip_suffix(".dist-info")
                .and_then(|name| name.rsplit_once('-'))
            {
                versions.insert(normalise(package), version.to_owned());
            }
        }
        Some(Self {
            root: root.to_owned(),
            packages,
            versions,
        })
    }

    /// Its folder.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The folder with its packages.
    pub fn site_packages(&self) -> &Path {
        &self.packages
    }

    /// The version of a package, by any spelling of its name.
    pub fn version(&self, package: &str) -> Option<&str> {
        self.versions.get(&normalise(package)).map(String::as_str)
    }

    /// The version of Python, from the name of the folder that holds the packages.
    pub fn python_version(&self) -> Option<&str> {
        self.packages
            .parent()?
            .file_name()?
            .to_str()?
            .strip_prefix("python")
    }

    /// What PyTorch was built for, from the assignments in `torch/version.py`.
    pub fn torch_flavour(&self) -> TorchFlavour {
        let text = fs::read_to_string(self.packages.join("torch/version.py")).unwrap_or_default();
        let value = |name: &str| {
            text.lines().find_map(|line| {
                let (target, value) = line.split_once('=')?;
                let target = target.split(':').next()?.trim();
                (target == name).then(|| value.trim().trim_matches(['\'', '"']))
            })
        };
        let number = |name| value(name).and_then(|text| text.parse().ok());
        TorchFlavour {
            cuda: number("cuda"),
            hip: number("hip"),
            xpu: value("xpu").and_then(xpu_version),
            cxx11_abi: self
                .version("torch")
                .is_some_and(|version| version.contains("cxx11.abi")),
        }
    }
}

/// The oneAPI version as PyTorch spells it, `20250101`: the year, a zero, and the minor version.
fn xpu_version(text: &str) -> Option<MajorMinor> {
    let major = text.get(..4)?.parse().ok()?;
    let minor = text.get(5..6)?.parse().ok()?;
    Some(MajorMinor::new(major, minor))
}

fn site_packages(root: &Path) -> Option<PathBuf> {
    let windows = root.join("Lib/site-packages");
    if windows.is_dir() {
        return Some(windows);
    }
    let mut found: Vec<_> = fs::read_dir(root.join("lib"))
        .ok()?
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().starts_with("python3"))
        .map(|entry| entry.path().join("site-packages"))
        .filter(|packages| packages.is_dir())
        .collect();
    found.sort();
    found.pop()
}

/// Package names are compared without case, and with one sign for `-`, `_` and `.`.
fn normalise(name: &str) -> String {
    name.to_ascii_lowercase().replace(['_', '.'], "-")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(folders: &[&str]) -> (tempfile::TempDir, PythonEnvironment) {
        let root = tempfile::tempdir().unwrap();
        let packages = root.path().join("lib/python3.11/site-packages");
        for folder in folders {
            fs::create_dir_all(packages.join(folder)).unwrap();
        }
        fs::create_dir_all(&packages).unwrap();
        let environment = PythonEnvironment::at(root.path()).unwrap();
        (root, environment)
    }

    #[test]
    fn versions_are_read_from_folder_names() {
        let (_root, environment) = environment(&[
            "torch-2.13.0+cpu.dist-info",
            "apache_tvm_ffi-0.1.0.dist-info",
            "torch",
            "odd.dist-info",
        ]);
        assert_eq!(environment.version("torch"), Some("2.13.0+cpu"));
        assert_eq!(environment.version("Apache-TVM.ffi"), Some("0.1.0"));
        assert_eq!(environment.version("jax"), None);
        assert_eq!(environment.python_version(), Some("3.11"));
    }

    #[test]
    fn the_flavour_is_read_without_running_python() {
        let (root, environment) = environment(&["torch"]);
        let file = root
            .path()
            .join("lib/python3.11/site-packages/torch/version.py");
        fs::write(
            &file,
            "cuda: Optional[str] = '13.0'\nhip: Optional[str] = None\n",
        )
        .unwrap();
        let flavour = environment.torch_flavour();
        assert_eq!(
            (flavour.cuda, flavour.hip),
            (Some(MajorMinor::new(13, 0)), None)
        );
        fs::write(&file, "cuda = None\nxpu: Optional[str] = '20250101'\n").unwrap();
        assert_eq!(
            environment.torch_flavour().xpu,
            Some(MajorMinor::new(2025, 1))
        );
    }

    #[test]
    fn a_folder_without_packages_is_no_environment() {
        let root = tempfile::tempdir().unwrap();
        assert!(PythonEnvironment::at(root.path()).is_none());
    }
}
