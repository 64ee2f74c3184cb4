//! Kernel trees from a directory on disk.

use std::path::{Path, PathBuf};

use percent_encoding::percent_decode_str;
use walkdir::WalkDir;

use crate::error::{Error, Result};
use crate::kernel::KernelTree;

/// Owners and repositories of `<root>/<owner>/<name>/<branch>/<files>`.
pub(crate) fn read(root: &Path) -> Result<(Vec<String>, Vec<KernelTree>)> {
    let mut owners = Vec::new();
    let mut trees = Vec::new();
    for (owner, owner_path) in directories(root)? {
        for (name, path) in directories(&owner_path)? {
            let mut tree = KernelTree::new(format!("{owner}/{name}"));
            for (branch, path) in directories(&path)? {
                let branch = percent_decode_str(&branch).decode_utf8_lossy().into_owned();
                for (file, content) in files(&path)? {
                    tree = tree.file(branch.clone(), file, content);
                }
            }
            trees.push(tree);
        }
        owners.push(owner);
    }
    Ok((owners, trees))
}

/// Sub-directories by name, without hidden ones.
fn directories(path: &Path) -> Result<Vec<(String, PathBuf)>> {
    let error = |source| Error::File {
        path: path.to_owned(),
        source,
    };
    let mut found = Vec::new();
    for entry in std::fs::read_dir(path).map_err(error)? {
        let entry = entry.map_err(error)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if !name.starts_with('.') && entry.path().is_dir() {
            found.push((name, entry.path()));
        }
    }
    found.sort();
    Ok(found)
}

/// Files below a directory, by their paths relative to it.
fn files(root: &Path) -> Result<Vec<(String, Vec<u8>)>> {
    let mut found = Vec::new();
    for entry in WalkDir::new(root).sort_by_file_name() {
        let entry = entry.map_err(|error| Error::File {
            path: error.path().unwrap_or(root).to_owned(),
            source: error.into(),
        })?;
        if !entry.file_type().is_file() {
            continue;
        }
        let relative = entry.path().strip_prefix(root).unwrap_or(entry.path());
        let components: Vec<_> = relative
            .components()
            .map(|part| part.as_os_str().to_string_lossy())
            .collect();
        let content = std::fs::read(entry.path()).map_err(|source| Error::File {
            path: entry.path().to_owned(),
            source,
        })?;
        found.push((components.join("/"), content));
    }
    Ok(found)
}
