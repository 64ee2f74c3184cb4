//! What is served.
//!
//! Branches are turned into snapshots when a tree is put in. Earlier snapshots stay reachable by
//! their commit, as they do on the Hub, so that a test can move a branch between two requests.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::error::Result;
use crate::git::{File, Snapshot};
use crate::kernel::KernelTree;

/// What the Hub says of an owner of repositories.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Trust {
    /// An organisation whose kernels are trusted.
    Trusted,
    /// An organisation like any other.
    Untrusted,
    /// A user, whom the endpoint for organisations does not know.
    User,
}

/// A repository with the tips of its branches.
#[derive(Debug, Clone)]
pub(crate) struct Repository {
    pub(crate) branches: BTreeMap<String, Arc<Snapshot>>,
    pub(crate) tags: BTreeMap<String, String>,
    pub(crate) private: bool,
    pub(crate) gated: bool,
}

/// Everything the server knows.
#[derive(Debug, Default)]
pub(crate) struct Store {
    pub(crate) owners: BTreeMap<String, Trust>,
    pub(crate) repositories: BTreeMap<String, Repository>,
    pub(crate) tokens: BTreeSet<String>,
    /// Snapshots by repository and commit.
    history: BTreeMap<(String, String), Arc<Snapshot>>,
}

impl Store {
    /// Puts a repository in, or replaces its present state.
    pub(crate) fn put(&mut self, tree: &KernelTree) -> Result<()> {
        let repository = tree.repository_id()?.to_string();
        let mut branches = BTreeMap::new();
        for branch in tree.branches() {
            let files = tree
                .branch_files(branch)?
                .into_iter()
                .map(|(path, content)| {
                    let file = File::new(content, tree.is_lfs(&path));
                    (path, file)
                })
                .collect();
            let snapshot = Arc::new(Snapshot::new(branch, files));
            self.history.insert(
                (repository.clone(), snapshot.commit.clone()),
                Arc::clone(&snapshot),
            );
            branches.insert(branch.to_owned(), snapshot);
        }
        let tags = tree.tags.clone();
        let state = Repository {
            branches,
            tags,
            private: tree.private,
            gated: tree.gated,
        };
        self.repositories.insert(repository, state);
        Ok(())
    }

    /// The snapshot that a branch, tag, commit or beginning of a commit names.
    pub(crate) fn snapshot(&self, repository: &str, revision: &str) -> Option<Arc<Snapshot>> {
        let state = self.repositories.get(repository)?;
        let name = revision.strip_prefix("refs/heads/").unwrap_or(revision);
        if let Some(snapshot) = state.branches.get(name) {
            return Some(Arc::clone(snapshot));
        }
        let tag = revision.strip_prefix("refs/tags/").unwrap_or(revision);
        if let Some(branch) = state.tags.get(tag) {
            return state.branches.get(branch).map(Arc::clone);
        }
        // Git needs four digits at least; the Hub is asked with seven or more.
        let is_commit =
            revision.len() >= 7 && revision.bytes().all(|byte| byte.is_ascii_hexdigit());
        if !is_commit {
            return None;
        }
        let mut matching = self.history.iter().filter(|((owner, commit), _)| {
            owner == repository && commit.starts_with(&revision.to_ascii_lowercase())
        });
        match (matching.next(), matching.next()) {
            (Some((_, snapshot)), None) => Some(Arc::clone(snapshot)),
            _ => None,
        }
    }
}
