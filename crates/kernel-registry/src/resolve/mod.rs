//! From a reference to one build at one commit.
//!
//! In this order: a local override, the index, and then the Hub, or the cache where there is no
//! network by choice. A version or branch becomes a commit once; every later request names that
//! commit. Nothing of a repository is asked for before its publisher is known to be trusted.

mod cached;
mod indexed;
mod metadata;
mod online;

use kernel_spec::index::Origin as IndexOrigin;
use kernel_spec::variant::Resolution;
use kernel_spec::version::branch_of_version;
use kernel_spec::{
    CommitId, Dependency, KernelRef, KernelSource, RepositoryId, Requirement, Selector, System,
};

use crate::error::{Error, Result};
use crate::registry::Registry;
use crate::resolved::Resolved;
use crate::system::in_words;
use indexed::indexed_version;

/// A reference to the Hub, taken apart.
struct Wanted<'a> {
    reference: &'a KernelRef,
    repository: &'a RepositoryId,
    selector: &'a Selector,
    /// The commit that the lock has for it.
    pinned: Option<CommitId>,
    system: &'a System,
}

/// One commit that a reference may mean.
struct Candidate {
    commit: CommitId,
    version: Option<u64>,
    /// The branch or tag that led to it.
    revision: Option<String>,
}

impl Candidate {
    fn pinned(commit: CommitId, selector: &Selector) -> Self {
        let version = match selector {
            Selector::Version(version) => Some(*version),
            _ => None,
        };
        Self {
            commit,
            version,
            revision: None,
        }
    }

    fn version(version: u64, commit: CommitId) -> Self {
        Self {
            commit,
            version: Some(version),
            revision: Some(branch_of_version(version)),
        }
    }

    fn name(&self, repository: &RepositoryId) -> String {
        match (&self.revision, self.version) {
            (_, Some(version)) => format!("{repository}@v{version}"),
            (Some(revision), _) => format!("{repository}@{revision}"),
            _ => format!("{repository}@{}", self.commit),
        }
    }
}

impl Registry {
    /// Resolves one kernel without those that it needs.
    pub(crate) async fn resolve_one(
        &self,
        reference: &KernelRef,
        system: &System,
    ) -> Result<Resolved> {
        let (repository, selector) = match &reference.source {
            KernelSource::Path(path) => return self.local(reference, path, None, system),
            KernelSource::Hub {
                repository,
                selector,
            } => (repository, selector),
        };
        if let Some(path) = self.settings().local_kernels.get(repository) {
            self.events().note(format!(
                "`{repository}` is taken from `{}`, without a check of publisher or version",
                path.display()
            ));
            return self.local(reference, path, Some(repository), system);
        }
        let pinned = self.locked_commit(repository, selector)?;
        let wanted = Wanted {
            reference,
            repository,
            selector,
            pinned,
            system,
        };
        if let Some(entry) = self.index()?.repository(repository) {
            if entry.origin == IndexOrigin::Embedded {
                return self.resolve_in_program(&wanted, entry);
            }
            if let Some(version) = indexed_version(&wanted, entry) {
                return self.resolve_indexed(&wanted, version).await;
            }
        }
        let trust = self.trust(repository).await?;
        if self.settings().offline {
            return self.resolve_in_cache(&wanted, trust);
        }
        self.resolve_on_hub(&wanted, trust).await
    }

    /// The commit that the lock has for a kernel, where a lock is to be followed.
    fn locked_commit(
        &self,
        repository: &RepositoryId,
        selector: &Selector,
    ) -> Result<Option<CommitId>> {
        let Some(lock) = self.lock()? else {
            return Ok(None);
        };
        let dependency = |requirement| Dependency {
            repository: repository.clone(),
            requirement,
        };
        let commit = match selector {
            Selector::Version(version) => lock.commit(&dependency(Requirement::Version(*version))),
            Selector::Revision(revision) => {
                lock.commit(&dependency(Requirement::Revision(revision.clone())))
            }
            Selector::Newest => lock.entry_of(repository).map(|(_, commit)| commit),
        };
        if let (None, Selector::Revision(revision)) = (commit, selector)
            && CommitId::is_commit_id(revision)
        {
            // A commit is as fixed as a lock can make it.
            return Ok(revision.parse().ok());
        }
        let kernel = KernelRef::hub(repository.clone(), selector.clone()).to_string();
        let path = self.settings().lockfile.clone();
        commit
            .cloned()
            .map(Some)
            .ok_or(Error::LockStale { path, kernel })
    }

    /// Says which version was taken where the user left that open.
    fn say_newest(&self, wanted: &Wanted<'_>, resolved: &Resolved) {
        if let (Selector::Newest, Some(version), None) =
            (wanted.selector, resolved.version, &wanted.pinned)
        {
            self.events().note(format!(
                "`{}` is taken in version {version}, build `{}`",
                wanted.repository, resolved.variant
            ));
        }
    }
}

fn no_variant(
    kernel: String,
    system: &System,
    trace: &Resolution,
    suggestion: Option<String>,
) -> Error {
    Error::NoVariant {
        kernel,
        machine: in_words(system),
        trace: trace.trace_text(),
        suggestion,
    }
}
