//! What runs on what, and why: the value that kernelizing returns.

use std::sync::{Arc, Mutex, PoisonError};

use kernel_spec::protocol::KernelEntry;

use crate::ops::DEFAULT;

/// One line for each slot of the model, what deserves a warning, and what went wrong later.
#[derive(Debug, Clone, Default)]
pub struct KernelReport {
    /// One entry a slot: attention, decode_attention, mlp, rms_norm, rotary.
    pub entries: Vec<KernelEntry>,
    /// One sentence each, for people. Empty under `silent`.
    pub warnings: Vec<String>,
    /// Kernels that failed while the model ran.
    pub incidents: Incidents,
}

impl KernelReport {
    /// Whether any kernel is in place.
    pub fn any_replaced(&self) -> bool {
        self.entries.iter().any(|entry| entry.replaced > 0)
    }

    /// The entries as things stand: a kernel that has failed since, and has given way to the default,
    /// takes no place any more.
    pub fn current(&self) -> Vec<KernelEntry> {
        let failures = self.incidents.entries();
        let now = |entry: &KernelEntry| match failures.iter().find(|(op, _)| *op == entry.op) {
            Some((_, incident)) => KernelEntry {
                implementation: DEFAULT.to_owned(),
                replaced: 0,
                reason: incident.clone(),
                ..entry.clone()
            },
            None => entry.clone(),
        };
        self.entries.iter().map(now).collect()
    }

    /// The entry of a slot.
    pub fn entry(&self, op: &str) -> Option<&KernelEntry> {
        self.entries.iter().find(|entry| entry.op == op)
    }
}

/// Failures of kernels that had passed the gate. Shared with the ops in the model, which go on
/// with the default after the first failure where the policy allows it.
#[derive(Debug, Clone, Default)]
pub struct Incidents(Arc<Mutex<Vec<(&'static str, String)>>>);

impl Incidents {
    pub(super) fn add(&self, op: &'static str, incident: String) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push((op, incident));
    }

    /// One sentence for each failure so far.
    pub fn all(&self) -> Vec<String> {
        self.entries().into_iter().map(|(_, text)| text).collect()
    }

    /// Each failure so far, with the slot of its kernel.
    fn entries(&self) -> Vec<(&'static str, String)> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}
