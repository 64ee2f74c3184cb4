//! This crate against what the Python `kernels` 0.17.2 did with the same input.
//!
//! The corpora in `tests/conformance` of the repository were made by running that library. Where
//! this crate means to differ, the case is listed here and in `docs/differences.md`.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test may stop at bad test data"
)]

mod digest;
mod lockfile;
mod metadata;
mod variants;

use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;

fn corpus(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/conformance")
        .join(name)
}

fn read<T: DeserializeOwned>(name: &str) -> T {
    let path = corpus(name);
    let bytes = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_slice(&bytes).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The page that lists what this crate does differently on purpose.
fn differences() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/differences.md");
    std::fs::read_to_string(path).expect("docs/differences.md")
}
