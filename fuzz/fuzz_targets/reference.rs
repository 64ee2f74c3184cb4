//! References, repository ids and file names: what is parsed is printed as what parses to the same, and
//! no name leads out of a folder.

#![no_main]

use std::path::{Component, Path};

use kernel_spec::{KernelRef, RepositoryId, check_relative_path};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(reference) = text.parse::<KernelRef>() {
        let printed = reference.to_string();
        let read: KernelRef = printed.parse().expect("what was printed can be parsed");
        assert_eq!(read.to_string(), printed);
    }
    if let Ok(repository) = text.parse::<RepositoryId>() {
        let folder = repository.cache_folder();
        assert!(!folder.contains(['/', '\\']) && !folder.contains(".."));
    }
    if check_relative_path(text).is_ok() {
        let plain = |part| matches!(part, Component::Normal(_));
        assert!(Path::new(text).components().all(plain));
    }
});
