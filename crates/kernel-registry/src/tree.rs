//! Walks the folder of one build and says which files belong to it.
//!
//! What a walk must not miss: links that lead out of the tree, folders reached through links (which
//! a digest does not see but Python would import from), names that two programs could read
//! differently, and bytecode. The walk reports; whether a finding is fatal is up to the caller.

use std::fs;
use std::path::{Path, PathBuf};

use kernel_spec::path::{check_relative_path, is_bytecode};

use crate::error::{Error, Result};

/// The files of one build, by their names relative to its folder.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    /// Ordinary files, sorted by name.
    pub(crate) files: Vec<(String, PathBuf)>,
    /// Files of Python bytecode, which are never read.
    pub(crate) bytecode: Vec<String>,
    /// Files that a kernel must not have, each with the reason.
    pub(crate) refused: Vec<(PathBuf, String)>,
}

impl Tree {
    /// Walks `folder`. Only a folder that cannot be read is an error.
    pub(crate) fn walk(folder: &Path) -> Result<Self> {
        let root = fs::canonicalize(folder).map_err(Error::io("open", folder))?;
        let blobs = blobs_of_snapshot(&root);
        let mut tree = Self::default();
        for entry in walkdir::WalkDir::new(&root)
            .min_depth(1)
            .follow_links(false)
        {
            let entry = entry.map_err(|error| {
                let path = error.path().unwrap_or(folder).to_owned();
                Error::Io {
                    action: "read",
                    path,
                    source: error.into(),
                }
            })?;
            tree.visit(&entry, &root, blobs.as_deref());
        }
        tree.files.sort();
        tree.bytecode.sort();
        Ok(tree)
    }

    fn visit(&mut self, entry: &walkdir::DirEntry, root: &Path, blobs: Option<&Path>) {
        let path = entry.path();
        let Some(name) = path.strip_prefix(root).ok().and_then(Path::to_str) else {
            self.refused
                .push((path.to_owned(), "its name is not UTF-8".to_owned()));
            return;
        };
        // The separator is the system's; on Linux a backslash is part of a name and is refused.
        let name = if cfg!(windows) {
            name.replace('\\', "/")
        } else {
            name.to_owned()
        };
        if let Err(error) = check_relative_path(&name) {
            self.refused.push((path.to_owned(), error.to_string()));
            return;
        }
        let kind = entry.file_type();
        if kind.is_dir() {
            return;
        }
        if is_bytecode(&name) {
            self.bytecode.push(name);
            return;
        }
        if kind.is_symlink() {
            match link_target(path, root, blobs) {
                Ok(()) => self.files.push((name, path.to_owned())),
                Err(reason) => self.refused.push((path.to_owned(), reason)),
            }
        } else if kind.is_file() {
            self.files.push((name, path.to_owned()));
        } else {
            self.refused.push((
                path.to_owned(),
                "it is neither a file nor a folder".to_owned(),
            ));
        }
    }

    /// The first finding that forbids loading, as an error.
    pub(crate) fn check(&self) -> Result<()> {
        match self.refused.first() {
            Some((path, reason)) => Err(Error::RefusedFile {
                path: path.clone(),
                reason: reason.clone(),
            }),
            None => Ok(()),
        }
    }
}

/// Checks that a link leads to a file of the same tree, or of the cache repository that the tree is
/// a snapshot of.
fn link_target(path: &Path, root: &Path, blobs: Option<&Path>) -> Result<(), String> {
    let target = fs::canonicalize(path)
        .map_err(|error| format!("it is a link that leads nowhere ({error})"))?;
    if target.is_dir() {
        return Err("it is a link to a folder".to_owned());
    }
    if !target.is_file() {
        return Err("it is a link to something that is no file".to_owned());
    }
    let inside = target.starts_with(root) || blobs.is_some_and(|blobs| target.starts_with(blobs));
    if inside {
        Ok(())
    } else {
        Err("it is a link that leads out of the kernel".to_owned())
    }
}

/// The blobs folder, where a folder is `<repository>/snapshots/<commit>/build/<variant>` of a cache.
fn blobs_of_snapshot(root: &Path) -> Option<PathBuf> {
    let mut ancestors = root.ancestors().skip(2);
    let (_commit, snapshots) = (ancestors.next()?, ancestors.next()?);
    if snapshots.file_name()? != "snapshots" {
        return None;
    }
    let blobs = snapshots.parent()?.join("blobs");
    fs::canonicalize(blobs).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(path: &Path, text: &str) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn files_are_listed_and_bytecode_apart() {
        let folder = tempfile::tempdir().unwrap();
        write(&folder.path().join("b/c.py"), "");
        write(&folder.path().join("a.py"), "");
        write(&folder.path().join("__pycache__/a.pyc"), "");
        let tree = Tree::walk(folder.path()).unwrap();
        let names: Vec<_> = tree.files.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["a.py", "b/c.py"]);
        assert_eq!(tree.bytecode, ["__pycache__/a.pyc"]);
        assert!(tree.check().is_ok());
    }

    #[cfg(unix)]
    #[test]
    fn peer_fault_16_links_out_of_the_tree_are_refused() {
        use std::os::unix::fs::symlink;
        let outside = tempfile::tempdir().unwrap();
        write(&outside.path().join("m/x.py"), "");
        let folder = tempfile::tempdir().unwrap();
        write(&folder.path().join("real.py"), "");
        symlink(
            folder.path().join("real.py"),
            folder.path().join("inside.py"),
        )
        .unwrap();
        assert!(Tree::walk(folder.path()).unwrap().check().is_ok());

        for (target, word) in [
            (outside.path().join("m/x.py"), "out of the kernel"),
            (outside.path().join("m"), "link to a folder"),
            (outside.path().join("gone"), "leads nowhere"),
        ] {
            let link = folder.path().join("link");
            symlink(&target, &link).unwrap();
            let error = Tree::walk(folder.path()).unwrap().check().unwrap_err();
            assert!(error.to_string().contains(word), "{error}");
            fs::remove_file(link).unwrap();
        }
    }

    #[cfg(unix)]
    #[test]
    fn links_into_the_blobs_of_the_same_repository_are_files() {
        use std::os::unix::fs::symlink;
        let cache = tempfile::tempdir().unwrap();
        let repository = cache.path().join("kernels--a--b");
        write(&repository.join("blobs/0123"), "x");
        write(&cache.path().join("kernels--c--d/blobs/0123"), "x");
        let folder = repository.join("snapshots/abc/build/torch-cpu");
        fs::create_dir_all(&folder).unwrap();
        symlink("../../../../blobs/0123", folder.join("a.py")).unwrap();
        let tree = Tree::walk(&folder).unwrap();
        assert_eq!(tree.files.len(), 1);
        assert!(tree.check().is_ok());
        symlink(
            cache.path().join("kernels--c--d/blobs/0123"),
            folder.join("b.py"),
        )
        .unwrap();
        assert!(Tree::walk(&folder).unwrap().check().is_err());
    }
}
