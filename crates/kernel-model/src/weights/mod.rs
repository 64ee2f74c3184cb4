//! The tensors of a model directory, mapped into memory.
//!
//! A weight file is mapped once, privately, and each tensor is a view of the mapping where its
//! dtype is the wanted one: no copy, and pages are read when they are first needed. libtorch's
//! own file-backed storage holds the mapping, so it lives exactly as long as the last tensor
//! that looks into it.

mod file;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use tch::{Kind, Tensor};

use self::file::WeightFile;
use crate::config::Dtype;
use crate::config::fields::{Fields, read_json};
use crate::error::{ModelError, Result};
use crate::parallel::{Part, Shard};

pub(crate) const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// All weight files of a model directory, opened and checked, and which tensor lies in which.
#[derive(Debug)]
pub struct Weights {
    directory: PathBuf,
    files: Vec<WeightFile>,
    places: BTreeMap<String, usize>,
    taken: BTreeSet<String>,
    bytes_taken: u64,
    kind: Kind,
}

impl Weights {
    /// Opens `model.safetensors`, or the shards that `model.safetensors.index.json` names.
    /// Headers are read and checked against file sizes; data is not touched.
    pub fn open(directory: &Path) -> Result<Self> {
        let (files, places) = if directory.join(INDEX).is_file() {
            open_shards(directory)?
        } else if directory.join(SINGLE).is_file() {
            let file = WeightFile::open(&directory.join(SINGLE))?;
            let places = file.names().map(|name| (name, 0)).collect();
            (vec![file], places)
        } else {
            return Err(ModelError::MissingFile {
                directory: directory.to_owned(),
                file: SINGLE.to_owned(),
            });
        };
        Ok(Self {
            directory: directory.to_owned(),
            files,
            places,
            taken: BTreeSet::new(),
            bytes_taken: 0,
            kind: Kind::Float,
        })
    }

    /// Sets the dtype that tensors are handed out in.
    pub fn set_dtype(&mut self, dtype: Dtype) {
        self.kind = dtype.kind();
    }

    /// The dtype of a tensor in its file, if models run in it.
    pub fn stored_dtype(&self, name: &str) -> Option<Dtype> {
        let file = &self.files[*self.places.get(name)?];
        [Dtype::Float32, Dtype::BFloat16, Dtype::Float16]
            .into_iter()
            .find(|dtype| file.kind(name) == Some(dtype.kind()))
    }

    /// Shape of a tensor in its file.
    pub fn shape(&self, name: &str) -> Option<Vec<i64>> {
        self.files[*self.places.get(name)?].shape(name)
    }

    /// Bytes that a value of a tensor takes in its file, if it can be a weight.
    pub fn stored_bytes_of_value(&self, name: &str) -> Option<u64> {
        let file = &self.files[*self.places.get(name)?];
        Some(file.kind(name)?.elt_size_in_bytes() as u64)
    }

    /// Bytes of all weight files together.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(WeightFile::bytes).sum()
    }

    /// Whether a tensor is there.
    pub fn contains(&self, name: &str) -> bool {
        self.places.contains_key(name)
    }

    /// Fails with the names of all tensors that are not there, or whose shape is wrong.
    pub fn check(&self, expected: &[(String, Vec<i64>)]) -> Result<()> {
        let missing: Vec<String> = expected
            .iter()
            .filter(|(name, _)| !self.contains(name))
            .map(|(name, _)| name.clone())
            .collect();
        if !missing.is_empty() {
            return Err(ModelError::MissingTensors {
                directory: self.directory.clone(),
                names: missing,
            });
        }
        for (name, shape) in expected {
            let file = &self.files[self.places[name]];
            let found = file.shape(name).unwrap_or_default();
            if &found != shape {
                return Err(ModelError::TensorShape {
                    path: file.path().to_owned(),
                    name: name.clone(),
                    found,
                    expected: shape.clone(),
                });
            }
            file.check_dtype(name)?;
        }
        Ok(())
    }

    /// Bytes of the files that were handed out, each time that they were.
    pub fn bytes_taken(&self) -> u64 {
        self.bytes_taken
    }

    /// A rank's part of a tensor in the wanted dtype. Rows without padding are a view of the mapping,
    /// as in [`Weights::take`]; all else is a copy, and what is not in it is not read.
    pub fn take_shard(&mut self, name: &str, shard: &Shard) -> Result<Tensor> {
        let stored = self.stored(name)?;
        let (shape, kind) = (stored.size(), stored.f_kind()?);
        self.bytes_taken += shard.read_values(&shape) as u64 * kind.elt_size_in_bytes() as u64;
        let tensor = match shard {
            Shard::Whole | Shard::OnFirstRank { first: true } => stored,
            Shard::OnFirstRank { first: false } => stored.f_zeros_like()?,
            Shard::Slices { dimension, parts } => match parts.as_slice() {
                [part] if *dimension == 0 && part.len() == part.held => {
                    stored.f_narrow(0, part.range.start, part.held)?
                }
                parts => slices(&stored, *dimension, parts)?,
            },
        };
        // Keeps the storage where the kind is the same.
        Ok(tensor.f_to_kind(self.kind)?)
    }

    /// A tensor in the wanted dtype: a view of the mapping, or a converted copy.
    pub fn take(&mut self, name: &str) -> Result<Tensor> {
        self.take_shard(name, &Shard::Whole)
    }

    /// A view of a tensor as its file has it.
    fn stored(&mut self, name: &str) -> Result<Tensor> {
        let Some(place) = self.places.get(name) else {
            return Err(ModelError::MissingTensors {
                directory: self.directory.clone(),
                names: vec![name.to_owned()],
            });
        };
        let tensor = self.files[*place].tensor(name)?;
        self.taken.insert(name.to_owned());
        Ok(tensor)
    }

    /// Names of tensors that nothing asked for. Rotary frequencies, which old checkpoints store
    /// and which follow from the config, do not count.
    pub fn untaken(&self) -> Vec<String> {
        self.places
            .keys()
            .filter(|name| !self.taken.contains(*name))
            .filter(|name| !name.ends_with(".rotary_emb.inv_freq"))
            .cloned()
            .collect()
    }
}

/// Slices of a tensor, one behind the other, each with zeros up to the length that it is held in.
fn slices(stored: &Tensor, dimension: i64, parts: &[Part]) -> Result<Tensor> {
    let mut pieces = Vec::new();
    for part in parts {
        pieces.push(stored.f_narrow(dimension, part.range.start, part.len())?);
        if part.held > part.len() {
            let mut shape = stored.size();
            shape[dimension as usize] = part.held - part.len();
            pieces.push(stored.f_new_zeros(&shape, (stored.f_kind()?, stored.device()))?);
        }
    }
    Ok(Tensor::f_cat(&pieces, dimension)?)
}

type Shards = (Vec<WeightFile>, BTreeMap<String, usize>);

fn open_shards(directory: &Path) -> Result<Shards> {
    let path = directory.join(INDEX);
    let document = read_json(&path)?;
    let root = Fields::root(&path, &document)?;
    let map = root
        .object("weight_map")?
        .ok_or_else(|| root.error("weight_map", "is missing"))?;

    let mut files: Vec<WeightFile> = Vec::new();
    let mut by_name: BTreeMap<String, usize> = BTreeMap::new();
    let mut places = BTreeMap::new();
    for tensor in map.keys() {
        let Some(shard) = map.string(tensor)? else {
            return Err(map.error(tensor, "is null"));
        };
        // A shard lies beside its index; anything else would read files of someone's choosing.
        if shard.contains(['/', '\\']) || shard == ".." {
            return Err(map.error(tensor, format!("names `{shard}`, which is not a file name")));
        }
        let index = if let Some(index) = by_name.get(shard) {
            *index
        } else {
            let shard_path = directory.join(shard);
            if !shard_path.is_file() {
                return Err(ModelError::MissingFile {
                    directory: directory.to_owned(),
                    file: shard.to_owned(),
                });
            }
            files.push(WeightFile::open(&shard_path)?);
            by_name.insert(shard.to_owned(), files.len() - 1);
            files.len() - 1
        };
        if files[index].shape(tensor).is_none() {
            return Err(map.error(tensor, format!("names `{shard}`, which lacks the tensor")));
        }
        places.insert(tensor.to_owned(), index);
    }
    Ok((files, places))
}

#[cfg(test)]
mod tests;
