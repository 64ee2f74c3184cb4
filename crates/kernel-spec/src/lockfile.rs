//! `kernels.lock`: which commit each needed kernel was resolved to.
//!
//! Read strictly, written byte for byte as the Python `kernels lock` writes it, so that either tool
//! can update a project's lock without noise in its history.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::dependency::{Dependency, Requirement};
use crate::error::{Error, Result};
use crate::json;
use crate::object_id::CommitId;
use crate::repository::RepositoryId;

/// Name of the file in a project's directory.
pub const LOCKFILE_NAME: &str = "kernels.lock";

/// Commits of needed kernels, dependencies of kernels included.
///
/// ```
/// use kernel_spec::Lockfile;
///
/// let text = r#"[
///   {
///     "dependency": {
///       "repo-id": "kernels-test/relu",
///       "version": 1
///     },
///     "lock": {
///       "commit": "9464fa130d1adc54def25ca5cb34b78e58d35365"
///     }
///   }
/// ]"#;
/// let lock = Lockfile::from_slice(text.as_bytes())?;
/// assert_eq!(lock.render(), text);
/// # Ok::<(), kernel_spec::Error>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Lockfile {
    locks: BTreeMap<Dependency, CommitId>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    dependency: Dependency,
    #[serde(deserialize_with = "json::object")]
    lock: Lock,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Lock {
    commit: CommitId,
}

/// An [`Entry`] read from an object only.
struct StrictEntry(Entry);

impl<'de> Deserialize<'de> for StrictEntry {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        json::object(deserializer).map(Self)
    }
}

impl Lockfile {
    /// Reads a lock. Unknown keys, keys given twice and kernels locked twice are errors; a lock of
    /// the format before kernels 0.17 is told apart from a damaged one.
    pub fn from_slice(bytes: &[u8]) -> Result<Self> {
        let entries = json::from_slice::<Vec<StrictEntry>>(LOCKFILE_NAME, bytes)
            .map_err(|error| old_format(bytes).unwrap_or(error))?;
        let mut locks = BTreeMap::new();
        for (index, StrictEntry(entry)) in entries.into_iter().enumerate() {
            if locks.contains_key(&entry.dependency) {
                return Err(Error::Document {
                    document: LOCKFILE_NAME.to_owned(),
                    field: format!("[{index}].dependency"),
                    reason: format!("`{}` is locked twice", entry.dependency),
                    line: 0,
                    column: 0,
                });
            }
            locks.insert(entry.dependency, entry.lock.commit);
        }
        Ok(Self { locks })
    }

    /// The text of the file: sorted, indented by two, without a line break at the end.
    pub fn render(&self) -> String {
        let entries: Vec<Entry> = self
            .locks
            .iter()
            .map(|(dependency, commit)| Entry {
                dependency: dependency.clone(),
                lock: Lock {
                    commit: commit.clone(),
                },
            })
            .collect();
        // Only maps with keys other than strings, and failing `Serialize` implementations, make
        // serde_json fail; neither is here.
        serde_json::to_string_pretty(&entries).unwrap_or_default()
    }

    /// Locks a kernel, and gives back the commit it was locked to before.
    pub fn insert(&mut self, dependency: Dependency, commit: CommitId) -> Option<CommitId> {
        self.locks.insert(dependency, commit)
    }

    /// The commit of exactly this dependency.
    pub fn commit(&self, dependency: &Dependency) -> Option<&CommitId> {
        self.locks.get(dependency)
    }

    /// The first entry of a repository: its lowest version, or else its first revision.
    pub fn entry_of(&self, repository: &RepositoryId) -> Option<(&Dependency, &CommitId)> {
        // Nothing of a repository is ordered before its version 0.
        let first = Dependency {
            repository: repository.clone(),
            requirement: Requirement::Version(0),
        };
        let mut entries = self.locks.range(first..);
        entries
            .next()
            .filter(|(dependency, _)| dependency.repository == *repository)
    }

    /// All entries, in the order of the file.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&Dependency, &CommitId)> {
        self.locks.iter()
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.locks.len()
    }

    /// Whether nothing is locked.
    pub fn is_empty(&self) -> bool {
        self.locks.is_empty()
    }
}

impl FromIterator<(Dependency, CommitId)> for Lockfile {
    fn from_iter<I: IntoIterator<Item = (Dependency, CommitId)>>(entries: I) -> Self {
        Self {
            locks: entries.into_iter().collect(),
        }
    }
}

/// The error for a lock of the format before kernels 0.17, which had `repo_id`, `sha` and hashes of
/// every variant; none where the text is something else.
fn old_format(bytes: &[u8]) -> Option<Error> {
    #[derive(Deserialize)]
    struct OldEntry {
        repo_id: String,
        #[serde(rename = "sha")]
        _sha: serde::de::IgnoredAny,
    }

    let entries: Vec<OldEntry> = serde_json::from_slice(bytes).ok()?;
    let first = entries.into_iter().next()?;
    Some(Error::OldLockfile {
        repository: first.repo_id,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dependency(repository: &str, requirement: Requirement) -> Dependency {
        Dependency {
            repository: repository.parse().unwrap(),
            requirement,
        }
    }

    fn commit(digit: char) -> CommitId {
        digit.to_string().repeat(40).parse().unwrap()
    }

    #[test]
    fn entries_are_sorted_by_repository_then_version_then_revision() {
        let lock: Lockfile = [
            (
                dependency("a/b", Requirement::Revision("main".into())),
                commit('1'),
            ),
            (dependency("a/b", Requirement::Version(10)), commit('2')),
            (dependency("a/b", Requirement::Version(9)), commit('3')),
            (dependency("a-x/b", Requirement::Version(1)), commit('4')),
        ]
        .into_iter()
        .collect();
        let order: Vec<_> = lock
            .iter()
            .map(|(dependency, _)| dependency.to_string())
            .collect();
        assert_eq!(order, ["a-x/b@v1", "a/b@v9", "a/b@v10", "a/b@main"]);
        assert_eq!(Lockfile::from_slice(lock.render().as_bytes()), Ok(lock));
    }

    #[test]
    fn an_empty_lock_is_an_empty_list() {
        assert_eq!(Lockfile::default().render(), "[]");
        assert!(Lockfile::from_slice(b"[]\n").unwrap().is_empty());
    }

    #[test]
    fn peer_fault_7_the_old_format_is_explained() {
        let old = br#"[{"repo_id": "kernels-community/activation", "sha": "fd6842e",
            "variants": {"torch27-cxx11-cu118-x86_64-linux": {"hash": "sha256-x", "hash_type":
            "git_lfs_concat"}}}]"#;
        let error = Lockfile::from_slice(old).unwrap_err();
        assert!(error.to_string().contains("kernels-community/activation"));
        assert!(error.hint().unwrap().contains("kernel-cli lock"));
    }

    #[test]
    fn damaged_locks_name_the_place() {
        let entry = |dependency: &str, lock: &str| {
            format!(r#"[{{"dependency": {{{dependency}}}, "lock": {{{lock}}}}}]"#)
        };
        let good = r#""repo-id": "a/b", "version": 1"#;
        let id = format!(r#""commit": "{}""#, "a".repeat(40));
        assert!(Lockfile::from_slice(entry(good, &id).as_bytes()).is_ok());
        for (text, place) in [
            (
                entry(good, r#""commit": "abc""#),
                "`[0].lock.commit`: invalid commit id `abc`",
            ),
            (
                entry(r#""repo-id": "a", "version": 1"#, &id),
                "`[0].dependency.repo-id`",
            ),
            (
                entry(r#""repo-id": "a/b""#, &id),
                "expected `version` or `revision`",
            ),
            (
                entry(good, &format!(r#"{id}, "hash": "x""#)),
                "unknown field `hash`",
            ),
            (
                entry(good, &format!("{id}, {id}")),
                "duplicate field `commit`",
            ),
            ("{}".to_owned(), "expected a sequence"),
            (String::new(), "EOF"),
        ] {
            let error = Lockfile::from_slice(text.as_bytes())
                .unwrap_err()
                .to_string();
            assert!(error.contains(place), "{text}: {error}");
        }
    }

    #[test]
    fn a_kernel_locked_twice_is_an_error() {
        let one = format!(
            r#"{{"dependency": {{"repo-id": "a/b", "version": 1}}, "lock": {{"commit": "{}"}}}}"#,
            "a".repeat(40)
        );
        let error = Lockfile::from_slice(format!("[{one},{one}]").as_bytes()).unwrap_err();
        assert!(
            error
                .to_string()
                .contains("`[1].dependency`: `a/b@v1` is locked twice")
        );
    }
}
