//! Files of the kernel index, as a repository's file and as a default mapping beside it.

#![no_main]

use kernel_spec::Index;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(index) = Index::from_files([("hub-kernels--attention.json", bytes)]) {
        assert!(index.repositories().count() <= 1);
    }
    let _ = Index::from_files([("default-mapping.tpu.json", bytes)]);
});
