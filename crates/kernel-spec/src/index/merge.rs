//! Making one index of its files, and checking what a single file cannot show.

use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::document::{DefaultMapping, RepositoryEntry};
use super::{INDEX_FORMAT, Index, MAPPING_PREFIX, mapping_file_name, repository_file_name};
use crate::error::{Error, Result};
use crate::json;
use crate::reference::KernelSource;
use crate::variant::Variant;

/// A value read from an object only.
struct Strict<T>(T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Strict<T> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        json::object(deserializer).map(Self)
    }
}

impl Index {
    /// Makes an index of its files, given by name and content. Names decide what a file is; every
    /// kernel of a default mapping must be in the index, in a version that is not yanked, and offer
    /// the op on the device.
    pub fn from_files<'a>(files: impl IntoIterator<Item = (&'a str, &'a [u8])>) -> Result<Self> {
        let mut index = Self::default();
        for (name, bytes) in files {
            if name.starts_with(MAPPING_PREFIX) {
                index.add_mapping(name, bytes)?;
            } else {
                index.add_repository(name, bytes)?;
            }
        }
        index.check_mappings()?;
        Ok(index)
    }

    fn add_repository(&mut self, name: &str, bytes: &[u8]) -> Result<()> {
        let entry = read_repository(name, bytes)?;
        self.repositories.insert(entry.repository.clone(), entry);
        Ok(())
    }

    fn add_mapping(&mut self, name: &str, bytes: &[u8]) -> Result<()> {
        let document: DefaultMapping = read(name, bytes)?;
        let expected = mapping_file_name(document.device);
        if name != expected {
            let reason = format!(
                "the mapping for `{}` is named `{expected}`",
                document.device
            );
            return Err(Error::Index {
                file: name.to_owned(),
                reason,
            });
        }
        self.mappings.insert(document.device, document.mapping);
        Ok(())
    }

    fn check_mappings(&self) -> Result<()> {
        for (device, mapping) in &self.mappings {
            for (op, kernel) in mapping {
                let invalid = |reason: String| {
                    Err(Error::Index {
                        file: mapping_file_name(*device),
                        reason: format!("`{op}`: {reason}"),
                    })
                };
                let KernelSource::Hub {
                    repository,
                    selector,
                } = &kernel.source
                else {
                    return invalid(format!("`{kernel}` is a path"));
                };
                match self.version(repository, selector) {
                    None => return invalid(format!("`{kernel}` is not in the index")),
                    Some(version) if version.yanked.is_some() => {
                        return invalid(format!("`{kernel}` is yanked"));
                    }
                    Some(_) => {}
                }
                let offered = self
                    .op_entry(kernel, *op)
                    .is_some_and(|entry| entry.devices.contains(device));
                if !offered {
                    return invalid(format!("`{kernel}` does not offer it on `{device}`"));
                }
            }
        }
        Ok(())
    }
}

/// Reads the file of one repository, and checks what it says.
pub(super) fn read_repository(name: &str, bytes: &[u8]) -> Result<RepositoryEntry> {
    let entry: RepositoryEntry = read(name, bytes)?;
    let invalid = |reason: String| {
        Err(Error::Index {
            file: name.to_owned(),
            reason,
        })
    };
    let expected = repository_file_name(&entry.repository);
    if name != expected {
        return invalid(format!(
            "the file of `{}` is named `{expected}`",
            entry.repository
        ));
    }
    if entry.versions.is_empty() {
        return invalid("there are no versions".to_owned());
    }
    for (position, version) in entry.versions.iter().enumerate() {
        let number = version.version;
        if entry.versions[..position]
            .iter()
            .any(|earlier| earlier.version == number)
        {
            return invalid(format!("version {number} is listed twice"));
        }
        if version.digests.is_empty() {
            return invalid(format!("version {number} has no builds"));
        }
        for variant in version.digests.keys() {
            if let Err(error) = variant.parse::<Variant>() {
                return invalid(format!("version {number}: {error}"));
            }
        }
    }
    if let Some(op) = entry.ops.iter().find(|op| op.devices.is_empty()) {
        return invalid(format!("op `{}` is for no device", op.op));
    }
    Ok(entry)
}

/// Reads a file, after a look at its format version: a later format explains itself better than the
/// first unknown key would.
fn read<T: DeserializeOwned>(name: &str, bytes: &[u8]) -> Result<T> {
    #[derive(Deserialize)]
    struct Head {
        format: u32,
    }

    let head: Strict<Head> = json::from_slice(name, bytes)?;
    if head.0.format != INDEX_FORMAT {
        return Err(Error::Index {
            file: name.to_owned(),
            reason: format!(
                "format {} is not supported, expected {INDEX_FORMAT}",
                head.0.format
            ),
        });
    }
    Ok(json::from_slice::<Strict<T>>(name, bytes)?.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::{DeviceType, OpName};
    use crate::reference::Selector;

    const ENTRY: &str = r#"{
        "format": 1, "repository": "hub-kernels/rms-norm", "summary": "s", "license": "Apache-2.0",
        "origin": "embedded",
        "ops": [{"op": "RMSNorm", "symbol": "layers.RMSNorm", "devices": ["tpu"],
                 "constraints": {"dtypes": ["f32"]}}],
        "versions": [
            {"version": 1, "commit": "1111111111111111111111111111111111111111",
             "digests": {"torch-tpu": "sha256-uU0nuZNNPgilLlLX2n2r+sSE7+N6U4DukIj3rOLvzek="}},
            {"version": 2, "commit": "2222222222222222222222222222222222222222",
             "digests": {"torch-tpu": "sha256-uU0nuZNNPgilLlLX2n2r+sSE7+N6U4DukIj3rOLvzek="},
             "yanked": "wrong for bf16"}
        ]
    }"#;
    const NAME: &str = "hub-kernels--rms-norm.json";

    fn mapping(kernel: &str) -> String {
        format!(r#"{{"format": 1, "device": "tpu", "mapping": {{"RMSNorm": "{kernel}"}}}}"#)
    }

    fn index(entry: &str, mapping: &str) -> Result<Index> {
        Index::from_files([
            ("default-mapping.tpu.json", mapping.as_bytes()),
            (NAME, entry.as_bytes()),
        ])
    }

    #[test]
    fn an_index_answers_for_versions_and_ops() {
        let index = index(ENTRY, &mapping("hub-kernels/rms-norm@v1:layers.RMSNorm")).unwrap();
        let repository = "hub-kernels/rms-norm".parse().unwrap();
        let version = |selector| {
            index
                .version(&repository, &selector)
                .map(|entry| entry.version)
        };
        assert_eq!(version(Selector::Newest), Some(1), "version 2 is yanked");
        assert_eq!(
            version(Selector::Version(2)),
            Some(2),
            "a pinned version is found"
        );
        assert_eq!(version(Selector::Revision("2".repeat(40))), Some(2));
        assert_eq!(version(Selector::Version(3)), None);
        assert_eq!(index.default_mapping(DeviceType::Tpu).count(), 1);
        assert_eq!(
            index.offers(OpName::RmsNorm, Some(DeviceType::Cpu)).count(),
            0
        );
        assert_eq!(index.offers(OpName::RmsNorm, None).count(), 1);
    }

    #[test]
    fn contradictions_are_found() {
        let good = mapping("hub-kernels/rms-norm@v1");
        for (entry, mapping, place) in [
            (
                ENTRY.replace("\"format\": 1", "\"format\": 2"),
                good.clone(),
                "format 2",
            ),
            (
                ENTRY.replace("/rms-norm", "/norm"),
                good.clone(),
                "`hub-kernels--norm.json`",
            ),
            (
                ENTRY.replace("\"version\": 2", "\"version\": 1"),
                good.clone(),
                "listed twice",
            ),
            (
                ENTRY.replace("torch-tpu", "jax-tpu"),
                good.clone(),
                "unknown framework",
            ),
            (
                ENTRY.replace("[\"tpu\"]", "[]"),
                good.clone(),
                "for no device",
            ),
            (
                ENTRY.replace("[\"f32\"]", "[\"f8\"]"),
                good.clone(),
                "`ops[0].constraints.dtypes[0]`",
            ),
            (
                ENTRY.replace("sha256-uU", "sha256-"),
                good.clone(),
                "invalid digest",
            ),
            (
                ENTRY.replace("\"summary\"", "\"sumary\""),
                good.clone(),
                "unknown field `sumary`",
            ),
            (ENTRY.to_owned(), mapping("a/b@v1"), "not in the index"),
            (
                ENTRY.to_owned(),
                mapping("hub-kernels/rms-norm@v2"),
                "yanked",
            ),
            (ENTRY.to_owned(), mapping("./rms-norm"), "is a path"),
            (
                ENTRY.to_owned(),
                mapping("hub-kernels/rms-norm@v1:Other"),
                "does not offer",
            ),
            (
                ENTRY.to_owned(),
                good.replace("\"tpu\"", "\"cpu\""),
                "default-mapping.cpu.json",
            ),
        ] {
            let error = index(&entry, &mapping).unwrap_err().to_string();
            assert!(error.contains(place), "{place}: {error}");
        }
    }
}
