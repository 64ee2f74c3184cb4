//! Kernels in the cache, where there is no network by choice.

use std::fs;
use std::path::Path;

use kernel_spec::path::METADATA_FILE;
use kernel_spec::version::branch_of_version;
use kernel_spec::{CommitId, KernelRef, Selector};

use super::{Candidate, LookedUp, Wanted, no_variant};
use crate::cache::{VariantFiles, is_absent};
use crate::error::{Error, Result};
use crate::registry::Registry;
use crate::resolved::{Documents, Location, Origin, Resolved, Trust};

impl Registry {
    /// A kernel of which there is at least one complete-looking build in the cache.
    pub(super) fn resolve_in_cache(&self, wanted: &Wanted<'_>, trust: Trust) -> Result<LookedUp> {
        let candidates = self.cached_candidates(wanted)?;
        if let Some(target) = self.moved_in_cache(wanted, &candidates)? {
            return Ok(LookedUp::Moved(target));
        }
        let mut candidates = candidates.into_iter();
        let Some(first) = candidates.next() else {
            return Err(self.not_cached(wanted, None));
        };
        let error = match self.cached_candidate(wanted, first, trust) {
            Ok(resolved) => return Ok(LookedUp::Kernel(Box::new(resolved))),
            Err(error) => error,
        };
        for candidate in candidates {
            if let Ok(resolved) = self.cached_candidate(wanted, candidate, trust) {
                self.say_newest(wanted, &resolved);
                return Ok(LookedUp::Kernel(Box::new(resolved)));
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

    pub(super) fn cached_candidate(
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
        let trace = wanted.judge(&variants);
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
            let documents = Documents::in_folder(bytes, &folder)?;
            let subject = wanted.subject(&candidate, &best.name);
            let (metadata, signature) =
                self.check_documents(&name, &documents, subject, trust, wanted.purpose)?;
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
                documents,
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
