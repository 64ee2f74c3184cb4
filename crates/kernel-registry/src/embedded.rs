//! The index and the kernels that are part of the program.
//!
//! `build.rs` takes them from `kernels-index/`. An embedded build counts for a version where the
//! index has the hash of its metadata; the metadata in turn has the hashes of the files.

use std::sync::OnceLock;

use kernel_spec::index::{IndexFiles, IndexVersion, RepositoryEntry};
use kernel_spec::path::METADATA_FILE;
use kernel_spec::{Index, RepositoryId};

use crate::error::{Error, Result};

/// Owner of the repositories whose builds are in the program.
pub const OWNER: &str = "hub-kernels";

/// One build inside the program.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EmbeddedBuild {
    pub(crate) kernel: &'static str,
    pub(crate) variant: &'static str,
    pub(crate) files: &'static [(&'static str, &'static [u8])],
}

impl EmbeddedBuild {
    pub(crate) fn metadata(&self) -> Option<&'static [u8]> {
        self.file(METADATA_FILE)
    }

    /// The content of one file.
    pub(crate) fn file(&self, name: &str) -> Option<&'static [u8]> {
        let found = self.files.iter().find(|(known, _)| *known == name);
        found.map(|(_, bytes)| *bytes)
    }
}

mod generated {
    use super::EmbeddedBuild;

    include!(concat!(env!("OUT_DIR"), "/embedded.rs"));
}

/// One repository's entry of the index, read alone.
pub(crate) fn entry(repository: &RepositoryId) -> Result<Option<RepositoryEntry>> {
    Ok(IndexFiles::sorted(generated::INDEX)?.repository(repository)?)
}

/// The whole index.
pub(crate) fn index() -> Result<&'static Index> {
    static INDEX: OnceLock<std::result::Result<Index, kernel_spec::Error>> = OnceLock::new();
    INDEX
        .get_or_init(|| Index::from_files(generated::INDEX.iter().copied()))
        .as_ref()
        .map_err(|error| Error::from(error.clone()))
}

/// The builds of a repository's version that are in the program.
pub(crate) fn builds(repository: &RepositoryId, version: &IndexVersion) -> Vec<EmbeddedBuild> {
    if repository.owner() != OWNER {
        return Vec::new();
    }
    generated::BUILDS
        .iter()
        .filter(|build| build.kernel == repository.name())
        .filter(|build| {
            let expected = version.digests.get(build.variant);
            expected
                .zip(build.metadata())
                .is_some_and(|(digest, bytes)| digest.matches(bytes))
        })
        .copied()
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernel_spec::index::Origin;
    use kernel_spec::{Digest, Metadata};

    #[test]
    fn an_entry_read_alone_is_that_of_the_whole_index() {
        for whole in index().unwrap().repositories() {
            assert_eq!(entry(&whole.repository).unwrap().as_ref(), Some(whole));
        }
        assert_eq!(entry(&"a/b".parse().unwrap()).unwrap(), None);
    }

    /// What the index calls embedded must be in the program, byte for byte.
    #[test]
    fn every_embedded_build_of_the_index_is_in_the_program() {
        for entry in index().unwrap().repositories() {
            if entry.origin != Origin::Embedded {
                continue;
            }
            let newest = entry
                .versions
                .iter()
                .max_by_key(|version| version.version)
                .unwrap();
            let builds = builds(&entry.repository, newest);
            assert_eq!(builds.len(), newest.digests.len(), "{}", entry.repository);
            for build in builds {
                let metadata = Metadata::from_slice(build.metadata().unwrap()).unwrap();
                let expected = metadata.digest.unwrap();
                let actual = Digest::of_files(expected.algorithm, build.files.iter().copied());
                assert_eq!(
                    expected.validate(&actual.unwrap()),
                    [],
                    "{}",
                    entry.repository
                );
            }
        }
    }
}
