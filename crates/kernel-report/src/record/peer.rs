//! What `kernels benchmark` of the Python library writes: figures of one arm, without its samples.

use serde::Deserialize;

/// A document of `kernels benchmark --output` (0.17).
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PeerRecord {
    /// One entry a workload.
    pub results: Vec<PeerRow>,
    /// The machine.
    pub machine_info: PeerMachine,
    /// What the library calls the kernel's commit: the last word of its build's id.
    pub kernel_commit_sha: String,
    /// SHA-256 of the scripts.
    pub benchmark_script_sha: Option<String>,
}

/// One workload.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PeerRow {
    /// `Class.workload`.
    pub workload: String,
    /// Figures of the kernel's calls.
    pub timing_results: PeerTimings,
    /// Whether the result agreed with the script's reference; absent where it has none.
    pub verified: Option<bool>,
}

/// Figures of one workload in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
pub struct PeerTimings {
    /// Mean.
    pub mean_ms: f64,
    /// Standard deviation of the population.
    pub std_ms: f64,
    /// Least.
    pub min_ms: f64,
    /// Greatest.
    pub max_ms: f64,
    /// First quartile.
    pub q1_ms: f64,
    /// Third quartile.
    pub q3_ms: f64,
    /// Samples outside 1.5 interquartile ranges.
    pub outliers: usize,
    /// Samples.
    pub iterations: usize,
}

/// The machine, as the library tells it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PeerMachine {
    /// Accelerator, or `N/A`.
    pub gpu: String,
    /// Backend.
    pub backend: String,
    /// Version of torch.
    pub pytorch_version: String,
    /// Operating system.
    pub os: String,
    /// Processor.
    pub cpu: String,
}
