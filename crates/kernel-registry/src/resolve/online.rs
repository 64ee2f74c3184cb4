//! Kernels on the Hub.

use std::fs;

use futures::future::try_join;
use kernel_spec::path::{METADATA_FILE, SIGNATURE_FILE};
use kernel_spec::variant::Resolution;
use kernel_spec::version::version_of_branch;
use kernel_spec::{CommitId, RepositoryId, Selector};

use super::{Candidate, LookedUp, Wanted, no_variant};
use crate::blob::BlobId;
use crate::cache::{Listing, VariantFiles, unless_unwritable};
use crate::error::{Error, Result};
use crate::hub::Download;
use crate::registry::Registry;
use crate::resolved::{Documents, Location, Origin, Resolved, Trust};

/// How many other versions are looked at for one that would fit, when none of the asked one does.
const MOST_SUGGESTIONS: usize = 5;
/// Largest metadata or signature, which are held in memory. The digest of a kernel with ten thousand
/// files takes one megabyte.
const LARGEST_DOCUMENT: u64 = 64 * 1024 * 1024;

impl Registry {
    pub(super) async fn resolve_on_hub(
        &self,
        wanted: &Wanted<'_>,
        trust: Trust,
    ) -> Result<LookedUp> {
        let error = match self.find_on_hub(wanted, trust).await {
            Ok(found) => return Ok(found),
            Err(error) => error,
        };
        let leads_nowhere = matches!(
            error,
            Error::NoVersions { .. }
                | Error::VersionNotFound { .. }
                | Error::NoBuilds { .. }
                | Error::NoVariant { .. }
        );
        if leads_nowhere && let Some(target) = self.moved_on_main(wanted).await {
            return Ok(LookedUp::Moved(target));
        }
        Err(error)
    }

    async fn find_on_hub(&self, wanted: &Wanted<'_>, trust: Trust) -> Result<LookedUp> {
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
            let status = listing.status.as_ref();
            if let Some(target) = self.moved_on_hub(wanted, &candidate.commit, status).await? {
                if let Some(revision) = &candidate.revision {
                    let cache = self.cache();
                    let noted = cache.write_reference(repository, revision, &candidate.commit);
                    unless_unwritable(noted)?;
                }
                return Ok(LookedUp::Moved(target));
            }
            if listing.variants.is_empty() {
                first_error.get_or_insert_with(|| no_builds(repository, &candidate));
                continue;
            }
            let trace = wanted.judge(listing.variants.keys());
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
            return Ok(LookedUp::Kernel(Box::new(resolved)));
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
            let cache = self.cache();
            let noted = cache
                .prepare()
                .and_then(|()| cache.write_listing(repository, commit, listing));
            unless_unwritable(noted)?;
        }
        Ok(listing)
    }

    /// Takes the best build that has metadata, and reads that.
    pub(super) async fn hub_candidate(
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
        let documents = self
            .fetch_documents(repository, &candidate.commit, &variant, &files)
            .await?;
        let subject = wanted.subject(&candidate, &variant);
        let (metadata, signature) =
            self.check_documents(&name, &documents, subject, trust, wanted.purpose)?;
        if let Some(version) = candidate
            .version
            .filter(|version| *version != metadata.version)
        {
            self.events().warn(format!(
                "`{name}` is version {version} by its branch and {} by its metadata",
                metadata.version
            ));
        }
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
            documents,
            location: Location::Cache(Some(files)),
            revision: candidate.revision,
        })
    }

    /// A build's metadata and the signature over it.
    async fn fetch_documents(
        &self,
        repository: &RepositoryId,
        commit: &CommitId,
        variant: &str,
        files: &VariantFiles,
    ) -> Result<Documents> {
        let signature = async {
            let Some(blob) = files.files.get(SIGNATURE_FILE) else {
                return Ok(None);
            };
            let path = format!("build/{variant}/{SIGNATURE_FILE}");
            let bytes = self.fetch_document(repository, commit, path, blob).await?;
            Ok(Some(bytes))
        };
        let metadata = self.fetch_metadata(repository, commit, variant, files);
        let (metadata, signature) = try_join(metadata, signature).await?;
        Ok(Documents {
            metadata: metadata.into(),
            signature: signature.map(Into::into),
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
        let Some(blob) = files.metadata() else {
            let kernel = format!("{repository}@{commit}");
            return Err(Error::MetadataMissing {
                kernel,
                variant: variant.to_owned(),
            });
        };
        let path = format!("build/{variant}/{METADATA_FILE}");
        self.fetch_document(repository, commit, path, blob).await
    }

    /// The bytes of one small file, from the cache where they are there and right.
    pub(super) async fn fetch_document(
        &self,
        repository: &RepositoryId,
        commit: &CommitId,
        path: String,
        blob: &BlobId,
    ) -> Result<Vec<u8>> {
        let cache = self.cache();
        if blob.size() > LARGEST_DOCUMENT {
            return Err(Error::HostileListing {
                kernel: format!("{repository}@{commit}"),
                reason: format!("`{path}` is said to have {} bytes", blob.size()),
            });
        }
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
            let trace = wanted.judge(listing.variants.keys());
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
}

pub(super) fn no_builds(repository: &RepositoryId, candidate: &Candidate) -> Error {
    let revision = candidate
        .revision
        .clone()
        .unwrap_or_else(|| candidate.commit.to_string());
    Error::NoBuilds {
        repository: repository.clone(),
        revision,
    }
}
