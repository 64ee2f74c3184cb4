//! What a measurement leaves behind, what may be said of it, and how it is shown.
//!
//! ```text
//! samples ──► record ──► statistics (interval, noise floor, verdict)
//!                │
//!                └──► report ──► terminal table
//!                            └──► one HTML page
//! ```
//!
//! This crate needs neither libtorch nor Python: a record can be looked at anywhere. It is measured by
//! `kernel-bench`.

pub mod correctness;
pub mod estimate;
pub mod record;
pub mod report;
pub mod statistics;

pub use correctness::Correctness;
