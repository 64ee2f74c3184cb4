//! Brings the files of resolved kernels to this machine.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use kernel_spec::path::METADATA_FILE;
use kernel_spec::{CommitId, RepositoryId};

use crate::blob::BlobId;
use crate::cache::{VariantFiles, unless_unwritable};
use crate::embedded::EmbeddedBuild;
use crate::error::{Error, Result};
use crate::events::Event;
use crate::hub::Download;
use crate::registry::Registry;
use crate::resolved::{Location, Resolved};
use crate::tree::Tree;
use crate::verified::VerifiedKernel;

/// Files that are brought at the same time.
const PARALLEL: usize = 8;

/// A kernel whose files are on this machine, with those of the kernels that it needs.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct InstalledKernel {
    /// What was installed.
    pub resolved: Arc<Resolved>,
    /// The build's folder.
    pub path: PathBuf,
    /// Bytes of the build.
    pub bytes: u64,
    /// Whether every file was here already.
    pub cached: bool,
    /// The kernels that it needs, directly or through others, each once and before what needs it.
    pub needed: Vec<InstalledKernel>,
}

impl InstalledKernel {
    /// Reads every file once and checks the bytes against the digest; those of the kernels that it
    /// needs first. What is returned is what may be executed.
    pub fn verified(&self) -> Result<VerifiedKernel> {
        let mut done: Vec<(&Arc<Resolved>, VerifiedKernel)> = Vec::new();
        for kernel in self.needed.iter().chain([self]) {
            let dependencies = kernel
                .resolved
                .dependencies
                .iter()
                .filter_map(|needed| {
                    let found = done
                        .iter()
                        .find(|(resolved, _)| Arc::ptr_eq(resolved, needed));
                    found.map(|(_, verified)| verified.clone())
                })
                .collect();
            let verified = VerifiedKernel::read(&kernel.resolved, &kernel.path, dependencies)?;
            done.push((&kernel.resolved, verified));
        }
        // The list ends with this kernel, so that there is a last one.
        done.pop()
            .map(|(_, verified)| verified)
            .ok_or_else(|| Error::LocalKernel {
                path: self.path.clone(),
                reason: "nothing was verified".to_owned(),
            })
    }
}

/// A build's folder, its size, and whether it was complete before.
struct Placed {
    path: PathBuf,
    bytes: u64,
    cached: bool,
}

impl Registry {
    pub(crate) async fn install_tree(&self, resolved: &Resolved) -> Result<InstalledKernel> {
        let root = Arc::new(resolved.clone());
        let mut installed = Vec::new();
        for kernel in root.tree() {
            let placed = self.place(&kernel).await?;
            installed.push(InstalledKernel {
                resolved: kernel,
                path: placed.path,
                bytes: placed.bytes,
                cached: placed.cached,
                needed: Vec::new(),
            });
        }
        // The root is the last of its tree.
        let mut root = installed.pop().ok_or_else(|| Error::LocalKernel {
            path: PathBuf::from(resolved.name()),
            reason: "nothing was installed".to_owned(),
        })?;
        root.needed = installed;
        Ok(root)
    }

    async fn place(&self, kernel: &Resolved) -> Result<Placed> {
        match (&kernel.location, &kernel.repository, &kernel.commit) {
            (Location::Embedded(build), Some(repository), Some(commit)) => {
                let placed = self.unpack(build, repository, commit)?;
                self.note_revision(kernel, repository, commit)?;
                Ok(placed)
            }
            (Location::Cache(listed), Some(repository), Some(commit)) => {
                let placed = match listed {
                    Some(files) => self.complete(kernel, repository, commit, files).await?,
                    None => self.as_found(kernel, repository, commit)?,
                };
                self.note_revision(kernel, repository, commit)?;
                Ok(placed)
            }
            (Location::Folder(path), _, _) => {
                let bytes = folder_size(path)?;
                Ok(Placed {
                    path: path.clone(),
                    bytes,
                    cached: true,
                })
            }
            // A commit is what puts a kernel into the cache, so this cannot be reached.
            (Location::Embedded(_) | Location::Cache(_), _, _) => Err(Error::NotCached {
                kernel: kernel.name(),
                cache: self.cache().root().to_owned(),
                missing: Some("it has no commit".to_owned()),
            }),
        }
    }

    /// Writes which commit the branch has, so that it is found without a network later.
    fn note_revision(
        &self,
        kernel: &Resolved,
        repository: &RepositoryId,
        commit: &CommitId,
    ) -> Result<()> {
        match &kernel.revision {
            Some(revision) => {
                let cache = self.cache();
                unless_unwritable(cache.write_reference(repository, revision, commit))
            }
            None => Ok(()),
        }
    }

    /// Puts a build that is inside the program into the cache.
    fn unpack(
        &self,
        build: &EmbeddedBuild,
        repository: &RepositoryId,
        commit: &CommitId,
    ) -> Result<Placed> {
        let cache = self.cache();
        let path = cache.variant(repository, commit, build.variant);
        let mut placed = Placed {
            path,
            bytes: 0,
            cached: true,
        };
        for (name, bytes) in build.files {
            placed.bytes += bytes.len() as u64;
            let blob = BlobId::of_git(bytes);
            let file = placed.path.join(name);
            if blob.matches_file(&file).map_err(Error::io("read", &file))? {
                continue;
            }
            if std::mem::replace(&mut placed.cached, false) {
                cache.prepare()?;
            }
            cache.write_blob(repository, &blob, bytes)?;
            cache.link(
                repository,
                commit,
                &format!("build/{}/{name}", build.variant),
                &blob,
            )?;
        }
        Ok(placed)
    }

    /// Brings what is missing or damaged of a build whose file list is known. Without a network,
    /// only what is missing is an error here; what is damaged is told by the digest.
    async fn complete(
        &self,
        kernel: &Resolved,
        repository: &RepositoryId,
        commit: &CommitId,
        listed: &VariantFiles,
    ) -> Result<Placed> {
        let path = self.cache().variant(repository, commit, &kernel.variant);
        let offline = self.settings().offline;
        let mut missing = Vec::new();
        for (name, blob) in &listed.files {
            let file = path.join(name);
            let here = if offline {
                file.exists()
            } else {
                blob.matches_file(&file).map_err(Error::io("read", &file))?
            };
            if !here {
                missing.push((name, blob));
            }
        }
        let (bytes, cached) = (listed.size(), missing.is_empty());
        if offline && !cached {
            return Err(self.incomplete(kernel, missing.iter().map(|(name, _)| name.as_str())));
        }
        if !cached {
            let files = missing
                .into_iter()
                .map(|(name, blob)| (format!("build/{}/{name}", kernel.variant), blob.clone()))
                .collect();
            self.bring(repository, commit, files).await?;
        }
        Ok(Placed {
            path,
            bytes,
            cached,
        })
    }

    async fn bring(
        &self,
        repository: &RepositoryId,
        commit: &CommitId,
        files: Vec<(String, BlobId)>,
    ) -> Result<()> {
        let (cache, hub) = (self.cache(), self.hub()?);
        cache.prepare()?;
        self.events().send(Event::DownloadStarted {
            repository: repository.clone(),
            bytes: files.iter().map(|(_, blob)| blob.size()).sum(),
            files: files.len(),
        });
        stream::iter(files.into_iter().map(|(path, blob)| async move {
            let download = Download {
                repository,
                commit,
                path,
                blob,
            };
            hub.download(cache, &download).await?;
            cache.link(repository, commit, &download.path, &download.blob)
        }))
        .buffer_unordered(PARALLEL)
        .try_collect::<()>()
        .await?;
        self.events().send(Event::DownloadFinished {
            repository: repository.clone(),
        });
        Ok(())
    }

    /// A build that another program put into the cache, taken as it is. What belongs to it is said
    /// by the digest of its metadata.
    fn as_found(
        &self,
        kernel: &Resolved,
        repository: &RepositoryId,
        commit: &CommitId,
    ) -> Result<Placed> {
        let path = self.cache().variant(repository, commit, &kernel.variant);
        if let Some(digest) = &kernel.metadata.digest {
            let missing: Vec<_> = digest
                .files
                .keys()
                .filter(|name| !path.join(name).exists())
                .collect();
            if !missing.is_empty() {
                return Err(self.incomplete(kernel, missing.into_iter().map(String::as_str)));
            }
        }
        let bytes = folder_size(&path)?;
        Ok(Placed {
            path,
            bytes,
            cached: true,
        })
    }

    fn incomplete<'a>(
        &self,
        kernel: &Resolved,
        missing: impl ExactSizeIterator<Item = &'a str>,
    ) -> Error {
        let count = missing.len();
        let first = missing.into_iter().next().unwrap_or(METADATA_FILE);
        let missing = match count {
            0 | 1 => format!("`{first}` is missing"),
            _ => format!("`{first}` and {} more of its files are missing", count - 1),
        };
        let cache = self.cache().root().to_owned();
        Error::NotCached {
            kernel: kernel.name(),
            cache,
            missing: Some(missing),
        }
    }
}

fn folder_size(folder: &Path) -> Result<u64> {
    let tree = Tree::walk(folder)?;
    let size = |path: &PathBuf| fs::metadata(path).map(|metadata| metadata.len());
    tree.files
        .iter()
        .map(|(_, path)| size(path).map_err(Error::io("read", path)))
        .sum()
}
