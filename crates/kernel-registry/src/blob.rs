//! Ids of file contents, as the Hub's tree gives them.
//!
//! A file in git has the SHA-1 of git's blob object; one in large file storage (LFS) the SHA-256 of
//! its bytes. Both are the file's name in the cache and its ETag, and both are what a download is
//! compared with before it gets that name.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use serde::{Deserialize, Serialize};
use sha1::Sha1;
use sha2::{Digest as _, Sha256};

/// Size of the pieces in which files are hashed.
const PIECE: usize = 256 * 1024;

/// Id and size of one file's content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlobId {
    id: String,
    size: u64,
}

impl BlobId {
    /// Takes an id of 40 (git) or 64 (LFS) lower-case hexadecimal digits; none for anything else.
    pub(crate) fn new(id: &str, size: u64) -> Option<Self> {
        let hexadecimal = id
            .bytes()
            .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        (matches!(id.len(), 40 | 64) && hexadecimal).then(|| Self {
            id: id.to_owned(),
            size,
        })
    }

    /// The id that git gives to some bytes.
    pub(crate) fn of_git(bytes: &[u8]) -> Self {
        let size = bytes.len() as u64;
        let mut hasher = BlobHasher::new(40, size);
        hasher.update(bytes);
        Self {
            id: hasher.finish(),
            size,
        }
    }

    /// Whether a value read from a file keeps the rules of [`BlobId::new`].
    pub(crate) fn is_valid(&self) -> bool {
        Self::new(&self.id, self.size).is_some()
    }

    /// The hexadecimal digits, also the file's name in the cache.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Number of bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    pub(crate) fn hasher(&self) -> BlobHasher {
        BlobHasher::new(self.id.len(), self.size)
    }

    /// The id that some bytes have, in the kind of hash that this id has.
    pub(crate) fn id_of(&self, bytes: &[u8]) -> String {
        let mut hasher = BlobHasher::new(self.id.len(), bytes.len() as u64);
        hasher.update(bytes);
        hasher.finish()
    }

    /// Whether some bytes have this id.
    pub(crate) fn matches(&self, bytes: &[u8]) -> bool {
        bytes.len() as u64 == self.size && self.id_of(bytes) == self.id
    }

    /// Whether a file's content has this id. A file that is not there has not.
    pub(crate) fn matches_file(&self, path: &Path) -> io::Result<bool> {
        let mut file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(error),
        };
        let metadata = file.metadata()?;
        if !metadata.is_file() || metadata.len() != self.size {
            return Ok(false);
        }
        let mut hasher = self.hasher();
        let mut piece = vec![0; PIECE.min(self.size as usize + 1)];
        loop {
            match file.read(&mut piece)? {
                0 => return Ok(hasher.finish() == self.id),
                count => hasher.update(&piece[..count]),
            }
        }
    }
}

/// Hashes a file piece by piece.
pub(crate) enum BlobHasher {
    Git(Sha1),
    Lfs(Sha256),
}

impl BlobHasher {
    fn new(digits: usize, size: u64) -> Self {
        if digits == 64 {
            return Self::Lfs(Sha256::new());
        }
        let mut sha1 = Sha1::new();
        sha1.update(format!("blob {size}\0"));
        Self::Git(sha1)
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Git(hasher) => hasher.update(bytes),
            Self::Lfs(hasher) => hasher.update(bytes),
        }
    }

    pub(crate) fn finish(self) -> String {
        match self {
            Self::Git(hasher) => hex::encode(hasher.finalize()),
            Self::Lfs(hasher) => hex::encode(hasher.finalize()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_those_of_git() {
        // `printf 'hello world' | git hash-object --stdin`
        let id = BlobId::of_git(b"hello world");
        assert_eq!(id.id(), "95d09f2b10159347eece71399a7e2e907ea3df4f");
        assert!(id.matches(b"hello world") && !id.matches(b"hello worlt"));
    }

    #[test]
    fn lfs_ids_are_plain_sha256() {
        let id = BlobId::new(&hex::encode(Sha256::digest(b"x")), 1).unwrap();
        assert!(id.matches(b"x") && !id.matches(b"y"));
    }

    #[test]
    fn ids_that_are_no_hashes_are_refused() {
        for text in [
            "",
            "../../../etc/passwd",
            &"g".repeat(40),
            &"A".repeat(40),
            &"a".repeat(41),
        ] {
            assert_eq!(BlobId::new(text, 1), None, "{text}");
        }
    }
}
