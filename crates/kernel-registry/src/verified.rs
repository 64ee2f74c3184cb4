//! Kernels whose every byte was compared with a digest, and the only way to make one.
//!
//! [`VerifiedKernel`] is what may be executed. It owns the bytes: they are read from disk once, and
//! the bytes that were hashed are the bytes that are handed out, so that a file which changes
//! afterwards changes nothing. There is no public constructor; [`InstalledKernel::verified`]
//! (`crate::InstalledKernel::verified`) is the only source.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kernel_spec::path::is_outside_digest;
use kernel_spec::{CommitId, Digest, Metadata, RepositoryId, Violation};

use crate::blob::BlobId;
use crate::error::{Error, Result};
use crate::parallel;
use crate::resolved::{Documents, Location, Resolved, Trust};
use crate::signature::Signature;
use crate::tree::Tree;

/// Files of a kernel by their name relative to its build folder.
pub type KernelFiles = BTreeMap<String, Arc<[u8]>>;

/// A kernel that may be executed. Cheap to clone.
#[derive(Debug, Clone)]
pub struct VerifiedKernel(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    repository: Option<RepositoryId>,
    commit: Option<CommitId>,
    variant: String,
    metadata: Arc<Metadata>,
    path: PathBuf,
    files: KernelFiles,
    documents: Documents,
    dependencies: Vec<VerifiedKernel>,
    trust: Trust,
    signature: Signature,
}

impl VerifiedKernel {
    /// Its repository; none where the user named a folder.
    pub fn repository(&self) -> Option<&RepositoryId> {
        self.0.repository.as_ref()
    }

    /// Its commit; none for a folder on this machine.
    pub fn commit(&self) -> Option<&CommitId> {
        self.0.commit.as_ref()
    }

    /// Name of the build's folder, such as `torch-tpu`.
    pub fn variant(&self) -> &str {
        &self.0.variant
    }

    /// The build's metadata.
    pub fn metadata(&self) -> &Metadata {
        &self.0.metadata
    }

    /// Folder that the bytes were read from, for messages and tracebacks. Do not read code from it:
    /// that would not be the code that was verified.
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// The verified bytes, by name. Metadata, its signature and bytecode are not among them.
    pub fn files(&self) -> &KernelFiles {
        &self.0.files
    }

    /// The kernels that it needs directly. Kernels that several others need are the same value:
    /// compare with [`VerifiedKernel::is_same`].
    pub fn dependencies(&self) -> &[Self] {
        &self.0.dependencies
    }

    /// Why it may run.
    pub fn trust(&self) -> Trust {
        self.0.trust
    }

    /// What is known about its signature.
    pub fn signature(&self) -> &Signature {
        &self.0.signature
    }

    /// Metadata and signature, byte for byte.
    pub(crate) fn documents(&self) -> &Documents {
        &self.0.documents
    }

    /// Whether two values are one verification of one kernel.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Reads and checks one build. `dependencies` have passed already.
    pub(crate) fn read(
        resolved: &Resolved,
        folder: &Path,
        dependencies: Vec<Self>,
    ) -> Result<Self> {
        let files = read_and_check(resolved, folder)?;
        Ok(Self(Arc::new(Inner {
            repository: resolved.repository.clone(),
            commit: resolved.commit.clone(),
            variant: resolved.variant.clone(),
            metadata: Arc::clone(&resolved.metadata),
            path: folder.to_owned(),
            files,
            documents: resolved.documents.clone(),
            dependencies,
            trust: resolved.trust,
            signature: resolved.signature.clone(),
        })))
    }
}

/// Reads every file of a build once and compares the bytes with the metadata's digest. A build from
/// the Hub without a digest is compared with the ids of the Hub's tree instead.
fn read_and_check(resolved: &Resolved, folder: &Path) -> Result<KernelFiles> {
    resolved
        .metadata
        .check_module_id()
        .map_err(Error::format(resolved.name()))?;
    let tree = Tree::walk(folder)?;
    tree.check()?;
    let digest = resolved.metadata.digest.as_ref();
    let covered: Vec<_> = tree
        .files
        .iter()
        .filter(|(name, _)| !is_outside_digest(name))
        .collect();
    let read = parallel::map(&covered, |(name, path)| {
        let bytes: Arc<[u8]> = fs::read(path).map_err(Error::io("read", path))?.into();
        let hash = digest.map(|digest| digest.algorithm.hash(&bytes));
        Ok::<_, Error>((name.clone(), bytes, hash.unwrap_or_default()))
    });
    let (mut files, mut hashes) = (KernelFiles::new(), Vec::new());
    for file in read {
        let (name, bytes, hash) = file?;
        hashes.push((name.clone(), hash));
        files.insert(name, bytes);
    }
    let violations = match (digest, &resolved.location) {
        (Some(expected), _) => {
            let actual = Digest::of_hashes(expected.algorithm, hashes)
                .map_err(Error::format(resolved.name()))?;
            expected.validate(&actual)
        }
        (None, Location::Cache(Some(listed))) => compare_with_tree(&listed.files, &files),
        (None, _) => {
            return Err(Error::DigestMissing {
                kernel: resolved.name(),
                path: folder.to_owned(),
            });
        }
    };
    if violations.is_empty() {
        Ok(files)
    } else {
        let (kernel, path) = (resolved.name(), folder.to_owned());
        Err(Error::DigestMismatch {
            kernel,
            path,
            violations,
        })
    }
}

/// The deviations from the ids of the Hub's tree, in the manner of a digest's.
fn compare_with_tree(listed: &BTreeMap<String, BlobId>, files: &KernelFiles) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (path, expected) in listed.iter().filter(|(path, _)| !is_outside_digest(path)) {
        match files.get(path) {
            None => violations.push(Violation::MissingFile { path: path.clone() }),
            Some(bytes) if expected.matches(bytes) => {}
            Some(bytes) => violations.push(Violation::HashMismatch {
                path: path.clone(),
                expected: expected.id().to_owned(),
                got: expected.id_of(bytes),
            }),
        }
    }
    violations.extend(
        files
            .keys()
            .filter(|path| !listed.contains_key(*path))
            .map(|path| Violation::UnknownFile { path: path.clone() }),
    );
    violations
}
