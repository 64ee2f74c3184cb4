//! A/B measurement of kernels that a sceptic accepts.
//!
//! Correctness comes first ([`correctness`]): no time is shown for a kernel that is wrong. The
//! measuring loop ([`measure`]) takes A, B and a second A in random order, so that a control of A
//! against A comes from the same run. What a call has to do at least, and what this machine can do
//! at most, say how far each arm is from the limit ([`workload`], [`limits`]). Records, statistics and
//! reports are in `kernel-report`, which needs no libtorch.

pub mod cache;
pub mod correctness;
pub mod limits;
pub mod measure;
pub mod workload;
