//! Folders with kernels for machines that reach no Hub.
//!
//! A vendored kernel is an ordinary local kernel, `<folder>/<owner>/<name>/build/<variant>/`, so that
//! LOCAL_KERNELS of the Python library and of this one can name it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use kernel_spec::RepositoryId;
use kernel_spec::path::{METADATA_FILE, SIGNATURE_FILE};

use crate::cache::{names, write_atomically};
use crate::error::{Error, Result};
use crate::install::InstalledKernel;
use crate::verified::VerifiedKernel;

/// A kernel that was put into a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Vendored {
    /// Its repository.
    pub repository: RepositoryId,
    /// Name of the build.
    pub variant: String,
    /// The repository's folder.
    pub path: PathBuf,
    /// Bytes that were written.
    pub bytes: u64,
}

/// Copies a kernel, and those that it needs, into a folder. What is copied is what was verified.
pub fn vendor(kernel: &InstalledKernel, folder: &Path) -> Result<Vec<Vendored>> {
    let verified = kernel.verified()?;
    let mut vendored = Vec::new();
    copy(&verified, folder, &mut vendored)?;
    Ok(vendored)
}

fn copy(kernel: &VerifiedKernel, folder: &Path, done: &mut Vec<Vendored>) -> Result<()> {
    for dependency in kernel.dependencies() {
        copy(dependency, folder, done)?;
    }
    let Some(repository) = kernel.repository() else {
        return Err(Error::LocalKernel {
            path: kernel.path().to_owned(),
            reason: "only kernels of a repository can be vendored".to_owned(),
        });
    };
    let path = folder.join(repository.owner()).join(repository.name());
    let variant = kernel.variant().to_owned();
    if done
        .iter()
        .any(|known| known.path == path && known.variant == variant)
    {
        return Ok(());
    }
    let target = path.join("build").join(&variant);
    // What an earlier version left would be files that no digest knows.
    match fs::remove_dir_all(&target) {
        Err(error) if !crate::cache::is_absent(&error) => {
            return Err(Error::io("remove", &target)(error));
        }
        _ => {}
    }
    let mut bytes = 0;
    for (name, content) in kernel.files() {
        write_atomically(&target.join(name), content)?;
        bytes += content.len() as u64;
    }
    // The very bytes that were checked: a signature is over bytes. Metadata comes last, because a
    // build without it does not count as one.
    let documents = kernel.documents();
    if let Some(signature) = &documents.signature {
        write_atomically(&target.join(SIGNATURE_FILE), signature)?;
        bytes += signature.len() as u64;
    }
    write_atomically(&target.join(METADATA_FILE), &documents.metadata)?;
    bytes += documents.metadata.len() as u64;
    done.push(Vendored {
        repository: repository.clone(),
        variant,
        path,
        bytes,
    });
    Ok(())
}

/// The kernels in a folder that [`vendor`] filled, as overrides for a registry.
pub fn vendored(folder: &Path) -> Result<BTreeMap<RepositoryId, PathBuf>> {
    if !folder.is_dir() {
        let reason = "there is no such folder".to_owned();
        return Err(Error::LocalKernel {
            path: folder.to_owned(),
            reason,
        });
    }
    let mut kernels = BTreeMap::new();
    for owner in names(folder)? {
        for name in names(&folder.join(&owner))? {
            let path = folder.join(&owner).join(&name);
            if let Ok(repository) = RepositoryId::new(&owner, &name)
                && path.join("build").is_dir()
            {
                kernels.insert(repository, path);
            }
        }
    }
    Ok(kernels)
}
