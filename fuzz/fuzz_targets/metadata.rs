//! `metadata.json`: what is read is written, and read again as the same; so are its other uses.

#![no_main]

use kernel_spec::{Metadata, check_relative_path};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(metadata) = Metadata::from_slice(bytes) else {
        return;
    };
    let written = metadata.to_json_pretty();
    let read = Metadata::from_slice(written.as_bytes()).expect("what was written can be read");
    assert_eq!(read, metadata);
    let _ = metadata.check_module_id();
    for path in metadata.digest.iter().flat_map(|digest| digest.files.keys()) {
        assert_eq!(check_relative_path(path), Ok(()));
    }
});
