//! Kernels that the index knows: inside the program, or on the Hub with a commit and a hash.

use std::fs;
use std::path::PathBuf;

use kernel_spec::index::{IndexVersion, RepositoryEntry};
use kernel_spec::path::{METADATA_FILE, SIGNATURE_FILE};
use kernel_spec::version::branch_of_version;
use kernel_spec::{RepositoryId, Selector};

use super::online::no_builds;
use super::{Candidate, Wanted, no_variant};
use crate::embedded;
use crate::error::{Error, Result};
use crate::registry::Registry;
use crate::resolved::{Documents, Location, Origin, Resolved, Trust};
use crate::signature::Subject;

impl Registry {
    /// A kernel whose builds are inside the program.
    pub(super) fn resolve_in_program(
        &self,
        wanted: &Wanted<'_>,
        entry: &RepositoryEntry,
    ) -> Result<Resolved> {
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
        let trace = wanted.judge(builds.iter().map(|build| build.variant));
        let name = format!("{repository}@v{}", version.version);
        let build = trace
            .best()
            .and_then(|best| builds.iter().find(|build| build.variant == best.name))
            .ok_or_else(|| no_variant(name.clone(), wanted.system, &trace, None))?;
        let bytes = build.metadata().ok_or_else(|| Error::MetadataMissing {
            kernel: name.clone(),
            variant: build.variant.to_owned(),
        })?;
        let documents = Documents {
            metadata: bytes.into(),
            signature: build.file(SIGNATURE_FILE).map(Into::into),
        };
        let subject = Subject {
            repository: Some(repository),
            version: Some(version.version),
            variant: build.variant,
        };
        let (metadata, signature) =
            self.check_documents(&name, &documents, subject, Trust::Index, wanted.purpose)?;
        Ok(Resolved {
            reference: wanted.reference.clone(),
            repository: Some(repository.clone()),
            version: Some(version.version),
            commit: Some(version.commit.clone()),
            variant: build.variant.to_owned(),
            metadata: metadata.into(),
            trust: Trust::Index,
            signature,
            documents,
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
    pub(super) async fn resolve_indexed(
        &self,
        wanted: &Wanted<'_>,
        version: &IndexVersion,
    ) -> Result<Resolved> {
        self.warn_if_withdrawn(wanted.repository, version);
        let candidate = Candidate::version(version.version, version.commit.clone());
        let resolved = if self.settings().offline {
            self.cached_candidate(wanted, candidate, Trust::Index)?
        } else {
            let listing = self.listing(wanted.repository, &candidate.commit).await?;
            let name = candidate.name(wanted.repository);
            let listing = listing.ok_or_else(|| no_builds(wanted.repository, &candidate))?;
            let trace = wanted.judge(listing.variants.keys());
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

    fn metadata_path(&self, resolved: &Resolved) -> PathBuf {
        match (&resolved.repository, &resolved.commit) {
            (Some(repository), Some(commit)) => self
                .cache()
                .variant(repository, commit, &resolved.variant)
                .join(METADATA_FILE),
            _ => METADATA_FILE.into(),
        }
    }
}

/// The version of an index entry that is wanted: the locked commit's, the selected one, or the
/// newest one with a build that fits.
pub(super) fn indexed_version<'a>(
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
    let fits = |version: &&IndexVersion| wanted.judge(version.digests.keys()).best().is_some();
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
