//! The repository's own index files against the types that read them.

use std::path::Path;

use kernel_spec::{DeviceType, Index};

#[test]
fn the_index_of_this_repository_is_sound() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../kernels-index/index");
    let files: Vec<(String, Vec<u8>)> = std::fs::read_dir(directory)
        .unwrap()
        .map(|entry| {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            (name, std::fs::read(entry.path()).unwrap())
        })
        .filter(|(name, _)| {
            Path::new(name)
                .extension()
                .is_some_and(|ending| ending == "json")
        })
        .collect();
    let files = files
        .iter()
        .map(|(name, content)| (name.as_str(), content.as_slice()));
    let index = Index::from_files(files).unwrap_or_else(|error| panic!("{error}"));
    assert!(index.repositories().count() > 0);
    assert!(
        index.default_mapping(DeviceType::Tpu).count() > 0,
        "TPUs have default kernels"
    );
}
