//! Checking a kernel without a TPU: jobs in child processes that may hang, abort or eat memory.
//!
//! [`CheckServer`] is one Python process that imports torch and JAX once and forks for every job
//! ([`Job`]): loading a kernel and looking at its signature, comparing it with float64, running it in
//! the simulated memory of a TPU, and building it with the real compiler for TPUs. Nothing of that can
//! end this process. The kernel's code reaches the child as the verified bytes that this process
//! holds, never from disk.
//!
//! [`chip`] and [`cost`] know what a TPU can do at most and what an op needs at least; [`estimate`]
//! decides which figure of the compiler may be believed.

pub mod chip;
pub mod cost;
pub mod estimate;
mod job;
mod payload;
mod server;

pub use job::{
    Account, Answer, Build, BuildArm, Case, Exception, Grid, Job, Launch, Offered, Operation,
    ParityPart, RaceReport, Signature, Sizes, Unit, Work,
};
pub use server::{CheckServer, Limits};
