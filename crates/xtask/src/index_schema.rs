//! The JSON Schema of index files against the types that read them, so that neither changes alone.

use std::path::Path;

use kernel_spec::index::INDEX_FORMAT;
use kernel_spec::op::{Activation, Layout};
use kernel_spec::{DType, DeviceType, OpName};
use serde_json::Value;

/// Words of a list of the schema, in any order.
fn words(schema: &Value, pointer: &str) -> Vec<String> {
    let list = schema.pointer(pointer).and_then(Value::as_array);
    let list = list.unwrap_or_else(|| panic!("no list at {pointer}"));
    let mut words: Vec<String> = list
        .iter()
        .map(|word| word.as_str().unwrap().to_owned())
        .collect();
    words.sort();
    words
}

fn sorted<T: ToString>(values: &[T]) -> Vec<String> {
    let mut words: Vec<String> = values.iter().map(ToString::to_string).collect();
    words.sort();
    words
}

#[test]
fn the_schema_knows_the_words_and_keys_of_the_types() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kernels-index");
    let schema = std::fs::read_to_string(directory.join("index.schema.json")).unwrap();
    let schema: Value = serde_json::from_str(&schema).unwrap();
    assert_eq!(schema["$defs"]["format"]["const"], INDEX_FORMAT);
    assert_eq!(words(&schema, "/$defs/op/enum"), sorted(OpName::ALL));
    assert_eq!(
        words(&schema, "/$defs/device/enum"),
        sorted(DeviceType::ALL)
    );
    let constraints = "/$defs/constraints/properties";
    for (key, expected) in [
        ("dtypes/items/enum", sorted(DType::ALL)),
        ("layout/enum", sorted(Layout::ALL)),
        ("activations/items/enum", sorted(Activation::ALL)),
    ] {
        assert_eq!(words(&schema, &format!("{constraints}/{key}")), expected);
    }

    // Every key that a file has is one of the schema, and every required one is there.
    for entry in std::fs::read_dir(directory.join("index")).unwrap() {
        let path = entry.unwrap().path();
        let file: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        if file.get("device").is_some() {
            assert_keys(&schema, "mapping", &file);
            continue;
        }
        assert_keys(&schema, "repository", &file);
        for op in file["ops"].as_array().unwrap() {
            assert_keys(&schema, "entry", op);
            assert_keys(&schema, "constraints", &op["constraints"]);
        }
        for version in file["versions"].as_array().unwrap() {
            assert_keys(&schema, "version", version);
        }
    }
}

fn assert_keys(schema: &Value, definition: &str, value: &Value) {
    let definition = &schema["$defs"][definition];
    let object = value.as_object().unwrap();
    for key in object.keys() {
        assert!(
            definition["properties"].get(key).is_some(),
            "`{key}` is unknown"
        );
    }
    for key in definition["required"].as_array().into_iter().flatten() {
        assert!(
            object.contains_key(key.as_str().unwrap()),
            "{key} is missing"
        );
    }
}
