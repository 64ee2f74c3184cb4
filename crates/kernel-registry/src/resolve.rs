//! From a reference to one build at one commit.
//!
//! In this order: a local override, the index, and then the Hub, or the cache where there is no
//! network by choice. A version or branch becomes a commit once; every later request names that
//! commit. Nothing of a repository is asked for before its publisher is known to be trusted.

use std::fs;
use std::path::Path;

use kernel_spec::index::{IndexVersion, Origin as IndexOrigin, RepositoryEntry};
use kernel_spec::path::{METADATA_FILE, SIGNATURE_FILE};
use kernel_spec::variant::{self, Resolution};
use kernel_spec::version::{
    COMPATIBLE_KERNELS, ReleaseVersion, branch_of_version, version_of_branch,
};
use kernel_spec::{
    CommitId, Dependency, KernelRef, KernelSource, Metadata, RepositoryId, Requirement, Selector,
    System,
};

use crate::cache::{Listing, VariantFiles, is_absent};
use crate::embedded;
use crate::error::{Error, Result};
use crate::hub::Download;
use crate::python_depends;
use crate::registry::Registry;
use crate::resolved::{Location, Origin, Resolved, Signature, Trust};
use crate::system::in_words;

/// How many other versions are looked at for one that would fit, when none of the asked one does.
const MOST_SUGGESTIONS: usize = 5;

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
                return self.from_program(&wanted, entry);
            }
            if let Some(version) = indexed_version(&wanted, entry) {
                return self.from_indexed(&wanted, version).await;
            }
        }
        let trust = self.trust(repository).await?;
        if self.settings().offline {
            return self.from_cache(&wanted, trust);
        }
        self.from_hub(&wanted, trust).await
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

    /// A kernel whose builds are inside the program.
    fn from_program(&self, wanted: &Wanted<'_>, entry: &RepositoryEntry) -> Result<Resolved> {
        let repository = wanted.repository;
        let Some(version) = indexed_version(wanted, entry) else {
            let mut available: Vec<_> = entry.versions.iter().map(|entry| entry.version).collect();
            available.sort_unstable();
            return Err(match (&wanted.pinned, wanted.selector) {
                (Some(commit), _) => Error::RevisionNotFound {
                    repository: repository.clone(),
                    revision: commit.to_string(),
                },
                (None, Selector::Version(version)) => Error::VersionNotFound {
                    repository: repository.clone(),
                    version: *version,
                    available,
                },
                (None, Selector::Revision(revision)) => Error::RevisionNotFound {
                    repository: repository.clone(),
                    revision: revision.clone(),
                },
                (None, Selector::Newest) => Error::NoVersions {
                    repository: repository.clone(),
                },
            });
        };
        self.warn_if_withdrawn(repository, version);
        let builds = embedded::builds(repository, version);
        let trace = variant::resolve(wanted.system, builds.iter().map(|build| build.variant));
        let name = format!("{repository}@v{}", version.version);
        let build = trace
            .best()
            .and_then(|best| builds.iter().find(|build| build.variant == best.name))
            .ok_or_else(|| no_variant(name.clone(), wanted.system, &trace, None))?;
        let bytes = build.metadata().ok_or_else(|| Error::MetadataMissing {
            kernel: name.clone(),
            variant: build.variant.to_owned(),
        })?;
        let metadata = self.check_metadata(&name, bytes)?;
        let signature = self.signature(
            &name,
            build.files.iter().any(|(name, _)| *name == SIGNATURE_FILE),
            &Trust::Index,
        )?;
        Ok(Resolved {
            reference: wanted.reference.clone(),
            repository: Some(repository.clone()),
            version: Some(version.version),
            commit: Some(version.commit.clone()),
            variant: build.variant.to_owned(),
            metadata: metadata.into(),
            trust: Trust::Index,
            signature,
            location: Location::Embedded(*build),
            trace,
            origin: Origin::Index,
            dependencies: Vec::new(),
            revision: Some(branch_of_version(version.version)),
        })
    }

    fn warn_if_withdrawn(&self, repository: &RepositoryId, version: &IndexVersion) {
        if let Some(reason) = &version.yanked {
            let number = version.version;
            self.events().warn(format!(
                "version {number} of `{repository}` was withdrawn: {reason}"
            ));
        }
    }

    /// A kernel on the Hub whose commit and metadata the index vouches for.
    async fn from_indexed(&self, wanted: &Wanted<'_>, version: &IndexVersion) -> Result<Resolved> {
        self.warn_if_withdrawn(wanted.repository, version);
        let candidate = Candidate::version(version.version, version.commit.clone());
        let resolved = if self.settings().offline {
            self.cached_candidate(wanted, candidate, Trust::Index)?
        } else {
            let listing = self.listing(wanted.repository, &candidate.commit).await?;
            let name = candidate.name(wanted.repository);
            let listing = listing.ok_or_else(|| no_builds(wanted.repository, &candidate))?;
            let trace = variant::resolve(wanted.system, listing.variants.keys());
            if trace.best().is_none() {
                return Err(no_variant(name, wanted.system, &trace, None));
            }
            self.hub_candidate(wanted, candidate, &listing, trace, Trust::Index)
                .await?
        };
        let file = self.metadata_path(&resolved);
        let bytes = fs::read(&file).map_err(Error::io("read", &file))?;
        match version.digests.get(&resolved.variant) {
            Some(digest) if digest.matches(&bytes) => Ok(resolved),
            _ => Err(Error::RefusedFile {
                path: file,
                reason: "it is not the metadata that the index vouches for".to_owned(),
            }),
        }
    }

    fn metadata_path(&self, resolved: &Resolved) -> std::path::PathBuf {
        match (&resolved.repository, &resolved.commit) {
            (Some(repository), Some(commit)) => self
                .cache()
                .variant(repository, commit, &resolved.variant)
                .join(METADATA_FILE),
            _ => METADATA_FILE.into(),
        }
    }

    /// A kernel of which there is at least one complete-looking build in the cache.
    fn from_cache(&self, wanted: &Wanted<'_>, trust: Trust) -> Result<Resolved> {
        let mut candidates = self.cached_candidates(wanted)?.into_iter();
        let Some(first) = candidates.next() else {
            return Err(self.not_cached(wanted, None));
        };
        let error = match self.cached_candidate(wanted, first, trust) {
            Ok(resolved) => return Ok(resolved),
            Err(error) => error,
        };
        for candidate in candidates {
            if let Ok(resolved) = self.cached_candidate(wanted, candidate, trust) {
                self.say_newest(wanted, &resolved);
                return Ok(resolved);
            }
        }
        Err(error)
    }

    fn cached_candidates(&self, wanted: &Wanted<'_>) -> Result<Vec<Candidate>> {
        if let Some(commit) = &wanted.pinned {
            return Ok(vec![Candidate::pinned(commit.clone(), wanted.selector)]);
        }
        let (cache, repository) = (self.cache(), wanted.repository);
        Ok(match wanted.selector {
            Selector::Version(version) => cache
                .reference(repository, &branch_of_version(*version))?
                .map(|commit| Candidate::version(*version, commit))
                .into_iter()
                .collect(),
            Selector::Revision(revision) if CommitId::is_commit_id(revision) => {
                vec![Candidate::pinned(revision.parse()?, wanted.selector)]
            }
            Selector::Revision(revision) => cache
                .reference(repository, revision)?
                .map(|commit| Candidate {
                    commit,
                    version: None,
                    revision: Some(revision.clone()),
                })
                .into_iter()
                .collect(),
            Selector::Newest => cache
                .versions(repository)?
                .into_iter()
                .rev()
                .map(|(version, commit)| Candidate::version(version, commit))
                .collect(),
        })
    }

    fn cached_candidate(
        &self,
        wanted: &Wanted<'_>,
        candidate: Candidate,
        trust: Trust,
    ) -> Result<Resolved> {
        let (cache, repository) = (self.cache(), wanted.repository);
        let variants = cache.variants(repository, &candidate.commit)?;
        if variants.is_empty() {
            return Err(self.not_cached(wanted, None));
        }
        let trace = variant::resolve(wanted.system, &variants);
        let name = candidate.name(repository);
        for best in &trace.accepted {
            let folder = cache.variant(repository, &candidate.commit, &best.name);
            let file = folder.join(METADATA_FILE);
            let bytes = match fs::read(&file) {
                Err(error) if is_absent(&error) => continue,
                other => other.map_err(Error::io("read", &file))?,
            };
            let listed = cache
                .listing(repository, &candidate.commit)?
                .and_then(|mut listing| listing.variants.remove(&best.name));
            check_listed_metadata(&file, &bytes, listed.as_ref())?;
            let metadata = self.check_metadata(&name, &bytes)?;
            let signature = self.check_signature(&name, &folder)?;
            return Ok(Resolved {
                reference: wanted.reference.clone(),
                repository: Some(repository.clone()),
                version: candidate.version,
                commit: Some(candidate.commit),
                variant: best.name.clone(),
                metadata: metadata.into(),
                trust,
                signature,
                trace,
                origin: Origin::Cache,
                dependencies: Vec::new(),
                location: Location::Cache(listed),
                revision: None,
            });
        }
        if trace.best().is_some() {
            return Err(self.not_cached(wanted, Some("its `metadata.json` is missing".to_owned())));
        }
        Err(no_variant(name, wanted.system, &trace, None))
    }

    fn not_cached(&self, wanted: &Wanted<'_>, missing: Option<String>) -> Error {
        let kernel = match &wanted.pinned {
            Some(commit) => format!("{}@{commit}", wanted.repository),
            None => KernelRef::hub(wanted.repository.clone(), wanted.selector.clone()).to_string(),
        };
        Error::NotCached {
            kernel,
            cache: self.cache().root().to_owned(),
            missing,
        }
    }

    async fn from_hub(&self, wanted: &Wanted<'_>, trust: Trust) -> Result<Resolved> {
        let repository = wanted.repository;
        let candidates = self.hub_candidates(wanted).await?;
        let mut first_error = None;
        for candidate in candidates {
            let listing = self.listing(repository, &candidate.commit).await?;
            let name = candidate.name(repository);
            let Some(listing) = listing else {
                first_error.get_or_insert_with(|| no_builds(repository, &candidate));
                continue;
            };
            let trace = variant::resolve(wanted.system, listing.variants.keys());
            if trace.best().is_none() {
                if first_error.is_none() {
                    let suggestion = match wanted.selector {
                        Selector::Newest => None,
                        _ => self.suggestion(wanted, &candidate).await,
                    };
                    first_error = Some(no_variant(name, wanted.system, &trace, suggestion));
                }
                continue;
            }
            let resolved = self
                .hub_candidate(wanted, candidate, &listing, trace, trust)
                .await?;
            self.say_newest(wanted, &resolved);
            return Ok(resolved);
        }
        Err(first_error.unwrap_or_else(|| Error::NoVersions {
            repository: repository.clone(),
        }))
    }

    /// The commits that a reference may mean, the best first. At most one request.
    async fn hub_candidates(&self, wanted: &Wanted<'_>) -> Result<Vec<Candidate>> {
        let repository = wanted.repository;
        if let Some(commit) = &wanted.pinned {
            return Ok(vec![Candidate::pinned(commit.clone(), wanted.selector)]);
        }
        match wanted.selector {
            Selector::Revision(revision) if CommitId::is_commit_id(revision) => {
                Ok(vec![Candidate::pinned(revision.parse()?, wanted.selector)])
            }
            Selector::Revision(revision) => {
                let commit = self.hub()?.commit(repository, revision).await?;
                let (version, revision) = (version_of_branch(revision), Some(revision.clone()));
                Ok(vec![Candidate {
                    commit,
                    version,
                    revision,
                }])
            }
            Selector::Version(version) => {
                let mut versions = self.hub()?.references(repository).await?.versions();
                match versions.remove(version) {
                    Some(commit) => Ok(vec![Candidate::version(*version, commit)]),
                    None => Err(Error::VersionNotFound {
                        repository: repository.clone(),
                        version: *version,
                        available: versions.into_keys().collect(),
                    }),
                }
            }
            Selector::Newest => {
                let versions = self.hub()?.references(repository).await?.versions();
                let newest_first = versions.into_iter().rev();
                Ok(newest_first
                    .map(|(version, commit)| Candidate::version(version, commit))
                    .collect())
            }
        }
    }

    /// The builds of a commit: from our notes, or else from the Hub.
    pub(crate) async fn listing(
        &self,
        repository: &RepositoryId,
        commit: &CommitId,
    ) -> Result<Option<Listing>> {
        if let Some(listing) = self.cache().listing(repository, commit)? {
            return Ok(Some(listing));
        }
        let listing = self.hub()?.builds(repository, commit).await?;
        if let Some(listing) = &listing {
            self.cache().prepare()?;
            self.cache().write_listing(repository, commit, listing)?;
        }
        Ok(listing)
    }

    /// Takes the best build that has metadata, and reads that.
    async fn hub_candidate(
        &self,
        wanted: &Wanted<'_>,
        candidate: Candidate,
        listing: &Listing,
        trace: Resolution,
        trust: Trust,
    ) -> Result<Resolved> {
        let repository = wanted.repository;
        let name = candidate.name(repository);
        let found = trace.accepted.iter().find_map(|decision| {
            let files = listing.variants.get(&decision.name)?;
            files
                .metadata()
                .map(|_| (decision.name.clone(), files.clone()))
        });
        let Some((variant, files)) = found else {
            let variant = trace
                .best()
                .map(|best| best.name.clone())
                .unwrap_or_default();
            return Err(Error::MetadataMissing {
                kernel: name,
                variant,
            });
        };
        files.check_case().map_err(|reason| Error::HostileListing {
            kernel: name.clone(),
            reason,
        })?;
        let bytes = self
            .fetch_metadata(repository, &candidate.commit, &variant, &files)
            .await?;
        let metadata = self.check_metadata(&name, &bytes)?;
        if let Some(version) = candidate
            .version
            .filter(|version| *version != metadata.version)
        {
            self.events().warn(format!(
                "`{name}` is version {version} by its branch and {} by its metadata",
                metadata.version
            ));
        }
        let signature = self.signature(&name, files.files.contains_key(SIGNATURE_FILE), &trust)?;
        Ok(Resolved {
            reference: wanted.reference.clone(),
            repository: Some(repository.clone()),
            version: candidate.version,
            commit: Some(candidate.commit),
            variant,
            metadata: metadata.into(),
            trust,
            signature,
            trace,
            origin: Origin::Hub,
            dependencies: Vec::new(),
            location: Location::Cache(Some(files)),
            revision: candidate.revision,
        })
    }

    /// The bytes of a build's metadata, from the cache where they are there and right.
    pub(crate) async fn fetch_metadata(
        &self,
        repository: &RepositoryId,
        commit: &CommitId,
        variant: &str,
        files: &VariantFiles,
    ) -> Result<Vec<u8>> {
        let path = format!("build/{variant}/{METADATA_FILE}");
        let cache = self.cache();
        let Some(blob) = files.metadata() else {
            let kernel = format!("{repository}@{commit}");
            return Err(Error::MetadataMissing {
                kernel,
                variant: variant.to_owned(),
            });
        };
        let linked = cache.snapshot(repository, commit).join(&path);
        if let Ok(bytes) = fs::read(&linked)
            && blob.matches(&bytes)
        {
            return Ok(bytes);
        }
        let file = cache.blob(repository, blob);
        if !blob.matches_file(&file).map_err(Error::io("read", &file))? {
            cache.prepare()?;
            let download = Download {
                repository,
                commit,
                path: path.clone(),
                blob: blob.clone(),
            };
            self.hub()?.download(cache, &download).await?;
        }
        let bytes = fs::read(&file).map_err(Error::io("read", &file))?;
        if !blob.matches(&bytes) {
            let reason = "it was changed while it was read".to_owned();
            return Err(Error::Corrupt {
                repository: repository.clone(),
                path,
                reason,
            });
        }
        cache.link(repository, commit, &path, blob)?;
        Ok(bytes)
    }

    /// A version that would fit, after the asked one did not. It must not hide the error, so
    /// failures count as nothing found.
    async fn suggestion(&self, wanted: &Wanted<'_>, failed: &Candidate) -> Option<String> {
        let versions = self
            .hub()
            .ok()?
            .references(wanted.repository)
            .await
            .ok()?
            .versions();
        let others = versions
            .into_iter()
            .rev()
            .filter(|(_, commit)| *commit != failed.commit);
        for (version, commit) in others.take(MOST_SUGGESTIONS) {
            let Ok(Some(listing)) = self.listing(wanted.repository, &commit).await else {
                continue;
            };
            let trace = variant::resolve(wanted.system, listing.variants.keys());
            if let Some(best) = trace.best() {
                let repository = wanted.repository;
                return Some(format!(
                    "version {version} has a build that fits, `{}`: `{repository}@v{version}`",
                    best.name
                ));
            }
        }
        None
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

    /// Reads metadata and refuses what could not be loaded. A kernel of a later format is told
    /// apart from a broken one even where its metadata has things that are unknown here.
    pub(crate) fn check_metadata(&self, kernel: &str, bytes: &[u8]) -> Result<Metadata> {
        let metadata = Metadata::from_slice(bytes).map_err(|error| match needed_release(bytes) {
            Some(required) if required > COMPATIBLE_KERNELS => kernel_spec::Error::TooNew {
                name: kernel.to_owned(),
                required,
                supported: COMPATIBLE_KERNELS,
            },
            _ => error,
        });
        let metadata = metadata.map_err(Error::format(format!("`{kernel}`")))?;
        metadata
            .check_compatible(COMPATIBLE_KERNELS)
            .map_err(Error::format(format!("`{kernel}`")))?;
        python_depends::packages(kernel, &metadata)?;
        if let Some(provenance) = &metadata.provenance
            && provenance.is_dirty()
        {
            self.events().warn(format!(
                "`{kernel}` was built from sources with changes that are in no commit"
            ));
        }
        Ok(metadata)
    }

    /// What is known about the signature of a build in a folder.
    pub(crate) fn check_signature(&self, kernel: &str, folder: &Path) -> Result<Signature> {
        self.signature(
            kernel,
            folder.join(SIGNATURE_FILE).is_file(),
            &Trust::Publisher,
        )
    }

    /// What is known about a signature. The index is compiled into the program, which is what a
    /// signature would be checked with, so that its word is as good.
    fn signature(&self, kernel: &str, present: bool, trust: &Trust) -> Result<Signature> {
        if self.settings().require_signed && *trust != Trust::Index {
            return Err(Error::SignatureRequired {
                kernel: kernel.to_owned(),
            });
        }
        Ok(if present {
            Signature::Unchecked
        } else {
            Signature::Unsigned
        })
    }
}

/// The version of an index entry that is wanted: the locked commit's, the selected one, or the
/// newest one with a build that fits.
fn indexed_version<'a>(
    wanted: &Wanted<'_>,
    entry: &'a RepositoryEntry,
) -> Option<&'a IndexVersion> {
    let mut versions: Vec<_> = entry.versions.iter().collect();
    versions.sort_by_key(|version| std::cmp::Reverse(version.version));
    if let Some(commit) = &wanted.pinned {
        return versions
            .into_iter()
            .find(|version| version.commit == *commit);
    }
    let fits = |version: &&IndexVersion| {
        variant::resolve(wanted.system, version.digests.keys())
            .best()
            .is_some()
    };
    match wanted.selector {
        Selector::Version(number) => versions
            .into_iter()
            .find(|version| version.version == *number),
        Selector::Revision(revision) => versions
            .into_iter()
            .find(|version| version.commit.as_str().eq_ignore_ascii_case(revision)),
        Selector::Newest => {
            versions.retain(|version| version.yanked.is_none());
            let newest = versions.first().copied();
            versions.into_iter().find(fits).or(newest)
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

fn no_builds(repository: &RepositoryId, candidate: &Candidate) -> Error {
    let revision = candidate
        .revision
        .clone()
        .unwrap_or_else(|| candidate.commit.to_string());
    Error::NoBuilds {
        repository: repository.clone(),
        revision,
    }
}

/// Compares cached metadata with the content id that the Hub's tree gave for it: whoever changes
/// both files and digest would otherwise not be noticed.
fn check_listed_metadata(file: &Path, bytes: &[u8], listed: Option<&VariantFiles>) -> Result<()> {
    match listed.and_then(VariantFiles::metadata) {
        Some(blob) if !blob.matches(bytes) => Err(Error::RefusedFile {
            path: file.to_owned(),
            reason: "it is not what the Hub lists for this commit; fetch it again while online"
                .to_owned(),
        }),
        _ => Ok(()),
    }
}

/// `kernels-minver` of metadata that may hold things which are unknown here.
fn needed_release(bytes: &[u8]) -> Option<ReleaseVersion> {
    let value: serde_json::Value = serde_json::from_slice(bytes).ok()?;
    value.get("kernels-minver")?.as_str()?.parse().ok()
}
