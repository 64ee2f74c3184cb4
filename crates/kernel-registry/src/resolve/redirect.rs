//! Kernels that have moved: `kernel-status.toml` at the top of a branch names another repository.
//!
//! The file is looked for in the listing of the commit that a reference means, which costs no
//! request, and on `main` where the reference leads to no build. It is followed where the user left
//! the commit open; a commit that is named, or that the lock has, is what is wanted. The other
//! repository has to be trusted for itself.

use std::fs;

use kernel_spec::status::STATUS_FILE;
use kernel_spec::{CommitId, KernelRef, KernelSource, KernelStatus, RepositoryId, Selector};

use super::{Candidate, Wanted};
use crate::blob::BlobId;
use crate::cache::unless_unwritable;
use crate::error::{Error, Result};
use crate::registry::Registry;

/// The branch that a status is on where the version branches have none.
const STATUS_BRANCH: &str = "main";

/// The references that were followed so far, the first one first.
#[derive(Debug, Default)]
pub(super) struct Way(Vec<RepositoryId>);

impl Way {
    /// Notes a step; one that was made before leads round in a circle.
    pub(super) fn step(&mut self, from: &RepositoryId, to: &KernelRef) -> Result<()> {
        self.0.push(from.clone());
        match to.repository() {
            Some(next) if self.0.contains(next) => {
                let mut path = self.0.clone();
                path.push(next.clone());
                Err(Error::RedirectCycle { path })
            }
            _ => Ok(()),
        }
    }
}

impl Wanted<'_> {
    /// Whether the commit is open, so that a redirect counts.
    pub(super) fn follows_redirects(&self) -> bool {
        let named = match self.selector {
            Selector::Revision(revision) => CommitId::is_commit_id(revision),
            _ => false,
        };
        self.pinned.is_none() && !named
    }

    /// Another reference with this one's symbol.
    fn elsewhere(&self, target: KernelRef) -> KernelRef {
        KernelRef {
            symbol: self.reference.symbol.clone(),
            ..target
        }
    }
}

impl Registry {
    /// Where a commit says that the kernel has moved to.
    pub(super) async fn moved_on_hub(
        &self,
        wanted: &Wanted<'_>,
        commit: &CommitId,
        status: Option<&BlobId>,
    ) -> Result<Option<KernelRef>> {
        let Some(blob) = status.filter(|_| wanted.follows_redirects()) else {
            return Ok(None);
        };
        let path = STATUS_FILE.to_owned();
        let repository = wanted.repository;
        let bytes = self.fetch_document(repository, commit, path, blob).await?;
        read(repository, &bytes).map(|target| Some(wanted.elsewhere(target)))
    }

    /// Where `main` says that the kernel has moved to. Nothing that fails here must hide why the
    /// kernel was not found.
    pub(super) async fn moved_on_main(&self, wanted: &Wanted<'_>) -> Option<KernelRef> {
        if !wanted.follows_redirects() {
            return None;
        }
        let repository = wanted.repository;
        let commit = self
            .hub()
            .ok()?
            .commit(repository, STATUS_BRANCH)
            .await
            .ok()?;
        let listing = self.listing(repository, &commit).await.ok()??;
        let target = self.moved_on_hub(wanted, &commit, listing.status.as_ref());
        let target = target.await.ok()??;
        let noted = self
            .cache()
            .write_reference(repository, STATUS_BRANCH, &commit);
        unless_unwritable(noted).ok().map(|()| target)
    }

    /// Where commits in the cache say that the kernel has moved to: those that a reference may mean,
    /// or `main` where there are none.
    pub(super) fn moved_in_cache(
        &self,
        wanted: &Wanted<'_>,
        candidates: &[Candidate],
    ) -> Result<Option<KernelRef>> {
        if !wanted.follows_redirects() {
            return Ok(None);
        }
        let mut commits: Vec<_> = candidates.iter().map(|one| one.commit.clone()).collect();
        if commits.is_empty() {
            commits.extend(self.cache().reference(wanted.repository, STATUS_BRANCH)?);
        }
        for commit in &commits {
            if let Some(target) = self.status_in_cache(wanted, commit)? {
                return Ok(Some(target));
            }
        }
        Ok(None)
    }

    fn status_in_cache(&self, wanted: &Wanted<'_>, commit: &CommitId) -> Result<Option<KernelRef>> {
        let (cache, repository) = (self.cache(), wanted.repository);
        let status = cache
            .listing(repository, commit)?
            .and_then(|listing| listing.status);
        let path = cache.snapshot(repository, commit).join(STATUS_FILE);
        let (Some(blob), Ok(bytes)) = (status, fs::read(path)) else {
            return Ok(None);
        };
        if !blob.matches(&bytes) {
            return Ok(None);
        }
        read(repository, &bytes).map(|target| Some(wanted.elsewhere(target)))
    }

    /// Says that a kernel is taken from another repository.
    pub(super) fn say_moved(&self, from: &RepositoryId, to: &KernelRef) {
        self.events().note(format!("`{from}` has moved to `{to}`"));
    }
}

fn read(repository: &RepositoryId, bytes: &[u8]) -> Result<KernelRef> {
    let about = || Error::format(format!("`{repository}`"));
    let text = String::from_utf8_lossy(bytes);
    let target = KernelStatus::from_toml(&text)
        .and_then(|status| status.target())
        .map_err(about())?;
    match &target.source {
        KernelSource::Hub { .. } => Ok(target),
        // A status names a repository, so that this cannot be reached.
        KernelSource::Path(path) => Err(Error::LocalKernel {
            path: path.clone(),
            reason: "a kernel cannot move to a folder".to_owned(),
        }),
    }
}
