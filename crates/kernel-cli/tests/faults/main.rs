//! The command on machines where things go wrong: it is killed, many run at once, the disk is full
//! or cannot be written, or the file system has neither links nor locks.
//!
//! | module | watches |
//! | --- | --- |
//! | `killed` | `kill -9` at any moment of a fetch |
//! | `together` | many processes that fetch one kernel |
//! | `disk` | file systems that fail, by a library that makes the system's calls fail |

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "helpers of tests may panic")]

mod disk;
mod killed;
mod support;
mod together;
