//! What resolving a reference gives: one kernel, pinned to a commit and a build, with its reasons.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use kernel_spec::variant::Resolution;
use kernel_spec::{CommitId, KernelRef, Metadata, RepositoryId};

use crate::cache::VariantFiles;
use crate::embedded::EmbeddedBuild;
use crate::error::Distrust;
use crate::signature::Signature;

/// Where a kernel was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Origin {
    /// A folder on this machine: a path, an entry of LOCAL_KERNELS, or a vendored kernel.
    Local,
    /// The index that is part of the program.
    Index,
    /// The Hub.
    Hub,
    /// The cache, without a look at the Hub.
    Cache,
}

/// Why a kernel may run on this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Trust {
    /// The user named a folder on this machine.
    Local,
    /// The index that is part of the program vouches for it.
    Index,
    /// The user allowed the repository by name.
    Allowed,
    /// The Hub lists its organisation as a trusted publisher.
    Publisher,
    /// The Hub did so when it was last asked.
    Remembered,
}

/// A kernel, pinned.
#[derive(Debug, Clone)]
pub struct Resolved {
    /// The reference as it was asked for.
    pub reference: KernelRef,
    /// Its repository; none for a path.
    pub repository: Option<RepositoryId>,
    /// Its major version, where one is known.
    pub version: Option<u64>,
    /// Its commit; none for a folder on this machine.
    pub commit: Option<CommitId>,
    /// The chosen build's folder name.
    pub variant: String,
    /// The build's metadata.
    pub metadata: Arc<Metadata>,
    /// Why it may run.
    pub trust: Trust,
    /// What is known about its signature.
    pub signature: Signature,
    /// What became of every build of the repository. Empty for a folder that is itself one build.
    pub trace: Resolution,
    /// Where it was found.
    pub origin: Origin,
    /// The kernels that it needs directly, each resolved once in its tree.
    pub dependencies: Vec<Arc<Resolved>>,
    pub(crate) documents: Documents,
    pub(crate) location: Location,
    /// The branch or tag that led here, to be written to `refs/` of the cache.
    pub(crate) revision: Option<String>,
}

/// What a look at a kernel shows. It cannot be installed: for that, the kernel has to be resolved.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Description {
    /// The reference as it was asked for.
    pub reference: KernelRef,
    /// Its repository; none for a path.
    pub repository: Option<RepositoryId>,
    /// Its major version, where one is known.
    pub version: Option<u64>,
    /// Its commit; none for a folder on this machine.
    pub commit: Option<CommitId>,
    /// The folder name of the build that fits this machine best.
    pub variant: String,
    /// That build's metadata.
    pub metadata: Arc<Metadata>,
    /// Why it may run, or why it may not unless it is allowed by name.
    pub trust: std::result::Result<Trust, Distrust>,
    /// What is known about its signature.
    pub signature: Signature,
    /// Where it was found.
    pub origin: Origin,
}

impl Description {
    pub(crate) fn new(resolved: Resolved, distrust: Option<Distrust>) -> Self {
        Self {
            trust: distrust.map_or(Ok(resolved.trust), Err),
            reference: resolved.reference,
            repository: resolved.repository,
            version: resolved.version,
            commit: resolved.commit,
            variant: resolved.variant,
            metadata: resolved.metadata,
            signature: resolved.signature,
            origin: resolved.origin,
        }
    }
}

/// A build's metadata and its signature, byte for byte as they were checked.
#[derive(Debug, Clone)]
pub(crate) struct Documents {
    pub(crate) metadata: Arc<[u8]>,
    pub(crate) signature: Option<Arc<[u8]>>,
}

/// Where the bytes of a resolved kernel are.
#[derive(Debug, Clone)]
pub(crate) enum Location {
    /// In a folder outside the cache.
    Folder(PathBuf),
    /// Inside the program.
    Embedded(EmbeddedBuild),
    /// In the cache, or on the Hub on the way there. The files' ids are those of the Hub's tree;
    /// none where the cache was filled by another program and the Hub was not asked.
    Cache(Option<VariantFiles>),
}

impl Resolved {
    /// Name for messages: the repository with its version or commit, or the path.
    pub fn name(&self) -> String {
        match (&self.repository, self.version, &self.commit) {
            (Some(repository), Some(version), _) => format!("{repository}@v{version}"),
            (Some(repository), None, Some(commit)) => format!("{repository}@{commit}"),
            _ => self.reference.to_string(),
        }
    }

    /// This kernel and all that it needs, each once, what is needed before what needs it.
    pub fn tree(self: &Arc<Self>) -> Vec<Arc<Self>> {
        let mut order = Vec::new();
        collect(self, &mut order);
        order
    }
}

fn collect(kernel: &Arc<Resolved>, order: &mut Vec<Arc<Resolved>>) {
    if order.iter().any(|known| Arc::ptr_eq(known, kernel)) {
        return;
    }
    for dependency in &kernel.dependencies {
        collect(dependency, order);
    }
    order.push(Arc::clone(kernel));
}

impl Origin {
    /// The word in machine-readable output.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Index => "index",
            Self::Hub => "hub",
            Self::Cache => "cache",
        }
    }
}

impl Trust {
    /// The word in machine-readable output.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Index => "index",
            Self::Allowed => "allowed",
            Self::Publisher => "publisher",
            Self::Remembered => "remembered",
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

impl fmt::Display for Trust {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}
