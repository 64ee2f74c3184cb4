//! What the cache holds, and removing some of it. Models and data sets in the same cache are not
//! looked at.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};

use kernel_spec::{CommitId, RepositoryId};

use super::{Cache, is_absent, names};
use crate::error::{Error, Result};

/// Start of the folder names of kernels.
const KERNEL_FOLDER: &str = "kernels--";

/// What the cache holds of kernels.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CacheUsage {
    /// The repositories, ordered by id.
    pub repositories: Vec<CachedRepository>,
}

/// What the cache holds of one repository.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct CachedRepository {
    /// Its id.
    pub repository: RepositoryId,
    /// Bytes on disk, each content counted once.
    pub bytes: u64,
    /// Branches and tags with their commits.
    pub references: BTreeMap<String, CommitId>,
    /// Commits of which there are files.
    pub snapshots: Vec<CachedSnapshot>,
}

/// What the cache holds of one commit.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct CachedSnapshot {
    /// The commit.
    pub commit: CommitId,
    /// The builds that were fetched, by folder name.
    pub variants: Vec<String>,
}

/// What a removal removed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Removal {
    /// Files.
    pub files: u64,
    /// Bytes.
    pub bytes: u64,
}

impl CacheUsage {
    /// Bytes of all repositories.
    pub fn bytes(&self) -> u64 {
        self.repositories
            .iter()
            .map(|repository| repository.bytes)
            .sum()
    }
}

impl Cache {
    /// Looks at every kernel in the cache.
    pub fn usage(&self) -> Result<CacheUsage> {
        let mut repositories = Vec::new();
        for repository in self.repositories()? {
            let folder = self.repository(&repository);
            let mut references = BTreeMap::new();
            self.collect_references(&repository, &folder.join("refs"), "", &mut references)?;
            let mut snapshots = Vec::new();
            for name in names(&folder.join("snapshots"))? {
                if let Ok(commit) = name.parse::<CommitId>() {
                    let variants = self.fetched_variants(&repository, &commit)?;
                    snapshots.push(CachedSnapshot { commit, variants });
                }
            }
            let bytes = size(&folder)?.bytes;
            repositories.push(CachedRepository {
                repository,
                bytes,
                references,
                snapshots,
            });
        }
        Ok(CacheUsage { repositories })
    }

    fn repositories(&self) -> Result<Vec<RepositoryId>> {
        // Ids cannot contain `--`, so the folder's name reads in one way only.
        let id = |name: &String| {
            let (owner, name) = name.strip_prefix(KERNEL_FOLDER)?.split_once("--")?;
            RepositoryId::new(owner, name).ok()
        };
        Ok(names(&self.root)?.iter().filter_map(id).collect())
    }

    fn collect_references(
        &self,
        repository: &RepositoryId,
        folder: &Path,
        start: &str,
        found: &mut BTreeMap<String, CommitId>,
    ) -> Result<()> {
        for name in names(folder)? {
            let revision = format!("{start}{name}");
            let path = folder.join(&name);
            if path.is_dir() {
                self.collect_references(repository, &path, &format!("{revision}/"), found)?;
            } else if let Some(commit) = self.reference(repository, &revision)? {
                found.insert(revision, commit);
            }
        }
        Ok(())
    }

    /// Removes what no snapshot uses: contents that nothing links to, and what interrupted
    /// downloads and writes left. Every kernel that could be loaded before still can be.
    pub fn prune(&self) -> Result<Removal> {
        let mut removal = Removal::default();
        for repository in self.repositories()? {
            let folder = self.repository(&repository);
            let used = linked_blobs(&folder.join("snapshots"))?;
            for name in names(&folder.join("blobs"))? {
                let path = folder.join("blobs").join(&name);
                if !used.contains(&name) && !self.is_locked(&repository, &name) {
                    removal.remove_file(&path)?;
                }
            }
        }
        Ok(removal)
    }

    /// Removes kernels: those named, or all.
    pub fn clean(&self, only: &[RepositoryId]) -> Result<Removal> {
        let mut removal = Removal::default();
        for repository in self.repositories()? {
            if !only.is_empty() && !only.contains(&repository) {
                continue;
            }
            let listings = self
                .own_folder()
                .join("listings")
                .join(repository.cache_folder());
            let locks = self.root.join(".locks").join(repository.cache_folder());
            for folder in [self.repository(&repository), listings, locks] {
                removal.remove_folder(&folder)?;
            }
        }
        Ok(removal)
    }

    /// Whether a process is just writing the blob that a file belongs to.
    fn is_locked(&self, repository: &RepositoryId, name: &str) -> bool {
        let id = name.split('.').next().unwrap_or(name);
        let folder = self.root.join(".locks").join(repository.cache_folder());
        fs::File::open(folder.join(format!("{id}.lock")))
            .is_ok_and(|file| matches!(file.try_lock(), Err(fs::TryLockError::WouldBlock)))
    }
}

impl Removal {
    fn remove_file(&mut self, path: &Path) -> Result<()> {
        let bytes = fs::symlink_metadata(path)
            .map(|metadata| metadata.len())
            .unwrap_or_default();
        match fs::remove_file(path) {
            Ok(()) => {
                self.files += 1;
                self.bytes += bytes;
                Ok(())
            }
            Err(error) if is_absent(&error) => Ok(()),
            Err(error) => Err(Error::io("remove", path)(error)),
        }
    }

    fn remove_folder(&mut self, folder: &Path) -> Result<()> {
        let found = size(folder)?;
        match fs::remove_dir_all(folder) {
            Ok(()) => {
                self.files += found.files;
                self.bytes += found.bytes;
                Ok(())
            }
            Err(error) if is_absent(&error) => Ok(()),
            Err(error) => Err(Error::io("remove", folder)(error)),
        }
    }
}

/// Files and bytes below a folder. Links count as nothing: what they lead to is counted where it is.
fn size(folder: &Path) -> Result<Removal> {
    let mut total = Removal::default();
    if !folder.exists() {
        return Ok(total);
    }
    for entry in walkdir::WalkDir::new(folder) {
        let entry = entry.map_err(|error| Error::Io {
            action: "read",
            path: error.path().unwrap_or(folder).to_owned(),
            source: error.into(),
        })?;
        if entry.file_type().is_file() {
            total.files += 1;
            total.bytes += entry
                .metadata()
                .map(|metadata| metadata.len())
                .unwrap_or_default();
        }
    }
    Ok(total)
}

/// Names of the blobs that links below a folder lead to.
fn linked_blobs(folder: &Path) -> Result<HashSet<String>> {
    let mut used = HashSet::new();
    if !folder.exists() {
        return Ok(used);
    }
    for entry in walkdir::WalkDir::new(folder) {
        let entry = entry.map_err(|error| Error::Io {
            action: "read",
            path: error.path().unwrap_or(folder).to_owned(),
            source: error.into(),
        })?;
        if entry.path_is_symlink() {
            let target: PathBuf = fs::read_link(entry.path()).unwrap_or_default();
            used.extend(
                target
                    .file_name()
                    .map(|name| name.to_string_lossy().into_owned()),
            );
        }
    }
    Ok(used)
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use crate::blob::BlobId;

    #[test]
    fn pruning_keeps_what_snapshots_use() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::new(folder.path());
        let repository: RepositoryId = "org/name".parse().unwrap();
        let commit: CommitId = "a".repeat(40).parse().unwrap();
        let (used, unused) = (BlobId::of_git(b"used"), BlobId::of_git(b"unused!"));
        cache.write_blob(&repository, &used, b"used").unwrap();
        cache.write_blob(&repository, &unused, b"unused!").unwrap();
        cache
            .link(&repository, &commit, "build/torch-cpu/a.py", &used)
            .unwrap();
        cache
            .write_reference(&repository, "feature/x", &commit)
            .unwrap();
        let half = folder
            .path()
            .join("kernels--org--name/blobs/00.1234.incomplete");
        fs::write(&half, "12").unwrap();
        fs::create_dir(folder.path().join("models--org--name")).unwrap();

        assert_eq!(cache.prune().unwrap(), Removal { files: 2, bytes: 9 });
        let usage = cache.usage().unwrap();
        assert_eq!(usage.repositories.len(), 1);
        assert_eq!(usage.repositories[0].references["feature/x"], commit);
        assert_eq!(usage.repositories[0].snapshots[0].variants, ["torch-cpu"]);
        assert!(cache.blob(&repository, &used).exists());

        cache.clean(&[]).unwrap();
        assert_eq!(cache.usage().unwrap(), CacheUsage::default());
        assert!(folder.path().join("models--org--name").exists());
    }
}
