//! What was compared.

use serde::{Deserialize, Serialize};

/// One arm of a comparison.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ArmRecord {
    /// As the user named it: a kernel reference, `default`, `config`, or `reference`.
    pub name: String,
    /// Repository of the kernel, where it has one.
    pub repo: Option<String>,
    /// Commit of the kernel, where it has one.
    pub commit: Option<String>,
    /// Digest of the kernel's files (SHA-256 over the digests of its files, in hex).
    pub digest: Option<String>,
    /// Build of the kernel, such as `torch-cpu`.
    pub variant: Option<String>,
    /// How it runs: `libtorch`, `kernel`, or `model`.
    pub execution: String,
    /// Whole models and layers: which op ran on what.
    pub ops: Vec<ReplacedOp>,
}

/// What one op of a model ran on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplacedOp {
    /// The op.
    pub op: String,
    /// The kernel's reference, or `default`.
    pub implementation: String,
    /// Repository of the kernel, where it has one.
    pub repo: Option<String>,
    /// Commit of the kernel, where it has one.
    pub commit: Option<String>,
    /// Places that the kernel took.
    pub replaced: usize,
    /// Places where the op occurs.
    pub total: usize,
    /// Why it was used, or not.
    pub reason: String,
}

impl ArmRecord {
    /// Whether this is the same code as another arm: same name and, where both have one, same digest
    /// or commit.
    pub fn same_code(&self, other: &Self) -> bool {
        let agree = |one: &Option<String>, other: &Option<String>| match (one, other) {
            (Some(one), Some(other)) => one == other,
            _ => true,
        };
        self.name == other.name
            && agree(&self.digest, &other.digest)
            && agree(&self.commit, &other.commit)
            && self.ops == other.ops
    }
}
