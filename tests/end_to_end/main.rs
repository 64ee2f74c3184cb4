//! The command, its runtime library, the index's kernels and a real model, all at once.
//!
//! The model directories are made by `cargo xtask model`; the runtime library is built beside the
//! command by `cargo build --workspace --all-targets`.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "helpers of tests may panic"
)]

mod benchmarks;
mod generation;
mod support;
