//! A/B measurement of kernels that a sceptic accepts.
//!
//! Correctness comes first ([`correctness`]): no time is shown for a kernel that is wrong. The
//! measuring loop ([`measure`]) takes A, B and a second A in random order, so that a control of A
//! against A comes from the same run. A verdict ([`statistics`]) goes by a bootstrap interval of
//! the ratio and by the noise floor that the control shows, never by a mean. Everything measured
//! is kept in a record ([`record`]) with the machine it was measured on ([`environment`]).

pub mod correctness;
pub mod environment;
pub mod measure;
pub mod record;
pub mod statistics;
pub mod workload;
