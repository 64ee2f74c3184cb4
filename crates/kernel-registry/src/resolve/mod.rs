//! From a reference to one build at one commit.
//!
//! In this order: a local override, the index, and then the Hub, or the cache where there is no
//! network by choice. A version or branch becomes a commit once; every later request names that
//! commit. Nothing of a repository is asked for before its publisher is known to be trusted.

mod cached;
mod indexed;
mod metadata;
mod online;
mod redirect;

use kernel_spec::index::Origin as IndexOrigin;
use kernel_spec::variant::{self, Resolution};
use kernel_spec::version::branch_of_version;
use kernel_spec::{
    CommitId, Dependency, KernelRef, KernelSource, RepositoryId, Requirement, Selector, System,
};

use crate::error::{Distrust, Error, Result};
use crate::registry::Registry;
use crate::resolved::{Description, Resolved, Trust};
use crate::signature::Subject;
use crate::system::in_words;
use indexed::indexed_version;
use redirect::Way;

/// A reference to the Hub, taken apart.
struct Wanted<'a> {
    reference: &'a KernelRef,
    repository: &'a RepositoryId,
    selector: &'a Selector,
    /// The commit that the lock has for it.
    pinned: Option<CommitId>,
    system: &'a System,
    /// The build to take, whether it fits the machine or not.
    build: Option<&'a str>,
    purpose: Purpose,
}

/// What a repository, or the cache, has for a reference.
enum LookedUp {
    Kernel(Box<Resolved>),
    Moved(KernelRef),
}

/// What one step of resolving gives.
enum Found {
    Kernel(Box<Resolved>, Option<Distrust>),
    /// From a repository to another reference.
    Moved(RepositoryId, KernelRef),
}

impl Found {
    fn trusted(resolved: Resolved) -> Self {
        Self::Kernel(Box::new(resolved), None)
    }
}

/// What a kernel is resolved for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// To run: what must not run, or could not, is an error.
    Run,
    /// To look at it.
    Look,
}

impl Wanted<'_> {
    /// What a signature of a build has to be about. A version counts where the user named it or
    /// where it led to the commit.
    fn subject<'a>(&'a self, candidate: &Candidate, variant: &'a str) -> Subject<'a> {
        Subject {
            repository: Some(self.repository),
            version: candidate.version,
            variant,
        }
    }

    /// Judges builds by their names.
    fn judge<I>(&self, names: I) -> Resolution
    where
        I: IntoIterator,
        I::Item: AsRef<str>,
    {
        let mut resolution = variant::resolve(self.system, names);
        if let Some(build) = self.build {
            let all = std::mem::take(&mut resolution.accepted);
            let all = all
                .into_iter()
                .chain(std::mem::take(&mut resolution.rejected));
            (resolution.accepted, resolution.rejected) =
                all.partition(|decision| decision.name == build);
        }
        resolution
    }
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
        self.resolve_build(reference, system, None, Purpose::Run)
            .await
            .map(|(resolved, _)| resolved)
    }

    /// Looks at one kernel: what it says of itself, and whether it might run here. What must not run
    /// can still be looked at, so that the publisher need not be trusted, and no kernel that it needs
    /// is looked for. Only metadata and signature are fetched.
    pub fn describe(&self, reference: &KernelRef) -> Result<Description> {
        let looked = self.resolve_build(reference, self.system(), None, Purpose::Look);
        let (resolved, distrust) = self.block_on(looked)?;
        Ok(Description::new(resolved, distrust))
    }

    /// Resolves every build of a kernel, and of the kernels that they need, whether it fits this
    /// machine or not. What is returned has no dependencies: those are entries of their own. A
    /// folder on this machine gives its best build only.
    pub fn resolve_every_build(&self, reference: &KernelRef) -> Result<Vec<Resolved>> {
        let system = self.system();
        let mut found = Vec::new();
        let mut seen = vec![reference.clone()];
        let mut next = 0;
        while let Some(reference) = seen.get(next).cloned() {
            next += 1;
            for resolved in self.builds_of_one(&reference, system)? {
                for need in &resolved.metadata.kernel_depends {
                    let need = need.to_kernel_ref();
                    if !seen.contains(&need) {
                        seen.push(need);
                    }
                }
                found.push(resolved);
            }
        }
        Ok(found)
    }

    fn builds_of_one(&self, reference: &KernelRef, system: &System) -> Result<Vec<Resolved>> {
        let one = |build: Option<&str>, reference: &KernelRef| {
            self.block_on(self.resolve_build(reference, system, build, Purpose::Run))
                .map(|(resolved, _)| resolved)
        };
        let KernelSource::Hub {
            repository,
            selector,
        } = &reference.source
        else {
            return Ok(vec![one(None, reference)?]);
        };
        if self.settings().local_kernels.contains_key(repository) {
            return Ok(vec![one(None, reference)?]);
        }
        let pinned = self.locked_commit(repository, selector)?;
        let selector = pinned.map_or_else(
            || selector.clone(),
            |commit| Selector::Revision(commit.to_string()),
        );
        let mut reference = KernelRef {
            source: KernelSource::Hub {
                repository: repository.clone(),
                selector,
            },
            symbol: reference.symbol.clone(),
        };
        let builds = self.builds(&reference, system)?;
        // The newest version is looked up once, so that all builds are those of one version.
        if let (
            KernelSource::Hub {
                selector: selector @ Selector::Newest,
                ..
            },
            Some(version),
        ) = (&mut reference.source, builds.version)
        {
            *selector = Selector::Version(version);
        }
        let names = builds.resolution.accepted.iter();
        let names = names.chain(&builds.resolution.rejected);
        let mut found = Vec::new();
        for decision in names {
            match one(Some(&decision.name), &reference) {
                Ok(resolved) => found.push(resolved),
                // A build of the time before metadata can be used by nobody.
                Err(error @ Error::MetadataMissing { .. }) => {
                    self.events().warn(format!("{error}; it is left out"));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }

    /// Resolves one kernel, following it where it has moved.
    async fn resolve_build(
        &self,
        reference: &KernelRef,
        system: &System,
        build: Option<&str>,
        purpose: Purpose,
    ) -> Result<(Resolved, Option<Distrust>)> {
        let mut way = Way::default();
        let mut here = reference.clone();
        loop {
            match self.resolve_here(&here, system, build, purpose).await? {
                Found::Kernel(resolved, distrust) => {
                    let reference = reference.clone();
                    let resolved = Resolved {
                        reference,
                        ..*resolved
                    };
                    return Ok((resolved, distrust));
                }
                Found::Moved(from, to) => {
                    way.step(&from, &to)?;
                    self.say_moved(&from, &to);
                    here = to;
                }
            }
        }
    }

    async fn resolve_here(
        &self,
        reference: &KernelRef,
        system: &System,
        build: Option<&str>,
        purpose: Purpose,
    ) -> Result<Found> {
        let (repository, selector) = match &reference.source {
            KernelSource::Path(path) => {
                return self
                    .local(reference, path, None, system, purpose)
                    .map(Found::trusted);
            }
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
            return self
                .local(reference, path, Some(repository), system, purpose)
                .map(Found::trusted);
        }
        let pinned = self.locked_commit(repository, selector)?;
        let wanted = Wanted {
            reference,
            repository,
            selector,
            pinned,
            system,
            build,
            purpose,
        };
        if let Some(entry) = self.index_entry(repository)? {
            if entry.origin == IndexOrigin::Embedded {
                return self.resolve_in_program(&wanted, &entry).map(Found::trusted);
            }
            if let Some(version) = indexed_version(&wanted, &entry) {
                let resolved = self.resolve_indexed(&wanted, version).await;
                return resolved.map(Found::trusted);
            }
        }
        let (trust, distrust) = match self.trust(repository).await {
            // Nothing that is returned for a look can be installed.
            Err(Error::Untrusted { reason, .. }) if purpose == Purpose::Look => {
                (Trust::Allowed, Some(reason))
            }
            other => (other?, None),
        };
        let looked_up = if self.settings().offline {
            self.resolve_in_cache(&wanted, trust)?
        } else {
            self.resolve_on_hub(&wanted, trust).await?
        };
        Ok(match looked_up {
            LookedUp::Kernel(resolved) => Found::Kernel(resolved, distrust),
            LookedUp::Moved(to) => Found::Moved(repository.clone(), to),
        })
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
