//! Golden checkpoints: tiny models with the outputs that transformers gives for them.

#![allow(dead_code, missing_docs, unreachable_pub)]
#![allow(clippy::unwrap_used, clippy::missing_panics_doc)]

use std::collections::HashMap;
use std::path::PathBuf;

use kernel_model::{Dtype, LoadOptions, Model, ModelConfig};
use tch::{Kind, Tensor};

/// Directory of a golden checkpoint.
pub fn directory(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden")
        .join(name)
}

/// The reference outputs. Sharded copies share those of the model they were made from.
pub fn golden(name: &str) -> HashMap<String, Tensor> {
    let source = directory(name.trim_end_matches("-sharded")).join("golden.safetensors");
    Tensor::read_safetensors(&source)
        .unwrap()
        .into_iter()
        .collect()
}

/// Loads a checkpoint with one of its config spellings.
pub fn load(name: &str, config: &str, dtype: Dtype) -> Model {
    let directory = directory(name);
    let config = ModelConfig::from_file(&directory.join(config)).unwrap();
    let options = LoadOptions {
        dtype: Some(dtype),
        ..LoadOptions::default()
    };
    Model::load_with_config(&directory, config, &options).unwrap()
}

/// The config spellings that a checkpoint has.
pub fn spellings(name: &str) -> Vec<&'static str> {
    ["config.json", "config_v4.json"]
        .into_iter()
        .filter(|file| directory(name).join(file).exists())
        .collect()
}

pub fn worst(a: &Tensor, b: &Tensor) -> f64 {
    assert_eq!(a.size(), b.size());
    (a.to_kind(Kind::Float) - b.to_kind(Kind::Float))
        .abs()
        .max()
        .double_value(&[])
}

pub fn rows(ids: &Tensor) -> Vec<Vec<i64>> {
    let (count, width) = ids.size2().unwrap();
    (0..count)
        .map(|row| {
            (0..width)
                .map(|column| ids.int64_value(&[row, column]))
                .collect()
        })
        .collect()
}
