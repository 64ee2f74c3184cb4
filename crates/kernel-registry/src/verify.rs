//! Checks a build on disk and reports everything that is wrong with it.
//!
//! Loading stops at the first problem; this is for people, who want to see all of them.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use kernel_spec::path::{METADATA_FILE, SIGNATURE_FILE, is_outside_digest};
use kernel_spec::{
    CommitId, Digest, DigestAlgorithm, KernelRef, KernelSource, Metadata, RepositoryId, Selector,
    Variant,
};

use crate::cache::names;
use crate::error::{Error, Result};
use crate::parallel;
use crate::registry::Registry;
use crate::signature::{Signature, SignaturePolicy, Subject};
use crate::tree::Tree;

/// What became of comparing a build with its digest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum DigestStatus {
    /// Every file is the one that was hashed, and there are no others.
    Ok,
    /// There are deviations.
    Mismatch,
    /// There is no metadata, or no digest in it.
    Missing,
}

impl DigestStatus {
    /// The word in machine-readable output.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Mismatch => "mismatch",
            Self::Missing => "missing",
        }
    }
}

/// Everything that a check found.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Verification {
    /// The build's folder.
    pub path: PathBuf,
    /// What became of the digest.
    pub digest: DigestStatus,
    /// Deviations from the digest, a line each.
    pub violations: Vec<String>,
    /// Files that must not be there whatever the digest says: links out of the tree, names that can
    /// be read in two ways, and bytecode, which Python would run without looking at the source.
    pub refused: Vec<String>,
    /// What is known about the signature.
    pub signature: Signature,
}

impl Verification {
    /// Whether the build may be loaded.
    pub fn is_ok(&self) -> bool {
        self.digest == DigestStatus::Ok && self.refused.is_empty()
    }
}

impl Registry {
    /// Checks every build of a kernel that is on this machine: those in a folder, or those in the
    /// cache. No file is fetched, because that would put right what is wrong. Of a repository, the
    /// metadata is compared with what the index or the Hub's tree says of it, too.
    pub fn verify(&self, reference: &KernelRef) -> Result<Vec<Verification>> {
        let (repository, selector) = match &reference.source {
            KernelSource::Path(path) => return self.verify_folders(path, None),
            KernelSource::Hub {
                repository,
                selector,
            } => (repository, selector),
        };
        if let Some(path) = self.settings().local_kernels.get(repository) {
            return self.verify_folders(path, Some(repository));
        }
        let cache = self.cache();
        let missing = || Error::NotCached {
            kernel: KernelRef::hub(repository.clone(), selector.clone()).to_string(),
            cache: cache.root().to_owned(),
            missing: None,
        };
        let commit = &self
            .known_commit(repository, selector)?
            .ok_or_else(missing)?;
        let mut found = Vec::new();
        for variant in &cache.fetched_variants(repository, commit)? {
            let folder = cache.variant(repository, commit, variant);
            let subject = Subject {
                repository: Some(repository),
                version: selector_version(selector),
                variant,
            };
            let mut verification = verify_folder(&folder, &self.settings().signatures, subject)?;
            if !self.vouched_metadata(repository, commit, variant, &folder)? {
                verification.digest = DigestStatus::Mismatch;
                verification.violations.push(format!(
                    "{METADATA_FILE}: it is not the one that belongs to this commit"
                ));
            }
            found.push(verification);
        }
        if found.is_empty() {
            return Err(missing());
        }
        Ok(found)
    }

    fn verify_folders(
        &self,
        path: &Path,
        repository: Option<&RepositoryId>,
    ) -> Result<Vec<Verification>> {
        let mut found = Vec::new();
        for folder in build_folders(path)? {
            let whole = std::path::absolute(&folder).unwrap_or_else(|_| folder.clone());
            let name = whole.file_name().unwrap_or_default().to_string_lossy();
            let subject = Subject {
                repository,
                version: None,
                variant: &name,
            };
            found.push(verify_folder(
                &folder,
                &self.settings().signatures,
                subject,
            )?);
        }
        Ok(found)
    }

    /// The commit of a selector, as far as index and cache know it.
    fn known_commit(
        &self,
        repository: &RepositoryId,
        selector: &Selector,
    ) -> Result<Option<CommitId>> {
        let entry = self.index_entry(repository)?;
        if let Some(version) = entry.as_ref().and_then(|entry| entry.version(selector)) {
            return Ok(Some(version.commit.clone()));
        }
        match selector {
            Selector::Newest => Ok(self.cache().versions(repository)?.into_values().next_back()),
            Selector::Revision(revision) if CommitId::is_commit_id(revision) => {
                Ok(Some(revision.parse()?))
            }
            Selector::Revision(revision) => self.cache().reference(repository, revision),
            Selector::Version(version) => Ok(self.cache().versions(repository)?.remove(version)),
        }
    }

    /// Whether metadata in the cache is what the index or the Hub's tree says it is. What neither
    /// knows passes.
    fn vouched_metadata(
        &self,
        repository: &RepositoryId,
        commit: &CommitId,
        variant: &str,
        folder: &Path,
    ) -> Result<bool> {
        let Ok(bytes) = fs::read(folder.join(METADATA_FILE)) else {
            return Ok(true);
        };
        let selector = Selector::Revision(commit.to_string());
        let entry = self.index_entry(repository)?;
        if let Some(version) = entry.as_ref().and_then(|entry| entry.version(&selector)) {
            let digest = version.digests.get(variant);
            return Ok(digest.is_some_and(|digest| digest.matches(&bytes)));
        }
        let listing = self.cache().listing(repository, commit)?;
        let listed = listing.and_then(|mut listing| listing.variants.remove(variant));
        Ok(listed
            .as_ref()
            .and_then(crate::cache::VariantFiles::metadata)
            .is_none_or(|blob| blob.matches(&bytes)))
    }
}

fn selector_version(selector: &Selector) -> Option<u64> {
    match selector {
        Selector::Version(version) => Some(*version),
        _ => None,
    }
}

/// The builds in a folder: itself where it holds metadata, or else what is in it or in its `build`.
fn build_folders(path: &Path) -> Result<Vec<PathBuf>> {
    let refuse = |reason: &str| Error::LocalKernel {
        path: path.to_owned(),
        reason: reason.to_owned(),
    };
    if !path.is_dir() {
        return Err(refuse("there is no such folder"));
    }
    if path.join(METADATA_FILE).is_file() {
        return Ok(vec![path.to_owned()]);
    }
    let mut found = Vec::new();
    for folder in [path.to_owned(), path.join("build")] {
        for name in names(&folder)? {
            let build = folder.join(&name);
            let is_build = build.join(METADATA_FILE).is_file()
                || (folder != path && name.parse::<Variant>().is_ok());
            if is_build {
                found.push(build);
            }
        }
    }
    if found.is_empty() {
        return Err(refuse("it holds no builds"));
    }
    Ok(found)
}

/// Checks one build's folder. Only a folder that cannot be read is an error.
fn verify_folder(
    folder: &Path,
    signatures: &SignaturePolicy,
    subject: Subject<'_>,
) -> Result<Verification> {
    let tree = Tree::walk(folder)?;
    let relative = |path: &PathBuf| {
        let root = fs::canonicalize(folder).unwrap_or_else(|_| folder.to_owned());
        path.strip_prefix(&root)
            .unwrap_or(path)
            .to_string_lossy()
            .escape_debug()
            .to_string()
    };
    let mut refused: Vec<_> = tree
        .refused
        .iter()
        .map(|(path, reason)| format!("{}: {reason}", relative(path)))
        .collect();
    refused.extend(
        tree.bytecode
            .iter()
            .map(|name| format!("{name}: it is bytecode, which no digest covers and Python runs")),
    );
    let mut violations = Vec::new();
    let metadata = fs::read(folder.join(METADATA_FILE));
    let digest = match expected_digest(metadata.as_deref()) {
        Err(reason) => {
            violations.push(reason);
            DigestStatus::Missing
        }
        Ok(expected) => {
            let actual = hash(&tree, expected.algorithm)?;
            violations.extend(expected.validate(&actual).iter().map(ToString::to_string));
            if violations.is_empty() {
                DigestStatus::Ok
            } else {
                DigestStatus::Mismatch
            }
        }
    };
    // A signature over nothing does not hold, and is told apart from none.
    let bundle = fs::read(folder.join(SIGNATURE_FILE)).ok();
    let signed = metadata.as_deref().unwrap_or_default();
    let signature = signatures.check(signed, bundle.as_deref(), subject);
    Ok(Verification {
        path: folder.to_owned(),
        digest,
        violations,
        refused,
        signature,
    })
}

/// The digest in a build's metadata, or why there is none.
fn expected_digest(
    metadata: std::result::Result<&[u8], &std::io::Error>,
) -> std::result::Result<Digest, String> {
    let bytes = metadata.map_err(|error| format!("`{METADATA_FILE}` cannot be read: {error}"))?;
    let metadata = Metadata::from_slice(bytes).map_err(|error| error.to_string())?;
    metadata
        .digest
        .ok_or_else(|| format!("`{METADATA_FILE}` has no digest"))
}

fn hash(tree: &Tree, algorithm: DigestAlgorithm) -> Result<Digest> {
    let covered: Vec<_> = tree
        .files
        .iter()
        .filter(|(name, _)| !is_outside_digest(name))
        .collect();
    let hashes = parallel::map(&covered, |(name, path)| {
        let hash = File::open(path).and_then(|file| algorithm.hash_reader(file));
        hash.map(|hash| (name.clone(), hash))
            .map_err(Error::io("read", path))
    });
    let hashes: Vec<_> = hashes.into_iter().collect::<Result<_>>()?;
    Ok(Digest::of_hashes(algorithm, hashes)?)
}
