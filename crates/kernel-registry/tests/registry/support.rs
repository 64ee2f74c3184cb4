//! A Hub, a cache, and looks at what is in the cache.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hub_fixture::Hub;
use kernel_registry::{Event, InstalledKernel, Registry, RegistryBuilder, Resolved, Result};
use kernel_spec::{Backend, System};
use sha1::Digest as _;
use tempfile::TempDir;

/// Folders between the one that a test may use and its cache: deeper than any path in a cache, so
/// that a name which climbs out of it is still seen.
const DEPTH: usize = 12;

/// A Hub with an empty cache deep inside an otherwise empty folder.
pub(crate) struct Scene {
    pub(crate) hub: Hub,
    outer: TempDir,
}

impl Scene {
    /// With the sample kernels.
    pub(crate) fn new() -> Self {
        Self::of(Hub::with_samples().unwrap())
    }

    pub(crate) fn of(hub: Hub) -> Self {
        let outer = tempfile::tempdir().unwrap();
        Self { hub, outer }
    }

    pub(crate) fn cache(&self) -> PathBuf {
        let deep = (0..DEPTH).map(|level| level.to_string());
        self.outer
            .path()
            .join(deep.collect::<PathBuf>())
            .join("cache")
    }

    /// Settings for this Hub and cache, a machine without accelerators, and short pauses. What the
    /// process has in HF_TOKEN and HF_HUB_OFFLINE does not count.
    pub(crate) fn builder(&self) -> RegistryBuilder {
        builder(self.hub.endpoint(), &self.cache())
    }

    pub(crate) fn registry(&self) -> Registry {
        self.builder().build().unwrap()
    }

    pub(crate) fn offline(&self) -> Registry {
        self.builder().offline(true).build().unwrap()
    }

    /// The snapshot of a revision in the cache.
    pub(crate) fn snapshot(&self, repository: &str, revision: &str) -> PathBuf {
        let commit = self.hub.commit(repository, revision).unwrap();
        self.repository(repository).join("snapshots").join(commit)
    }

    /// The folder of a repository in the cache.
    pub(crate) fn repository(&self, repository: &str) -> PathBuf {
        let name = repository.replace('/', "--");
        self.cache().join(format!("kernels--{name}"))
    }

    /// Checks that nothing was written outside the cache, and that every blob has the name of its
    /// content.
    pub(crate) fn assert_clean(&self) {
        let mut outside = BTreeSet::new();
        let mut folder = self.outer.path().to_owned();
        for level in 0..DEPTH {
            outside.extend(other_names(&folder, &level.to_string()));
            folder.push(level.to_string());
        }
        outside.extend(other_names(&folder, "cache"));
        assert!(outside.is_empty(), "outside the cache: {outside:?}");
        for (path, content) in files(&self.cache()) {
            let mut parts = path.rsplit('/');
            let name = parts.next().unwrap_or_default();
            if parts.next() != Some("blobs") || name.ends_with(".incomplete") {
                continue;
            }
            let id = match name.len() {
                40 => git_id(&content),
                _ => hex::encode(sha2::Sha256::digest(&content)),
            };
            assert_eq!(id, name, "{path}");
        }
    }
}

pub(crate) fn builder(endpoint: &str, cache: &Path) -> RegistryBuilder {
    Registry::builder()
        .cache_dir(cache)
        .endpoint(endpoint)
        .token("")
        .offline(false)
        .system(System::new("x86_64", "linux", Backend::Cpu))
        .retries(3, Duration::from_millis(1))
}

fn other_names(folder: &Path, expected: &str) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else {
        return Vec::new();
    };
    let paths = entries.map(|entry| entry.unwrap().path());
    paths
        .filter(|path| path.file_name().is_none_or(|name| name != expected))
        .collect()
}

/// The id that git gives to a file.
fn git_id(content: &[u8]) -> String {
    let mut hasher = sha1::Sha1::new();
    hasher.update(format!("blob {}\0", content.len()));
    hasher.update(content);
    hex::encode(hasher.finalize())
}

/// All files below a folder by relative path, links followed. Bytecode is left out.
pub(crate) fn files(root: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    if !root.exists() {
        return found;
    }
    for entry in walkdir::WalkDir::new(root).follow_links(true) {
        let entry = entry.unwrap();
        let path = entry.path();
        if entry.file_type().is_file() && path.extension().is_none_or(|end| end != "pyc") {
            let name = path.strip_prefix(root).unwrap().display().to_string();
            found.insert(name, fs::read(path).unwrap());
        }
    }
    found
}

/// Files of a build as its tree has them, by path relative to the build.
pub(crate) fn files_of_build(
    tree: &hub_fixture::KernelTree,
    branch: &str,
    build: &str,
) -> BTreeMap<String, Vec<u8>> {
    let prefix = format!("build/{build}/");
    let files = tree.branch_files(branch).unwrap().into_iter();
    files
        .filter_map(|(path, content)| {
            let name = path.strip_prefix(&prefix)?;
            Some((name.to_owned(), content.to_vec()))
        })
        .collect()
}

/// Resolves and brings a kernel.
pub(crate) fn fetch(registry: &Registry, reference: &str) -> Result<InstalledKernel> {
    registry.install(&resolve(registry, reference)?)
}

pub(crate) fn resolve(registry: &Registry, reference: &str) -> Result<Resolved> {
    registry.resolve(&reference.parse().unwrap())
}

/// Collects what a registry tells.
pub(crate) fn listen(builder: RegistryBuilder) -> (Registry, Arc<Mutex<Vec<Event>>>) {
    let events = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&events);
    let registry = builder
        .progress(Arc::new(move |event| sink.lock().unwrap().push(event)))
        .build()
        .unwrap();
    (registry, events)
}
