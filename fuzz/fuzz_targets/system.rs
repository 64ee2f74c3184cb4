//! The description of a machine.

#![no_main]

use kernel_spec::System;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let _ = System::from_slice(bytes);
});
