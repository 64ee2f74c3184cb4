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
use kernel_spec::variant::{self, Resolution};
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
    /// The build to take, whether it fits the machine or not.
    build: Option<&'a str>,
}

impl Wanted<'_> {
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
        self.resolve_build(reference, system, None).await
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
            self.block_on(self.resolve_build(reference, system, build))
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

    async fn resolve_build(
        &self,
        reference: &KernelRef,
        system: &System,
        build: Option<&str>,
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
            build,
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
