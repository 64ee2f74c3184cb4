//! Object ids as git computes them.
//!
//! Clients use blob ids as names of cached files and commits as names of snapshots, so both have to
//! follow from the content alone: the same tree has the same commit in every run.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use bytes::Bytes;
use sha1::{Digest as _, Sha1};
use sha2::Sha256;

/// Date of all commits, 2026-01-01T00:00:00Z.
const COMMIT_TIME: u64 = 1_767_225_600;

/// One file of a snapshot.
#[derive(Debug, Clone)]
pub(crate) struct File {
    pub(crate) content: Bytes,
    /// Blob id; for an LFS file that of its pointer.
    pub(crate) oid: String,
    /// SHA-256 of the content, in hexadecimal digits.
    pub(crate) sha256: String,
    /// Size of the pointer in bytes, for a file that is kept in LFS.
    pub(crate) pointer_size: Option<usize>,
}

impl File {
    pub(crate) fn new(content: Bytes, lfs: bool) -> Self {
        let sha256 = hex::encode(Sha256::digest(&content));
        if lfs {
            let pointer = format!(
                "version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {}\n",
                content.len()
            );
            let oid = object_id("blob", pointer.as_bytes());
            Self {
                content,
                oid,
                sha256,
                pointer_size: Some(pointer.len()),
            }
        } else {
            let oid = object_id("blob", &content);
            Self {
                content,
                oid,
                sha256,
                pointer_size: None,
            }
        }
    }

    pub(crate) const fn is_lfs(&self) -> bool {
        self.pointer_size.is_some()
    }

    /// The name under which clients cache the file.
    pub(crate) fn etag(&self) -> &str {
        if self.is_lfs() {
            &self.sha256
        } else {
            &self.oid
        }
    }
}

/// A branch at one moment.
#[derive(Debug, Clone)]
pub(crate) struct Snapshot {
    /// Files by path.
    pub(crate) files: BTreeMap<String, File>,
    /// Tree ids of directories by path; the top level is not among them.
    pub(crate) directories: BTreeMap<String, String>,
    pub(crate) commit: String,
}

impl Snapshot {
    pub(crate) fn new(branch: &str, files: BTreeMap<String, File>) -> Self {
        let mut directories = BTreeMap::new();
        let tree = tree_id("", &files, &mut directories);
        let who = format!("Hub fixture <hub@fixture.invalid> {COMMIT_TIME} +0000");
        let commit = format!("tree {tree}\nauthor {who}\ncommitter {who}\n\n{branch}\n");
        let commit = object_id("commit", commit.as_bytes());
        Self {
            files,
            directories,
            commit,
        }
    }
}

fn object_id(kind: &str, content: &[u8]) -> String {
    hex::encode(object_hash(kind, content))
}

fn object_hash(kind: &str, content: &[u8]) -> [u8; 20] {
    let mut hasher = Sha1::new();
    hasher.update(format!("{kind} {}\0", content.len()));
    hasher.update(content);
    hasher.finalize().into()
}

/// Id of the tree below `prefix`, which is empty or ends with a slash.
fn tree_id(
    prefix: &str,
    files: &BTreeMap<String, File>,
    directories: &mut BTreeMap<String, String>,
) -> String {
    // Git orders entries by name, a directory as if its name ended with a slash.
    let mut entries: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    let below = files
        .range(prefix.to_owned()..)
        .take_while(|(path, _)| path.starts_with(prefix));
    for (path, file) in below {
        let rest = &path[prefix.len()..];
        if let Some((name, _)) = rest.split_once('/') {
            if let Entry::Vacant(vacant) = entries.entry(format!("{name}/")) {
                let directory = format!("{prefix}{name}");
                let oid = tree_id(&format!("{directory}/"), files, directories);
                vacant.insert(tree_entry("40000", name, &oid));
                directories.insert(directory, oid);
            }
        } else {
            entries.insert(rest.to_owned(), tree_entry("100644", rest, &file.oid));
        }
    }
    let content: Vec<u8> = entries.into_values().flatten().collect();
    object_id("tree", &content)
}

fn tree_entry(mode: &str, name: &str, oid: &str) -> Vec<u8> {
    let mut entry = format!("{mode} {name}\0").into_bytes();
    // Ids are made by this module, so they are hexadecimal.
    entry.extend(hex::decode(oid).unwrap_or_default());
    entry
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &'static str) -> File {
        File::new(Bytes::from_static(text.as_bytes()), false)
    }

    /// Ids found with `git hash-object` and `git mktree`.
    #[test]
    fn ids_are_those_of_git() {
        assert_eq!(file("").oid, "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391");
        assert_eq!(
            file("hello world\n").oid,
            "3b18e512dba79e4c8300dd08aeb37f8e728b8dad"
        );
        let empty = Snapshot::new("v1", BTreeMap::new());
        assert!(empty.directories.is_empty());
        assert_eq!(
            object_id("tree", b""),
            "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
        );
    }

    #[test]
    fn the_same_content_has_the_same_commit() {
        let files = |text| BTreeMap::from([("a/b.txt".to_owned(), file(text))]);
        let commit = |branch, text| Snapshot::new(branch, files(text)).commit;
        assert_eq!(commit("v1", "x"), commit("v1", "x"));
        assert_ne!(commit("v1", "x"), commit("v1", "y"));
        assert_ne!(commit("v1", "x"), commit("v2", "x"));
    }

    #[test]
    fn directories_are_listed_at_every_level() {
        let files = BTreeMap::from([
            ("a.txt".to_owned(), file("1")),
            ("a/b/c.txt".to_owned(), file("2")),
            ("a-b".to_owned(), file("3")),
        ]);
        let snapshot = Snapshot::new("main", files);
        assert_eq!(
            snapshot.directories.keys().collect::<Vec<_>>(),
            ["a", "a/b"]
        );
    }
}
