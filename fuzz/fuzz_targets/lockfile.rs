//! `kernels.lock`: what is read is rendered, and read again as the same.

#![no_main]

use kernel_spec::Lockfile;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(lock) = Lockfile::from_slice(bytes) {
        let read = Lockfile::from_slice(lock.render().as_bytes());
        assert_eq!(read.expect("what was rendered can be read"), lock);
    }
});
