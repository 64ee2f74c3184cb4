//! Kernel repositories and their builds.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use kernel_spec::metadata::BackendInfo;
use kernel_spec::{BackendKind, Digest, DigestAlgorithm, Metadata, RepositoryId, Variant};
use sha1::{Digest as _, Sha1};

use crate::error::{Error, Result};

/// A repository of the Hub with its branches.
///
/// Mistakes in it are reported when it is used, so that trees can be written down in one expression.
#[derive(Debug, Clone)]
pub struct KernelTree {
    pub(crate) repository: String,
    builds: Vec<(String, Build)>,
    files: Vec<(String, String, Bytes)>,
    pub(crate) tags: BTreeMap<String, String>,
    pub(crate) private: bool,
    pub(crate) gated: bool,
    lfs_suffixes: Vec<String>,
}

/// Files that the Hub keeps in LFS unless a repository says otherwise.
const LFS_SUFFIXES: [&str; 6] = [".so", ".dll", ".dylib", ".pyd", ".bin", ".whl"];

impl KernelTree {
    /// An empty repository `owner/name`.
    pub fn new(repository: impl Into<String>) -> Self {
        Self {
            repository: repository.into(),
            builds: Vec::new(),
            files: Vec::new(),
            tags: BTreeMap::new(),
            private: false,
            gated: false,
            lfs_suffixes: LFS_SUFFIXES.map(ToOwned::to_owned).to_vec(),
        }
    }

    /// Adds a build to a branch, below `build/<variant>`.
    #[must_use]
    pub fn build(mut self, branch: impl Into<String>, build: Build) -> Self {
        self.builds.push((branch.into(), build));
        self
    }

    /// Adds a file to a branch, by its path in the repository.
    #[must_use]
    pub fn file(
        mut self,
        branch: impl Into<String>,
        path: impl Into<String>,
        content: impl Into<Bytes>,
    ) -> Self {
        self.files
            .push((branch.into(), path.into(), content.into()));
        self
    }

    /// Adds a tag at the tip of a branch.
    #[must_use]
    pub fn tag(mut self, tag: impl Into<String>, branch: impl Into<String>) -> Self {
        self.tags.insert(tag.into(), branch.into());
        self
    }

    /// Hides the repository from callers without a token of this Hub.
    #[must_use]
    pub const fn private(mut self) -> Self {
        self.private = true;
        self
    }

    /// Shows that the repository exists, but not its content, to callers without a token.
    #[must_use]
    pub const fn gated(mut self) -> Self {
        self.gated = true;
        self
    }

    /// Keeps files with another ending in LFS, too.
    #[must_use]
    pub fn lfs(mut self, suffix: impl Into<String>) -> Self {
        self.lfs_suffixes.push(suffix.into());
        self
    }

    /// Names of the branches.
    pub fn branches(&self) -> BTreeSet<&str> {
        let builds = self.builds.iter().map(|(branch, _)| branch.as_str());
        builds
            .chain(self.files.iter().map(|(branch, _, _)| branch.as_str()))
            .collect()
    }

    /// Files of a branch by path, metadata included.
    pub fn branch_files(&self, branch: &str) -> Result<BTreeMap<String, Bytes>> {
        let repository = self.repository_id()?;
        let mut files = BTreeMap::new();
        for (_, build) in self.builds.iter().filter(|(name, _)| name == branch) {
            let version = kernel_spec::version::version_of_branch(branch).unwrap_or(1);
            for (path, content) in build.files(&repository, version)? {
                files.insert(format!("build/{}/{path}", build.variant), content);
            }
        }
        for (_, path, content) in self.files.iter().filter(|(name, _, _)| name == branch) {
            files.insert(path.clone(), content.clone());
        }
        if files.is_empty() {
            return Err(Error::Branch {
                repository: self.repository.clone(),
                branch: branch.to_owned(),
            });
        }
        Ok(files)
    }

    /// Writes the files of a branch below a directory: a kernel on this machine.
    pub fn write_branch(&self, branch: &str, directory: &Path) -> Result<()> {
        for (path, content) in self.branch_files(branch)? {
            let path = directory.join(path);
            let written = path
                .parent()
                .map_or(Ok(()), std::fs::create_dir_all)
                .and_then(|()| std::fs::write(&path, &content));
            written.map_err(|source| Error::File { path, source })?;
        }
        Ok(())
    }

    pub(crate) fn repository_id(&self) -> Result<RepositoryId> {
        self.repository.parse().map_err(|source| self.error(source))
    }

    pub(crate) fn is_lfs(&self, path: &str) -> bool {
        self.lfs_suffixes
            .iter()
            .any(|suffix| path.ends_with(suffix.as_str()))
    }

    fn error(&self, source: kernel_spec::Error) -> Error {
        Error::Kernel {
            repository: self.repository.clone(),
            source,
        }
    }
}

/// One build of a kernel, with metadata and digest made from its files.
#[derive(Debug, Clone)]
pub struct Build {
    variant: String,
    files: BTreeMap<String, Bytes>,
    undigested: BTreeMap<String, Bytes>,
    algorithm: Option<DigestAlgorithm>,
    customise: Vec<Customise>,
    metadata: MetadataChange,
    signature: Option<Sign>,
}

/// Makes a signature of metadata.
#[derive(Clone)]
struct Sign(Arc<SignBytes>);

type SignBytes = dyn Fn(&[u8]) -> Result<String> + Send + Sync;

impl fmt::Debug for Sign {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Sign")
    }
}

/// A change of metadata before it is written.
#[derive(Clone)]
struct Customise(Arc<dyn Fn(&mut Metadata) + Send + Sync>);

impl fmt::Debug for Customise {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Customise")
    }
}

#[derive(Debug, Clone)]
enum MetadataChange {
    None,
    Missing,
    Replaced(Bytes),
}

impl Build {
    /// A build without files, in a directory of this name. Its metadata follows from the repository
    /// and the variant; a name that is no variant is taken as it is, as a build for the CPU.
    pub fn new(variant: impl Into<String>) -> Self {
        Self {
            variant: variant.into(),
            files: BTreeMap::new(),
            undigested: BTreeMap::new(),
            algorithm: Some(DigestAlgorithm::Sha256),
            customise: Vec::new(),
            metadata: MetadataChange::None,
            signature: None,
        }
    }

    /// Adds a file, by its path in the build.
    #[must_use]
    pub fn file(mut self, path: impl Into<String>, content: impl Into<Bytes>) -> Self {
        self.files.insert(path.into(), content.into());
        self
    }

    /// Adds or replaces a file after the digest was made: a tampered build.
    #[must_use]
    pub fn undigested(mut self, path: impl Into<String>, content: impl Into<Bytes>) -> Self {
        self.undigested.insert(path.into(), content.into());
        self
    }

    /// Makes the digest with another hash function.
    #[must_use]
    pub const fn digest(mut self, algorithm: DigestAlgorithm) -> Self {
        self.algorithm = Some(algorithm);
        self
    }

    /// Leaves the digest out, as older builds do.
    #[must_use]
    pub const fn without_digest(mut self) -> Self {
        self.algorithm = None;
        self
    }

    /// Changes the metadata before it is written.
    #[must_use]
    pub fn metadata(mut self, customise: impl Fn(&mut Metadata) + Send + Sync + 'static) -> Self {
        self.customise.push(Customise(Arc::new(customise)));
        self
    }

    /// Leaves `metadata.json` out.
    #[must_use]
    pub fn without_metadata(mut self) -> Self {
        self.metadata = MetadataChange::Missing;
        self
    }

    /// Puts other bytes in the place of `metadata.json`.
    #[must_use]
    pub fn raw_metadata(mut self, content: impl Into<Bytes>) -> Self {
        self.metadata = MetadataChange::Replaced(content.into());
        self
    }

    /// Signs the metadata: a bundle goes beside it.
    #[must_use]
    pub fn signed(
        mut self,
        sign: impl Fn(&[u8]) -> Result<String> + Send + Sync + 'static,
    ) -> Self {
        self.signature = Some(Sign(Arc::new(sign)));
        self
    }

    /// Files of the build by path, metadata included.
    fn files(&self, repository: &RepositoryId, version: u64) -> Result<BTreeMap<String, Bytes>> {
        let mut files = self.files.clone();
        let metadata = match &self.metadata {
            MetadataChange::None => Some(Bytes::from(
                self.make_metadata(repository, version)?.to_json_pretty(),
            )),
            MetadataChange::Missing => None,
            MetadataChange::Replaced(content) => Some(content.clone()),
        };
        if let (Some(Sign(sign)), Some(metadata)) = (&self.signature, &metadata) {
            let signature = sign(metadata)?;
            files.insert(
                kernel_spec::path::SIGNATURE_FILE.to_owned(),
                signature.into(),
            );
        }
        if let Some(metadata) = metadata {
            files.insert(kernel_spec::path::METADATA_FILE.to_owned(), metadata);
        }
        files.extend(self.undigested.clone());
        Ok(files)
    }

    fn make_metadata(&self, repository: &RepositoryId, version: u64) -> Result<Metadata> {
        let error = |source| Error::Kernel {
            repository: repository.to_string(),
            source,
        };
        let kind = backend_kind(&self.variant);
        // A name of the Hub may hold characters that a kernel's must not.
        let name = repository.name().to_lowercase().replace(['_', '.'], "-");
        let name: kernel_spec::metadata::KernelName = name.parse().map_err(|_| {
            error(kernel_spec::Error::RepositoryId {
                text: repository.to_string(),
                reason: "the name cannot be turned into the name of a kernel".to_owned(),
            })
        })?;
        let digest = self
            .algorithm
            .map(|algorithm| Digest::of_files(algorithm, self.files.clone()))
            .transpose()
            .map_err(error)?;
        let mut metadata = Metadata {
            id: format!("_{}_{kind}_{}", name.module_name(), self.content_id()),
            name,
            version,
            kernels_minver: None,
            license: "Apache-2.0".to_owned(),
            upstream: None,
            source: None,
            python_depends: Vec::new(),
            kernel_depends: Vec::new(),
            backend: BackendInfo::new(kind),
            digest,
            provenance: None,
        };
        for Customise(customise) in &self.customise {
            customise(&mut metadata);
        }
        Ok(metadata)
    }

    /// Seven hexadecimal digits that follow from the files, in the place of a git tree's id.
    fn content_id(&self) -> String {
        let mut hasher = Sha1::new();
        for (path, content) in &self.files {
            hasher.update(format!("{path}\0{}\0", content.len()));
            hasher.update(content);
        }
        let mut digits = hex::encode(hasher.finalize());
        digits.truncate(7);
        digits
    }
}

/// The kind of backend that a variant's name speaks of.
fn backend_kind(variant: &str) -> BackendKind {
    match variant.parse() {
        Ok(Variant::Arch { backend, .. }) => backend.kind(),
        Ok(Variant::Noarch { backend }) if backend == "npu" => BackendKind::Cann,
        Ok(Variant::Noarch { backend }) => backend.parse().unwrap_or(BackendKind::Cpu),
        Err(_) => BackendKind::Cpu,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metadata(tree: &KernelTree, path: &str) -> Metadata {
        Metadata::from_slice(&tree.branch_files("v3").unwrap()[path]).unwrap()
    }

    #[test]
    fn metadata_follows_from_the_repository_and_the_variant() {
        let tree = KernelTree::new("kernels-test/My_relu").build(
            "v3",
            Build::new("torch-npu").file("__init__.py", "hello world"),
        );
        let metadata = metadata(&tree, "build/torch-npu/metadata.json");
        assert_eq!(metadata.name.as_str(), "my-relu");
        assert_eq!(metadata.version, 3);
        assert_eq!(metadata.backend.kind, BackendKind::Cann);
        assert_eq!(metadata.check_module_id(), Ok(()));
        let digest = metadata.digest.unwrap();
        assert_eq!(
            digest.files["__init__.py"],
            "uU0nuZNNPgilLlLX2n2r+sSE7+N6U4DukIj3rOLvzek="
        );
    }

    #[test]
    fn undigested_files_do_not_match_the_digest() {
        let tree = KernelTree::new("a/bc").build(
            "v3",
            Build::new("torch-cpu")
                .file("__init__.py", "1")
                .undigested("__init__.py", "2"),
        );
        let expected = metadata(&tree, "build/torch-cpu/metadata.json")
            .digest
            .unwrap();
        let files = tree.branch_files("v3").unwrap();
        let files = files.iter().map(|(path, content)| {
            (
                path.trim_start_matches("build/torch-cpu/").to_owned(),
                content,
            )
        });
        let actual = Digest::of_files(expected.algorithm, files).unwrap();
        assert_eq!(expected.validate(&actual).len(), 1);
    }

    #[test]
    fn mistakes_are_reported_when_the_tree_is_used() {
        assert!(
            KernelTree::new("x")
                .build("v1", Build::new("torch-cpu"))
                .branch_files("v1")
                .is_err()
        );
        assert!(KernelTree::new("a/bc").branch_files("v1").is_err());
    }
}
