//! Checks a build on disk and reports everything that is wrong with it.
//!
//! Loading stops at the first problem; this is for people, who want to see all of them.

use std::fs;
use std::path::{Path, PathBuf};

use kernel_spec::path::{METADATA_FILE, SIGNATURE_FILE, is_outside_digest};
use kernel_spec::{Digest, DigestAlgorithm, Metadata};

use crate::error::{Error, Result};
use crate::resolved::Signature;
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

/// Checks one build's folder. Only a folder that cannot be read is an error.
pub fn verify_folder(folder: &Path) -> Result<Verification> {
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
    let digest = match expected_digest(folder) {
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
    let signed = folder.join(SIGNATURE_FILE).is_file();
    let signature = if signed {
        Signature::Unchecked
    } else {
        Signature::Unsigned
    };
    Ok(Verification {
        path: folder.to_owned(),
        digest,
        violations,
        refused,
        signature,
    })
}

/// The digest in a build's metadata, or why there is none.
fn expected_digest(folder: &Path) -> std::result::Result<Digest, String> {
    let bytes = fs::read(folder.join(METADATA_FILE))
        .map_err(|error| format!("`{METADATA_FILE}` cannot be read: {error}"))?;
    let metadata = Metadata::from_slice(&bytes).map_err(|error| error.to_string())?;
    metadata
        .digest
        .ok_or_else(|| format!("`{METADATA_FILE}` has no digest"))
}

fn hash(tree: &Tree, algorithm: DigestAlgorithm) -> Result<Digest> {
    let mut files = Vec::new();
    for (name, path) in tree
        .files
        .iter()
        .filter(|(name, _)| !is_outside_digest(name))
    {
        files.push((
            name.clone(),
            fs::read(path).map_err(Error::io("read", path))?,
        ));
    }
    Ok(Digest::of_files(algorithm, files)?)
}
