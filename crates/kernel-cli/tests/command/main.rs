//! The whole command: exit code, standard output, standard error.
//!
//! Each test has a cache, a working folder and, where it needs one, a Hub of its own. What differs
//! from run to run (folders, ports, commits, sizes, hashes) is replaced in the snapshots. After a
//! wanted change, `INSTA_UPDATE=always cargo test -p kernel-cli` writes them anew.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod arguments;
mod cache;
mod conformance;
mod errors;
mod faults_of_the_peer;
mod fetch;
mod index;
mod lock;
mod program;
mod report;
mod support;
mod verify;
