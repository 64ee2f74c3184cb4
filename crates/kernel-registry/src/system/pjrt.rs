//! Where the PJRT plug-in for the CPU is. It is looked for by name only; the bridge opens it.

use std::path::{Path, PathBuf};

/// Names the plug-in's library; an empty value means that none is to be used.
pub const VARIABLE: &str = "KERNEL_PJRT_PLUGIN";

/// The package with XLA's CPU plug-in, and the file in it. jaxlib has the same XLA in it but does
/// not export `GetPjrtApi`.
const PACKAGE: &str = "lammps_jax_pjrt_cpu";
const FILE: &str = "pjrt_c_api_cpu_plugin.so";

/// Why kernels run in JAX rather than in a PJRT plug-in.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoPlugin {
    /// The variable is set to nothing.
    #[error("{VARIABLE} is set to nothing")]
    Unwanted,
    /// The named file is not there.
    #[error("{VARIABLE} names `{}`, which is not there", .0.display())]
    Missing(PathBuf),
    /// The environment has none.
    #[error("`{package}` is not installed", package = PACKAGE.replace('_', "-"))]
    NotInstalled,
    /// XLA's flags are for the XLA in jaxlib: another build of it ends the process where it does not
    /// know one.
    #[error("XLA_FLAGS is set, and the plug-in's XLA may not know each of its flags")]
    Flags,
}

/// The plug-in that a process with these `site-packages` uses.
///
/// # Errors
/// [`NoPlugin`] with the reason where it uses none.
pub fn find_plugin(site_packages: &Path) -> Result<PathBuf, NoPlugin> {
    choose(
        std::env::var_os(VARIABLE).map(PathBuf::from),
        std::env::var_os("XLA_FLAGS").is_some_and(|flags| !flags.is_empty()),
        site_packages,
    )
}

fn choose(
    named: Option<PathBuf>,
    has_flags: bool,
    site_packages: &Path,
) -> Result<PathBuf, NoPlugin> {
    match named {
        Some(path) if path.as_os_str().is_empty() => Err(NoPlugin::Unwanted),
        Some(path) if path.is_file() => Ok(path),
        Some(path) => Err(NoPlugin::Missing(path)),
        None if has_flags => Err(NoPlugin::Flags),
        None => {
            let path = site_packages.join(PACKAGE).join(FILE);
            path.is_file().then_some(path).ok_or(NoPlugin::NotInstalled)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_named_plug_in_goes_before_the_installed_one_and_each_absence_has_its_reason() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        let find = |named: Option<&Path>, flags| choose(named.map(Path::to_owned), flags, root);
        assert_eq!(
            find(None, false).unwrap_err().to_string(),
            "`lammps-jax-pjrt-cpu` is not installed"
        );
        let installed = root.join(PACKAGE).join(FILE);
        std::fs::create_dir_all(installed.parent().unwrap()).unwrap();
        std::fs::write(&installed, "").unwrap();
        assert_eq!(find(None, false), Ok(installed));
        assert_eq!(find(None, true), Err(NoPlugin::Flags));
        let other = root.join("other.so");
        assert_eq!(
            find(Some(&other), false),
            Err(NoPlugin::Missing(other.clone()))
        );
        std::fs::write(&other, "").unwrap();
        assert_eq!(find(Some(&other), true), Ok(other));
        assert_eq!(find(Some(Path::new("")), false), Err(NoPlugin::Unwanted));
    }
}
