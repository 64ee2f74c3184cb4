//! Files of the kernel index.
//!
//! The index lists kernels that are known to work: which ops they offer, for which devices and
//! shapes, and which commits and digests are theirs. It is part of the program, so that it is
//! trusted as much as the program is, and it makes resolving possible without a network.
//!
//! # Files
//!
//! One file per repository, [`repository_file_name`] (`owner--name.json`):
//!
//! ```json
//! {
//!   "format": 1,
//!   "repository": "hub-kernels/attention",
//!   "summary": "Flash attention for TPUs, grouped queries, any length",
//!   "license": "Apache-2.0",
//!   "origin": "embedded",
//!   "ops": [
//!     {
//!       "op": "attention",
//!       "symbol": "attention",
//!       "devices": ["tpu", "cpu"],
//!       "constraints": {
//!         "head_dims": [64, 128],
//!         "dtypes": ["f32", "bf16"],
//!         "layout": "bhtd"
//!       }
//!     }
//!   ],
//!   "versions": [
//!     {
//!       "version": 1,
//!       "commit": "9464fa130d1adc54def25ca5cb34b78e58d35365",
//!       "digests": {
//!         "torch-tpu": "sha256-uU0nuZNNPgilLlLX2n2r+sSE7+N6U4DukIj3rOLvzek="
//!       }
//!     }
//!   ]
//! }
//! ```
//!
//! - `origin` is `embedded` for kernels whose builds are inside the program, `hub` for others.
//! - `symbol` is the function or layer to use for the op, dotted where it is in a sub-module.
//! - `constraints` may be left out or hold any of `head_dims`, `dtypes`, `layout` and
//!   `activations`; what is left out is not restricted.
//! - `digests` names every variant directory of the version and the hash over the bytes of its
//!   `metadata.json` ([`MetadataDigest`]). The metadata holds the hashes of the files, so that this
//!   one value fixes every byte of the build.
//! - `yanked`, on a version, is the reason for which it is no longer chosen unless it is pinned.
//!
//! One file per device with a default mapping, [`mapping_file_name`] (`default-mapping.tpu.json`):
//!
//! ```json
//! {
//!   "format": 1,
//!   "device": "tpu",
//!   "mapping": {
//!     "attention": "hub-kernels/attention@v1:attention",
//!     "RMSNorm": "hub-kernels/rms-norm@v1:RMSNorm"
//!   }
//! }
//! ```
//!
//! Unknown keys are errors in both: the index and the program that reads it are made together.

mod constraints;
mod document;
mod files;
mod merge;

use std::collections::BTreeMap;

use crate::op::{DeviceType, OpName};
use crate::reference::{KernelRef, KernelSource, Selector};
use crate::repository::RepositoryId;

pub use constraints::{Constraints, OpShape};
pub use document::{
    DefaultMapping, IndexVersion, MetadataDigest, OpEntry, Origin, RepositoryEntry,
};
pub use files::IndexFiles;

/// Version of the format of index files.
pub const INDEX_FORMAT: u32 = 1;

/// Name of a repository's file in the index.
///
/// ```
/// let repository = "hub-kernels/attention".parse()?;
/// assert_eq!(kernel_spec::index::repository_file_name(&repository), "hub-kernels--attention.json");
/// # Ok::<(), kernel_spec::Error>(())
/// ```
pub fn repository_file_name(repository: &RepositoryId) -> String {
    format!("{}--{}.json", repository.owner(), repository.name())
}

/// Name of the default mapping's file for a device.
pub fn mapping_file_name(device: DeviceType) -> String {
    format!("{MAPPING_PREFIX}{device}.json")
}

const MAPPING_PREFIX: &str = "default-mapping.";

/// The whole index: every repository and default mapping, checked against each other.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Index {
    repositories: BTreeMap<RepositoryId, RepositoryEntry>,
    mappings: BTreeMap<DeviceType, BTreeMap<OpName, KernelRef>>,
}

impl Index {
    /// All repositories, ordered by id.
    pub fn repositories(&self) -> impl Iterator<Item = &RepositoryEntry> {
        self.repositories.values()
    }

    /// A repository's entry.
    pub fn repository(&self, repository: &RepositoryId) -> Option<&RepositoryEntry> {
        self.repositories.get(repository)
    }

    /// The version of a repository that a selector means, see [`RepositoryEntry::version`].
    pub fn version(&self, repository: &RepositoryId, selector: &Selector) -> Option<&IndexVersion> {
        self.repository(repository)?.version(selector)
    }

    /// What ops run with by default on a device.
    pub fn default_mapping(
        &self,
        device: DeviceType,
    ) -> impl Iterator<Item = (OpName, &KernelRef)> {
        self.mappings
            .get(&device)
            .into_iter()
            .flatten()
            .map(|(op, kernel)| (*op, kernel))
    }

    /// Every offer for an op, optionally only those for a device.
    pub fn offers(
        &self,
        op: OpName,
        device: Option<DeviceType>,
    ) -> impl Iterator<Item = (&RepositoryEntry, &OpEntry)> {
        self.repositories().flat_map(move |repository| {
            repository
                .ops
                .iter()
                .filter(move |entry| {
                    entry.op == op && device.is_none_or(|device| entry.devices.contains(&device))
                })
                .map(move |entry| (repository, entry))
        })
    }

    /// What the index says of one op of a referenced kernel: the entry with the reference's symbol,
    /// or else the first one for the op.
    pub fn op_entry(&self, kernel: &KernelRef, op: OpName) -> Option<&OpEntry> {
        let KernelSource::Hub { repository, .. } = &kernel.source else {
            return None;
        };
        let mut entries = self
            .repository(repository)?
            .ops
            .iter()
            .filter(|entry| entry.op == op);
        match &kernel.symbol {
            Some(symbol) => entries.find(|entry| entry.symbol == *symbol),
            None => entries.next(),
        }
    }
}
