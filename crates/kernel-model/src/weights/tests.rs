use std::fs;

use tch::Device;

use super::*;
use crate::error::ModelError;

fn write(path: &Path, tensors: &[(&str, Tensor)]) {
    Tensor::write_safetensors(tensors, path).unwrap();
}

fn ramp(size: &[i64], kind: Kind) -> Tensor {
    let count: i64 = size.iter().product();
    Tensor::arange(count, (Kind::Float, Device::Cpu))
        .view(size)
        .to_kind(kind)
}

fn single() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    write(
        &directory.path().join(SINGLE),
        &[
            ("a", ramp(&[2, 3], Kind::Float)),
            ("b", ramp(&[4], Kind::BFloat16)),
        ],
    );
    directory
}

#[test]
fn tensors_of_the_wanted_dtype_are_views_of_the_mapping() {
    let directory = single();
    let mut weights = Weights::open(directory.path()).unwrap();
    let (one, two) = (weights.take("a").unwrap(), weights.take("a").unwrap());
    assert_eq!(one.data_ptr(), two.data_ptr());
    assert_eq!(one, ramp(&[2, 3], Kind::Float));
    let converted = weights.take("b").unwrap();
    assert_eq!(converted, ramp(&[4], Kind::Float));
}

#[test]
fn a_tensor_outlives_the_weights_it_came_from() {
    let directory = single();
    let tensor = Weights::open(directory.path()).unwrap().take("a").unwrap();
    drop(directory);
    assert_eq!(tensor, ramp(&[2, 3], Kind::Float));
}

#[test]
fn writing_to_a_weight_does_not_change_the_file() {
    let directory = single();
    let mut tensor = Weights::open(directory.path()).unwrap().take("a").unwrap();
    let _ = tensor.zero_();
    let again = Weights::open(directory.path()).unwrap().take("a").unwrap();
    assert_eq!(again, ramp(&[2, 3], Kind::Float));
}

#[test]
fn truncated_and_oversized_files_are_named() {
    let directory = single();
    let path = directory.path().join(SINGLE);
    let bytes = fs::read(&path).unwrap();
    let mut longer = bytes.clone();
    longer.push(0);
    let mut huge_header = bytes.clone();
    huge_header[..8].copy_from_slice(&u64::MAX.to_le_bytes());
    for broken in [
        &bytes[..bytes.len() - 1],
        &bytes[..20],
        &bytes[..5],
        &[],
        &longer,
        &huge_header,
    ] {
        fs::write(&path, broken).unwrap();
        let error = Weights::open(directory.path()).unwrap_err();
        assert!(matches!(error, ModelError::InvalidFile { .. }), "{error}");
        assert!(error.to_string().contains(SINGLE), "{error}");
        assert!(error.hint().unwrap().contains("truncated"));
    }
}

#[test]
fn missing_and_misshapen_tensors_are_named() {
    let directory = single();
    let weights = Weights::open(directory.path()).unwrap();
    let expected = |name: &str, shape: &[i64]| vec![(name.to_owned(), shape.to_vec())];
    assert!(weights.check(&expected("a", &[2, 3])).is_ok());
    let error = weights.check(&expected("lost", &[1])).unwrap_err();
    assert!(error.to_string().contains("`lost`"), "{error}");
    let error = weights
        .check(&expected("a", &[3, 2]))
        .unwrap_err()
        .to_string();
    assert!(error.contains("`a`") && error.contains("[2, 3]") && error.contains("[3, 2]"));
}

#[test]
fn integers_cannot_be_weights() {
    let directory = tempfile::tempdir().unwrap();
    write(
        &directory.path().join(SINGLE),
        &[("a", ramp(&[2], Kind::Int64))],
    );
    let error = Weights::open(directory.path())
        .unwrap()
        .take("a")
        .unwrap_err();
    assert!(error.to_string().contains("I64"), "{error}");
}

#[test]
fn what_nothing_asked_for_is_listed_but_rotary_frequencies_are_not() {
    let directory = tempfile::tempdir().unwrap();
    let frequencies = "model.layers.0.self_attn.rotary_emb.inv_freq";
    let tensor = || ramp(&[2], Kind::Float);
    write(
        &directory.path().join(SINGLE),
        &[
            ("a", tensor()),
            ("extra", tensor()),
            (frequencies, tensor()),
        ],
    );
    let mut weights = Weights::open(directory.path()).unwrap();
    let _ = weights.take("a").unwrap();
    assert_eq!(weights.untaken(), ["extra"]);
}

#[test]
fn an_index_is_believed_only_where_its_shards_hold_what_it_says() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    write(
        &path.join("one.safetensors"),
        &[("a", ramp(&[2], Kind::Float))],
    );
    let open = |map: serde_json::Value| {
        let index = serde_json::json!({"metadata": {}, "weight_map": map});
        fs::write(path.join(INDEX), index.to_string()).unwrap();
        Weights::open(path)
    };
    assert!(open(serde_json::json!({"a": "one.safetensors"})).is_ok());
    let error = open(serde_json::json!({"a": "two.safetensors"})).unwrap_err();
    assert!(error.to_string().contains("two.safetensors"), "{error}");
    let error = open(serde_json::json!({"b": "one.safetensors"})).unwrap_err();
    assert!(error.to_string().contains("lacks the tensor"), "{error}");
    for outside in ["../one.safetensors", "/etc/passwd", "..\\one.safetensors"] {
        let error = open(serde_json::json!({"a": outside})).unwrap_err();
        assert!(error.to_string().contains("not a file name"), "{error}");
    }
    fs::write(path.join(INDEX), "{}").unwrap();
    assert!(
        Weights::open(path)
            .unwrap_err()
            .to_string()
            .contains("weight_map")
    );
}

#[test]
fn a_directory_without_weights_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let error = Weights::open(directory.path()).unwrap_err();
    assert!(matches!(error, ModelError::MissingFile { .. }));
}
