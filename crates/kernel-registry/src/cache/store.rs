//! Writing into the cache so that a reader, or a crash, never meets half a file.

use std::collections::hash_map::RandomState;
use std::fs::{self, OpenOptions};
use std::hash::{BuildHasher as _, Hasher as _};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use kernel_spec::{CommitId, RepositoryId};

use super::Cache;
use crate::blob::BlobId;
use crate::error::{Error, Result};

/// A name that no other process uses: eight random hexadecimal digits, in the manner of
/// `huggingface_hub`.
pub(crate) fn unique_name(start: &str, end: &str) -> String {
    let mut hasher = RandomState::new().build_hasher();
    hasher.write_u32(std::process::id());
    format!("{start}.{:08x}{end}", hasher.finish() as u32)
}

/// Writes a small file: into a neighbour first, then renamed over the old one.
pub(crate) fn write_atomically(path: &Path, bytes: &[u8]) -> Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder).map_err(Error::io("create", folder))?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let temporary = folder.join(unique_name(&format!(".{name}"), ".tmp"));
    let written = OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(&temporary)
        .and_then(|mut file| file.write_all(bytes))
        .and_then(|()| fs::rename(&temporary, path));
    written.map_err(|error| {
        let _ = fs::remove_file(&temporary);
        Error::io("write", path)(error)
    })
}

/// Whether a file system does not let anything be written, which only a note does not need.
pub(crate) fn is_unwritable(error: &Error) -> bool {
    let Error::Io { source, .. } = error else {
        return false;
    };
    matches!(
        source.kind(),
        io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied
    )
}

/// Writes something that only saves work later. A cache that others fill, and that this user may
/// only read, is left as it is.
pub(crate) fn unless_unwritable(written: Result<()>) -> Result<()> {
    match written {
        Err(error) if is_unwritable(&error) => {
            tracing::debug!(%error, "not noted in the cache");
            Ok(())
        }
        other => other,
    }
}

impl Cache {
    /// Stores bytes that the program itself holds as a blob.
    pub(crate) fn write_blob(
        &self,
        repository: &RepositoryId,
        blob: &BlobId,
        bytes: &[u8],
    ) -> Result<()> {
        let path = self.blob(repository, blob);
        if blob.matches_file(&path).map_err(Error::io("read", &path))? {
            return Ok(());
        }
        write_atomically(&path, bytes)
    }

    /// Makes `snapshots/<commit>/<path>` lead to a blob. An old link is replaced in one step, so
    /// that a reader finds either. On file systems without links the blob is copied.
    pub(crate) fn link(
        &self,
        repository: &RepositoryId,
        commit: &CommitId,
        path: &str,
        blob: &BlobId,
    ) -> Result<()> {
        let link = self.snapshot(repository, commit).join(path);
        let depth = path.split('/').count() + 1;
        let target: PathBuf = std::iter::repeat_n("..", depth)
            .chain(["blobs", blob.id()])
            .collect();
        if fs::read_link(&link).is_ok_and(|present| present == target) {
            return Ok(());
        }
        let folder = link.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(folder).map_err(Error::io("create", folder))?;
        // Among the blobs, where a crash may leave it: in the snapshot it would be a file that no digest
        // knows, and the build would be refused from then on.
        let blobs = self.repository(repository).join("blobs");
        fs::create_dir_all(&blobs).map_err(Error::io("create", &blobs))?;
        let temporary = blobs.join(unique_name(".link", ".tmp"));
        let linked = if self.copies {
            Err(io::ErrorKind::Unsupported.into())
        } else {
            symlink(&target, &temporary)
        };
        let made = match linked {
            Err(error) if lacks_links(&error) => {
                if is_plain_file(&link) && blob.matches_file(&link).unwrap_or(false) {
                    return Ok(());
                }
                fs::copy(self.blob(repository, blob), &temporary).map(drop)
            }
            other => other,
        };
        made.and_then(|()| fs::rename(&temporary, &link))
            .map_err(|error| {
                let _ = fs::remove_file(&temporary);
                Error::io("write", &link)(error)
            })
    }
}

#[cfg(unix)]
fn symlink(target: &Path, link: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(target, link)
}

#[cfg(not(unix))]
fn symlink(_target: &Path, _link: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

fn is_plain_file(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_file())
}

/// Whether a file system refuses links as such. FAT and some network file systems say EPERM.
fn lacks_links(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::Unsupported | io::ErrorKind::PermissionDenied
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_relative_and_replaced_in_place() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::new(folder.path());
        let repository: RepositoryId = "org/name".parse().unwrap();
        let commit: CommitId = "a".repeat(40).parse().unwrap();
        for content in ["one", "two"] {
            let blob = BlobId::of_git(content.as_bytes());
            cache
                .write_blob(&repository, &blob, content.as_bytes())
                .unwrap();
            cache
                .link(&repository, &commit, "build/torch-cpu/a.py", &blob)
                .unwrap();
            let link = cache
                .variant(&repository, &commit, "torch-cpu")
                .join("a.py");
            assert_eq!(fs::read_to_string(&link).unwrap(), content);
            #[cfg(unix)]
            assert_eq!(
                fs::read_link(&link).unwrap(),
                Path::new("../../../../blobs").join(blob.id())
            );
        }
        let folder = cache.variant(&repository, &commit, "torch-cpu");
        assert_eq!(
            fs::read_dir(folder).unwrap().count(),
            1,
            "no temporary file is left"
        );
    }

    #[test]
    fn a_damaged_blob_is_written_again() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::new(folder.path());
        let repository: RepositoryId = "org/name".parse().unwrap();
        let blob = BlobId::of_git(b"good");
        cache.write_blob(&repository, &blob, b"good").unwrap();
        fs::write(cache.blob(&repository, &blob), "evil").unwrap();
        cache.write_blob(&repository, &blob, b"good").unwrap();
        assert_eq!(fs::read(cache.blob(&repository, &blob)).unwrap(), b"good");
    }
}
