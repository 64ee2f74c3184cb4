//! The file list of one commit, as the Hub's tree gave it.
//!
//! A commit never changes, so its list is asked for once and kept. It says which builds there are
//! even where only one of them was fetched, and what a complete build consists of.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::path::PathBuf;

use kernel_spec::path::{METADATA_FILE, check_relative_path, is_bytecode};
use kernel_spec::status::STATUS_FILE;
use kernel_spec::{CommitId, RepositoryId};
use serde::{Deserialize, Serialize};

use super::{Cache, is_absent, write_atomically};
use crate::blob::BlobId;
use crate::error::{Error, Result};

/// Version of the file format. A list of another version is asked for again.
const FORMAT: u32 = 2;

/// Builds of one commit.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Listing {
    format: u32,
    pub(crate) variants: BTreeMap<String, VariantFiles>,
    /// The file that says that the kernel has moved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) status: Option<BlobId>,
}

/// Files of one build by name relative to its folder, without bytecode.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct VariantFiles {
    pub(crate) files: BTreeMap<String, BlobId>,
}

impl VariantFiles {
    /// The metadata file's id.
    pub(crate) fn metadata(&self) -> Option<&BlobId> {
        self.files.get(METADATA_FILE)
    }

    /// Number of bytes.
    pub(crate) fn size(&self) -> u64 {
        self.files
            .values()
            .map(BlobId::size)
            .fold(0, u64::saturating_add)
    }

    /// Refuses names that differ in case only: some file systems take them for the same file, and
    /// then the later one would silently replace the other.
    pub(crate) fn check_case(&self) -> Result<(), String> {
        let mut seen = HashSet::new();
        for path in self.files.keys() {
            if !seen.insert(path.to_lowercase()) {
                return Err(format!("`{path}` differs from another name in case only"));
            }
        }
        Ok(())
    }
}

impl Listing {
    /// Sorts the files of `build/` by build. `files` are names relative to the repository's root;
    /// those outside of `build/<variant>/` belong to no build and, but for one, are never fetched. A
    /// name that must not be written to disk condemns the whole list: an honest Hub has none.
    pub(crate) fn new(files: impl IntoIterator<Item = (String, BlobId)>) -> Result<Self, String> {
        let mut listing = Self {
            format: FORMAT,
            variants: BTreeMap::new(),
            status: None,
        };
        for (path, blob) in files {
            let Some(within) = path.strip_prefix("build/") else {
                if !path.split('/').all(is_plain) {
                    return Err(format!(
                        "`{}` is no file of a repository",
                        path.escape_debug()
                    ));
                }
                if path == STATUS_FILE {
                    listing.status = Some(blob);
                }
                continue;
            };
            check_relative_path(&path).map_err(|error| error.to_string())?;
            let Some((variant, name)) = within.split_once('/') else {
                continue;
            };
            if is_bytecode(name) {
                continue;
            }
            let files = &mut listing
                .variants
                .entry(variant.to_owned())
                .or_default()
                .files;
            if files.insert(name.to_owned(), blob).is_some() {
                return Err(format!("`{path}` is listed twice"));
            }
        }
        Ok(listing)
    }

    /// Whether there is nothing in it that a kernel consists of.
    pub(crate) fn is_empty(&self) -> bool {
        self.variants.is_empty() && self.status.is_none()
    }

    /// Whether a list read from disk keeps the rules that a fetched one was checked against.
    fn is_valid(&self) -> bool {
        self.format == FORMAT
            && self.status.as_ref().is_none_or(BlobId::is_valid)
            && self.variants.iter().all(|(variant, build)| {
                check_relative_path(variant).is_ok()
                    && !variant.contains('/')
                    && build
                        .files
                        .iter()
                        .all(|(path, blob)| check_relative_path(path).is_ok() && blob.is_valid())
            })
    }
}

/// Whether a part of a name could only be a name.
fn is_plain(part: &str) -> bool {
    !matches!(part, "" | "." | "..") && !part.contains('\\') && !part.contains(char::is_control)
}

impl Cache {
    fn listing_path(&self, repository: &RepositoryId, commit: &CommitId) -> PathBuf {
        let folder = self
            .own_folder()
            .join("listings")
            .join(repository.cache_folder());
        folder.join(format!("{commit}.json"))
    }

    /// The list of a commit, where it was kept. One that cannot be understood counts as absent.
    pub(crate) fn listing(
        &self,
        repository: &RepositoryId,
        commit: &CommitId,
    ) -> Result<Option<Listing>> {
        let path = self.listing_path(repository, commit);
        match fs::read(&path) {
            Ok(bytes) => Ok(serde_json::from_slice(&bytes)
                .ok()
                .filter(|listing: &Listing| listing.is_valid())),
            Err(error) if is_absent(&error) => Ok(None),
            Err(error) => Err(Error::io("read", &path)(error)),
        }
    }

    /// Keeps the list of a commit.
    pub(crate) fn write_listing(
        &self,
        repository: &RepositoryId,
        commit: &CommitId,
        listing: &Listing,
    ) -> Result<()> {
        // A map of strings and numbers cannot fail to serialise.
        let text = serde_json::to_vec(listing).unwrap_or_default();
        write_atomically(&self.listing_path(repository, commit), &text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listing(paths: &[&str]) -> Result<Listing, String> {
        Listing::new(
            paths
                .iter()
                .map(|path| ((*path).to_owned(), BlobId::of_git(b""))),
        )
    }

    #[test]
    fn files_are_sorted_by_build() {
        let listing = listing(&[
            "README.md",
            "build/stray.txt",
            "build/torch-cpu/__init__.py",
            "build/torch-cpu/__pycache__/x.pyc",
            "build/torch-tpu/layers/__init__.py",
        ])
        .unwrap();
        let variants: Vec<_> = listing.variants.keys().collect();
        assert_eq!(variants, ["torch-cpu", "torch-tpu"]);
        assert_eq!(listing.variants["torch-cpu"].files.len(), 1);
    }

    #[test]
    fn hostile_names_condemn_the_list() {
        for path in [
            "build/torch-cpu/../../../../x",
            "/etc/passwd",
            "build/torch-cpu/a\\b",
            "build//x/y",
            "build/torch-cpu/a\nb",
            "build/../x/y",
        ] {
            assert!(listing(&[path]).is_err(), "{path}");
        }
        assert!(
            listing(&["build/a/x", "build/a/x"])
                .unwrap_err()
                .contains("twice")
        );
    }

    #[test]
    fn case_twins_are_refused() {
        let listing = listing(&["build/a/X.py", "build/a/x.py"]).unwrap();
        assert!(listing.variants["a"].check_case().is_err());
    }

    #[test]
    fn a_kept_list_is_checked_again() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::new(folder.path());
        let repository: RepositoryId = "org/name".parse().unwrap();
        let commit: CommitId = "a".repeat(40).parse().unwrap();
        let kept = listing(&["build/torch-cpu/x"]).unwrap();
        cache.write_listing(&repository, &commit, &kept).unwrap();
        assert_eq!(cache.listing(&repository, &commit).unwrap(), Some(kept));
        let path = cache.listing_path(&repository, &commit);
        let text = fs::read_to_string(&path).unwrap();
        for (from, to) in [
            ("\"x\"", "\"../x\""),
            ("torch-cpu", "a/b"),
            ("\"id\":\"e", "\"id\":\"/"),
        ] {
            let hostile = text.replace(from, to);
            assert_ne!(hostile, text, "{from}");
            fs::write(&path, hostile).unwrap();
            assert_eq!(cache.listing(&repository, &commit).unwrap(), None, "{to}");
        }
    }
}
