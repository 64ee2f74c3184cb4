//! The cache, in the layout of `huggingface_hub`, so that Python loads what is fetched here and the
//! other way round.
//!
//! ```text
//! <root>/kernels--<owner>--<name>/blobs/<id>                     content, named by its hash
//!                                 snapshots/<commit>/<path>      link to the blob
//!                                 refs/<revision>                the commit of a branch or tag
//! <root>/.locks/kernels--<owner>--<name>/<id>.lock               held while a blob is written
//! <root>/.kernel-registry/                                       our own notes, see below
//! ```
//!
//! Two things that the layout has no place for are noted in a folder of our own: the file list of
//! each commit ([`listing`]), from which completeness is judged, and the Hub's answers on publishers
//! ([`crate::trust`]). `trees/<commit>.json` of `huggingface_hub` is not written: its version 2.4
//! would refuse a snapshot that holds one of several builds.
//!
//! Every file gets its name by a rename, when its content is complete and was checked.

pub(crate) mod listing;
mod store;
mod usage;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use kernel_spec::path::METADATA_FILE;
use kernel_spec::version::version_of_branch;
use kernel_spec::{CommitId, RepositoryId};

use crate::blob::BlobId;
use crate::error::{Error, Result};

pub(crate) use listing::{Listing, VariantFiles};
pub(crate) use store::{unique_name, unless_unwritable, write_atomically};
pub use usage::{CacheUsage, CachedRepository, CachedSnapshot, Removal};

/// Folder of our own notes within the cache's root.
const OWN_FOLDER: &str = ".kernel-registry";
/// Marks a folder as a cache for backup programs; the text is fixed by that convention.
const TAG: &str = "Signature: 8a477f597d28d172789f06886806bc55\n\
    # This folder holds files that can be fetched again (kernels and models from the Hub).\n";

/// The cache at one root.
#[derive(Debug, Clone)]
pub struct Cache {
    root: PathBuf,
    /// Whether snapshots hold copies instead of links.
    copies: bool,
}

impl Cache {
    /// The cache in a folder, which need not exist yet.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self {
            root: root.into(),
            copies: false,
        }
    }

    /// The same cache, with copies instead of links in its snapshots.
    pub(crate) fn with_copies(self, copies: bool) -> Self {
        Self { copies, ..self }
    }

    /// Its folder.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Folder of a repository.
    pub(crate) fn repository(&self, repository: &RepositoryId) -> PathBuf {
        self.root.join(repository.cache_folder())
    }

    /// Folder of one commit's files.
    pub(crate) fn snapshot(&self, repository: &RepositoryId, commit: &CommitId) -> PathBuf {
        self.repository(repository)
            .join("snapshots")
            .join(commit.as_str())
    }

    /// Folder of one build.
    pub fn variant(&self, repository: &RepositoryId, commit: &CommitId, variant: &str) -> PathBuf {
        self.snapshot(repository, commit)
            .join("build")
            .join(variant)
    }

    pub(crate) fn blob(&self, repository: &RepositoryId, blob: &BlobId) -> PathBuf {
        self.repository(repository).join("blobs").join(blob.id())
    }

    pub(crate) fn lock(&self, repository: &RepositoryId, blob: &BlobId) -> PathBuf {
        let name = format!("{}.lock", blob.id());
        self.root
            .join(".locks")
            .join(repository.cache_folder())
            .join(name)
    }

    pub(crate) fn own_folder(&self) -> PathBuf {
        self.root.join(OWN_FOLDER)
    }

    /// Makes the root and marks it as a cache.
    pub(crate) fn prepare(&self) -> Result<()> {
        fs::create_dir_all(&self.root).map_err(Error::io("create", &self.root))?;
        let tag = self.root.join("CACHEDIR.TAG");
        if !tag.exists() {
            write_atomically(&tag, TAG.as_bytes())?;
        }
        Ok(())
    }

    /// The commit that a branch or tag had when it was last fetched.
    pub(crate) fn reference(
        &self,
        repository: &RepositoryId,
        revision: &str,
    ) -> Result<Option<CommitId>> {
        // Revisions were checked against git's rules, so this does not leave `refs`.
        let path = self.repository(repository).join("refs").join(revision);
        match fs::read_to_string(&path) {
            Ok(text) => Ok(text.trim().parse().ok()),
            Err(error) if is_absent(&error) => Ok(None),
            Err(error) => Err(Error::io("read", &path)(error)),
        }
    }

    /// Notes the commit of a branch or tag.
    pub(crate) fn write_reference(
        &self,
        repository: &RepositoryId,
        revision: &str,
        commit: &CommitId,
    ) -> Result<()> {
        if self.reference(repository, revision)?.as_ref() == Some(commit) {
            return Ok(());
        }
        let path = self.repository(repository).join("refs").join(revision);
        write_atomically(&path, commit.as_str().as_bytes())
    }

    /// The versions whose commits are known here.
    pub(crate) fn versions(&self, repository: &RepositoryId) -> Result<BTreeMap<u64, CommitId>> {
        let folder = self.repository(repository).join("refs");
        let mut versions = BTreeMap::new();
        for name in names(&folder)? {
            if let Some(version) = version_of_branch(&name)
                && let Some(commit) = self.reference(repository, &name)?
            {
                versions.insert(version, commit);
            }
        }
        Ok(versions)
    }

    /// The builds of a commit that are here, complete or not.
    pub(crate) fn variants(
        &self,
        repository: &RepositoryId,
        commit: &CommitId,
    ) -> Result<Vec<String>> {
        names(&self.snapshot(repository, commit).join("build"))
    }

    /// The builds of a commit of which there is more than the metadata, which is what a look at a
    /// kernel leaves.
    pub(crate) fn fetched_variants(
        &self,
        repository: &RepositoryId,
        commit: &CommitId,
    ) -> Result<Vec<String>> {
        let mut fetched = Vec::new();
        for variant in self.variants(repository, commit)? {
            let files = names(&self.variant(repository, commit, &variant))?;
            if files.iter().any(|name| name != METADATA_FILE) {
                fetched.push(variant);
            }
        }
        Ok(fetched)
    }
}

/// Names in a folder, sorted; none where the folder is not there. Names that are not UTF-8 are
/// none of ours.
pub(crate) fn names(folder: &Path) -> Result<Vec<String>> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if is_absent(&error) => return Ok(Vec::new()),
        Err(error) => return Err(Error::io("read", folder)(error)),
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.map_err(Error::io("read", folder))?;
        if let Ok(name) = entry.file_name().into_string() {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

/// Whether an error says that a file is not there.
pub(crate) fn is_absent(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peer_fault_2_version_references_are_written_and_found() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::new(folder.path());
        let repository: RepositoryId = "org/name".parse().unwrap();
        let commit: CommitId = "a".repeat(40).parse().unwrap();
        assert_eq!(cache.reference(&repository, "v1").unwrap(), None);
        for revision in ["v1", "v01", "feature/x"] {
            cache
                .write_reference(&repository, revision, &commit)
                .unwrap();
        }
        let path = folder.path().join("kernels--org--name/refs/v1");
        assert_eq!(fs::read_to_string(path).unwrap(), "a".repeat(40));
        assert_eq!(
            cache.reference(&repository, "feature/x").unwrap(),
            Some(commit.clone())
        );
        assert_eq!(
            cache.versions(&repository).unwrap(),
            BTreeMap::from([(1, commit)])
        );
    }

    #[test]
    fn a_damaged_reference_counts_as_absent() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::new(folder.path());
        let repository: RepositoryId = "org/name".parse().unwrap();
        let path = folder.path().join("kernels--org--name/refs/v1");
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "../../x").unwrap();
        assert_eq!(cache.reference(&repository, "v1").unwrap(), None);
    }
}
