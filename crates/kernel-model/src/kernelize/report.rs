//! What runs on what, and why: the value that kernelizing returns.

use std::sync::{Arc, Mutex, PoisonError};

use kernel_spec::protocol::KernelEntry;

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

    /// The entry of a slot.
    pub fn entry(&self, op: &str) -> Option<&KernelEntry> {
        self.entries.iter().find(|entry| entry.op == op)
    }
}

/// Failures of kernels that had passed the gate. Shared with the ops in the model, which go on
/// with the default after the first failure where the policy allows it.
#[derive(Debug, Clone, Default)]
pub struct Incidents(Arc<Mutex<Vec<String>>>);

impl Incidents {
    pub(super) fn add(&self, incident: String) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(incident);
    }

    /// One sentence for each failure so far.
    pub fn all(&self) -> Vec<String> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}
