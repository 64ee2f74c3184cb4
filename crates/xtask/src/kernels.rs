//! The kernels of `kernels-index/`: source to builds, metadata, digests and index entries.
//!
//! A kernel's folder has the layout of kernel-builder (`build.toml`, `torch-ext/<module>/`). The
//! Python in it is the same for every backend; a build adds `_ops.py`, which names the operator
//! namespace, and `metadata.json`. Everything follows from the source alone, so that a build can be
//! compared with what is checked in.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use kernel_spec::index::{
    self, DefaultMapping, INDEX_FORMAT, Index, IndexVersion, MetadataDigest, OpEntry, Origin,
    RepositoryEntry,
};
use kernel_spec::metadata::BackendInfo;
use kernel_spec::{Digest, DigestAlgorithm, KernelRef, Metadata, OpName, RepositoryId};
use serde::Deserialize;
use sha1::{Digest as _, Sha1};

use crate::environment::Environment;
use crate::process;
use crate::workspace::Workspace;

/// First release of the `kernels` library that knows the backend `tpu`.
const KERNELS_MINVER: &str = "0.17.0";
/// What the index says of a kernel beside what its builds say, and the default mappings.
const INDEX_SOURCE: &str = "index.toml";

/// Files by path, relative to a folder, `/` between names.
type Files = BTreeMap<String, Vec<u8>>;

/// Makes all builds and index files anew.
pub(crate) fn build(workspace: &Workspace) -> Result<()> {
    let root = root(workspace);
    let wanted = generate(&root)?;
    for folder in generated_folders(&root)? {
        if folder.exists() {
            fs::remove_dir_all(&folder)
                .with_context(|| format!("cannot remove {}", folder.display()))?;
        }
    }
    for (name, bytes) in &wanted {
        let path = root.join(name);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)
                .with_context(|| format!("cannot make {}", parent.display()))?;
        }
        fs::write(&path, bytes).with_context(|| format!("cannot write {}", path.display()))?;
    }
    println!("{} files in {}", wanted.len(), root.display());
    Ok(())
}

/// Fails where a build or an index file is not what its source gives.
pub(crate) fn check(workspace: &Workspace) -> Result<()> {
    let root = root(workspace);
    let wanted = generate(&root)?;
    let mut found = Files::new();
    for folder in generated_folders(&root)? {
        read_files(&root, &folder, &mut found)?;
    }
    let stale = differences(&wanted, &found);
    if !stale.is_empty() {
        bail!(
            "these files are not what their source gives (mend it with `cargo xtask kernels build`):\n  {}",
            stale.join("\n  ")
        );
    }
    Ok(())
}

/// Runs the Python tests of the kernels: parity, races, the layer contract, the TPU compiler.
pub(crate) fn test(workspace: &Workspace, environment: &Environment) -> Result<()> {
    let pytest = |arguments: &[&str]| {
        process::run(
            environment
                .command()
                .current_dir(root(workspace))
                .args(["-m", "pytest"])
                .args(arguments),
        )
    };
    pytest(&[])?;
    // In a process of its own: behind the six hundred tests above, the first op that `kernels` loaded
    // ended the process with a segmentation fault in torch. The cause is not known.
    pytest(&["test_transformers.py"])
}

/// Brings the estimates of the kernels up to date; the data and its tables are checked in.
pub(crate) fn estimates(
    workspace: &Workspace,
    environment: &Environment,
    arguments: &[String],
) -> Result<()> {
    process::run(
        environment
            .command()
            .current_dir(root(workspace))
            .arg("estimates.py")
            .args(arguments),
    )
}

fn root(workspace: &Workspace) -> PathBuf {
    workspace.root().join("kernels-index")
}

/// The part of `build.toml` that is used; kernel-builder reads the rest.
#[derive(Deserialize)]
struct BuildFile {
    general: General,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct General {
    name: String,
    version: u64,
    license: String,
    backends: Vec<String>,
    hub: Hub,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Hub {
    repo_id: RepositoryId,
}

/// `index.toml` of the whole index.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct IndexSource {
    kernels: BTreeMap<String, KernelSource>,
    /// Kernels of other repositories.
    #[serde(default)]
    external: Vec<ExternalSource>,
    default_mapping: BTreeMap<String, BTreeMap<OpName, KernelRef>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KernelSource {
    summary: String,
    ops: Vec<OpEntry>,
}

/// A repository on the Hub; its builds are not here, so that its versions are spelled out.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ExternalSource {
    repository: RepositoryId,
    summary: String,
    license: String,
    ops: Vec<OpEntry>,
    versions: Vec<IndexVersion>,
}

/// Everything that the sources give: builds and index files, by path below `root`.
fn generate(root: &Path) -> Result<Files> {
    let path = root.join(INDEX_SOURCE);
    let text =
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let source: IndexSource =
        toml::from_str(&text).with_context(|| format!("cannot read {}", path.display()))?;
    let mut all = Files::new();
    let mut index_files = Files::new();
    for (name, kernel) in source.kernels {
        let entry = generate_kernel(root, &name, kernel, &mut all)
            .with_context(|| format!("cannot build the kernel `{name}`"))?;
        index_files.insert(
            index::repository_file_name(&entry.repository),
            json(&entry)?,
        );
    }
    for external in source.external {
        let entry = RepositoryEntry {
            format: INDEX_FORMAT,
            repository: external.repository,
            summary: external.summary,
            license: external.license,
            origin: Origin::Hub,
            ops: external.ops,
            versions: external.versions,
        };
        let name = index::repository_file_name(&entry.repository);
        ensure!(
            index_files.insert(name, json(&entry)?).is_none(),
            "`{}` is listed twice",
            entry.repository
        );
    }
    for (device, mapping) in source.default_mapping {
        let document = DefaultMapping {
            format: INDEX_FORMAT,
            device: device.parse()?,
            mapping,
        };
        index_files.insert(index::mapping_file_name(document.device), json(&document)?);
    }
    // The reader's own checks: a mapping that names what is not offered is found here.
    Index::from_files(
        index_files
            .iter()
            .map(|(name, bytes)| (name.as_str(), bytes.as_slice())),
    )?;
    all.extend(
        index_files
            .into_iter()
            .map(|(name, bytes)| (format!("index/{name}"), bytes)),
    );
    Ok(all)
}

/// Adds the builds of one kernel to `all`; returns its entry in the index.
fn generate_kernel(
    root: &Path,
    name: &str,
    kernel: KernelSource,
    all: &mut Files,
) -> Result<RepositoryEntry> {
    let folder = root.join(name);
    let path = folder.join("build.toml");
    let text =
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let BuildFile { general } =
        toml::from_str(&text).with_context(|| format!("cannot read {}", path.display()))?;
    ensure!(
        general.name == name,
        "build.toml names it `{}`",
        general.name
    );

    let module = name.replace('-', "_");
    let package = folder.join("torch-ext").join(&module);
    let mut python = Files::new();
    read_files(&package, &package, &mut python)?;
    ensure!(
        python.contains_key("__init__.py"),
        "there is no {}/__init__.py",
        package.display()
    );
    let source_id = tree_id(&python);

    let mut builds = Files::new();
    let mut digests = BTreeMap::new();
    for backend in &general.backends {
        let variant = format!("torch-{backend}");
        let id = format!("_{module}_{backend}_{}", &source_id[..7]);
        let mut files = python.clone();
        files.insert("_ops.py".to_owned(), namespace_module(&id).into_bytes());
        let metadata = Metadata {
            name: name.parse()?,
            id,
            version: general.version,
            kernels_minver: Some(KERNELS_MINVER.parse()?),
            license: general.license.clone(),
            upstream: None,
            source: None,
            python_depends: Vec::new(),
            kernel_depends: Vec::new(),
            backend: BackendInfo::new(backend.parse()?),
            digest: Some(Digest::of_files(DigestAlgorithm::Sha256, &files)?),
            provenance: None,
        };
        metadata.check_module_id()?;
        let text = metadata.to_json_pretty().into_bytes();
        digests.insert(variant.clone(), MetadataDigest::of(&text));
        files.insert("metadata.json".to_owned(), text);
        builds.extend(
            files
                .into_iter()
                .map(|(path, bytes)| (format!("build/{variant}/{path}"), bytes)),
        );
    }
    let commit = tree_id(&builds).parse()?;
    all.extend(
        builds
            .into_iter()
            .map(|(path, bytes)| (format!("{name}/{path}"), bytes)),
    );
    Ok(RepositoryEntry {
        format: INDEX_FORMAT,
        repository: general.hub.repo_id,
        summary: kernel.summary,
        license: general.license,
        origin: Origin::Embedded,
        ops: kernel.ops,
        versions: vec![IndexVersion {
            version: general.version,
            commit,
            digests,
            yanked: None,
        }],
    })
}

/// `_ops.py`, the module that kernel-builder adds to every build.
fn namespace_module(id: &str) -> String {
    format!(
        "import torch\n\nops = torch.ops.{id}\n\n\ndef add_op_namespace_prefix(op_name: str) -> str:\n    \
         return f\"{id}::{{op_name}}\"\n"
    )
}

/// Index files end in a line break; keys are in the order of the types.
fn json(value: &impl serde::Serialize) -> Result<Vec<u8>> {
    let mut text = serde_json::to_vec_pretty(value)?;
    text.push(b'\n');
    Ok(text)
}

/// What `build` writes and nothing else does: `build/` of each kernel, and `index/`.
fn generated_folders(root: &Path) -> Result<Vec<PathBuf>> {
    let mut folders = vec![root.join("index")];
    for entry in fs::read_dir(root).with_context(|| format!("cannot read {}", root.display()))? {
        let folder = entry?.path();
        if folder.join("build.toml").is_file() {
            folders.push(folder.join("build"));
        }
    }
    Ok(folders)
}

/// Reads all files below `folder` into `files`, by path relative to `base`; Python's bytecode is no
/// part of anything.
fn read_files(base: &Path, folder: &Path, files: &mut Files) -> Result<()> {
    if !folder.is_dir() {
        return Ok(());
    }
    for entry in
        fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?
    {
        let path = entry?.path();
        let name = path
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_default();
        if name == "__pycache__" || path.extension().is_some_and(|extension| extension == "pyc") {
            continue;
        }
        if path.is_dir() {
            read_files(base, &path, files)?;
            continue;
        }
        let relative: Vec<_> = path
            .strip_prefix(base)?
            .components()
            .map(|component| component.as_os_str().to_string_lossy())
            .collect();
        let bytes = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        files.insert(relative.join("/"), bytes);
    }
    Ok(())
}

/// What must be made, changed or removed for `found` to become `wanted`, one line each.
fn differences(wanted: &Files, found: &Files) -> Vec<String> {
    let mut lines = Vec::new();
    for (name, bytes) in wanted {
        match found.get(name) {
            None => lines.push(format!("{name} is missing")),
            Some(other) if other != bytes => lines.push(format!("{name} differs")),
            Some(_) => {}
        }
    }
    let unknown = found.keys().filter(|name| !wanted.contains_key(*name));
    lines.extend(unknown.map(|name| format!("{name} has no source")));
    lines
}

/// The id that git gives a tree of regular files, 40 hexadecimal digits.
fn tree_id(files: &Files) -> String {
    hex::encode(tree_object(
        files
            .iter()
            .map(|(name, bytes)| (name.as_str(), bytes.as_slice()))
            .collect(),
    ))
}

fn tree_object(files: Vec<(&str, &[u8])>) -> [u8; 20] {
    let mut folders: BTreeMap<&str, Vec<(&str, &[u8])>> = BTreeMap::new();
    // Git sorts a folder as if its name ended in a slash.
    let mut entries: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    for (name, bytes) in files {
        if let Some((folder, rest)) = name.split_once('/') {
            folders.entry(folder).or_default().push((rest, bytes));
        } else {
            let id = object("blob", bytes);
            entries.insert(name.to_owned(), entry("100644", name, id));
        }
    }
    for (name, files) in folders {
        entries.insert(format!("{name}/"), entry("40000", name, tree_object(files)));
    }
    object(
        "tree",
        &entries.into_values().flatten().collect::<Vec<u8>>(),
    )
}

fn entry(mode: &str, name: &str, id: [u8; 20]) -> Vec<u8> {
    [mode.as_bytes(), b" ", name.as_bytes(), b"\0", &id].concat()
}

fn object(kind: &str, bytes: &[u8]) -> [u8; 20] {
    let mut hash = Sha1::new();
    hash.update(format!("{kind} {}\0", bytes.len()));
    hash.update(bytes);
    hash.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::{Files, IndexSource, differences, tree_id};

    fn files(pairs: &[(&str, &str)]) -> Files {
        pairs
            .iter()
            .map(|(name, text)| ((*name).to_owned(), text.as_bytes().to_vec()))
            .collect()
    }

    #[test]
    fn a_tree_has_the_id_that_git_gives_it() {
        // `git write-tree` over these files; `a-b` sorts before the folder `a/`, `a0` after it.
        let tree = files(&[("a/x", "1\n"), ("a-b", "2\n"), ("a0", "3\n")]);
        assert_eq!(tree_id(&tree), "b800eddeab88fef64e9ccf0d6f25ed491bf1dd37");
        assert_eq!(
            tree_id(&files(&[])),
            "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
        );
    }

    #[test]
    fn a_kernel_of_another_repository_is_read_as_the_readme_spells_it() {
        let source = r#"
            default_mapping = {}
            kernels = {}
            [[external]]
            repository = "owner/name"
            summary = "s"
            license = "Apache-2.0"
            [[external.ops]]
            op = "attention"
            symbol = "attention"
            devices = ["tpu"]
            constraints = { head_dims = [64, 128], dtypes = ["bf16"], layout = "bhtd" }
            [[external.versions]]
            version = 1
            commit = "0123456789abcdef0123456789abcdef01234567"
            digests = { torch-tpu = "sha256-uU0nuZNNPgilLlLX2n2r+sSE7+N6U4DukIj3rOLvzek=" }
        "#;
        let source: IndexSource = toml::from_str(source).unwrap();
        let external = &source.external[0];
        assert_eq!(external.repository.to_string(), "owner/name");
        assert!(external.versions[0].digests.contains_key("torch-tpu"));
        assert_eq!(external.ops[0].devices.len(), 1);
    }

    #[test]
    fn every_kind_of_difference_is_named() {
        let wanted = files(&[("a", "1"), ("b", "1")]);
        let found = files(&[("b", "2"), ("c", "1")]);
        assert_eq!(
            differences(&wanted, &found),
            ["a is missing", "b differs", "c has no source"]
        );
    }
}
