//! `pyproject.toml` and `kernel-status.toml`.

#![no_main]

use kernel_spec::{KernelStatus, project};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let _ = project::dependencies(text);
    if let Ok(status) = KernelStatus::from_toml(text) {
        status.target().expect("a status that was read has a target");
    }
});
