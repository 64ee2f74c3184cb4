//! Where things of this repository lie on disk.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// The checkout that this xtask was built from.
pub(crate) struct Workspace {
    root: PathBuf,
}

impl Workspace {
    /// The workspace root: two folders above this crate.
    pub(crate) fn find() -> Result<Self> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"))
            .ancestors()
            .nth(2)
            .context("this crate does not lie in `crates/xtask` of a checkout")?
            .to_path_buf();
        Ok(Self { root })
    }

    /// The folder with the workspace's Cargo.toml.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// The Python environment, ignored by git.
    pub(crate) fn environment(&self) -> PathBuf {
        self.root.join(".venv")
    }

    /// The one file that pins every Python package.
    pub(crate) fn requirements(&self) -> PathBuf {
        self.root.join("python-requirements.txt")
    }

    /// Model directories, ignored by git.
    pub(crate) fn models(&self) -> PathBuf {
        self.root.join("models")
    }

    /// Programs and libraries that cargo built with the profile `release`.
    pub(crate) fn built(&self) -> PathBuf {
        std::env::var_os("CARGO_TARGET_DIR")
            .map_or_else(|| self.root.join("target"), |target| self.root.join(target))
            .join("release")
    }
}
