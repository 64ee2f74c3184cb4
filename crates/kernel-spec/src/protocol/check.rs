//! `check`: what is asked of a kernel, and what was found.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::RegistrySettings;

/// Check a kernel without a TPU.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CheckRequest {
    /// The kernel.
    pub reference: String,
    /// One op; `None` checks every op that the kernel offers.
    pub op: Option<String>,
    /// TPU generations to compile for; empty means all.
    pub targets: Vec<String>,
    /// Named sizes, such as `T=128,D=64`; empty takes the op's usual ones.
    pub shapes: Vec<BTreeMap<String, usize>>,
    /// A model directory whose config gives the shapes.
    pub model: Option<PathBuf>,
    /// Element types; empty takes those that the index names, else float32 and bfloat16.
    pub dtypes: Vec<String>,
    /// Parts to leave out: `parity`, `races` or `targets`.
    pub skip: Vec<String>,
    /// Seconds that one step may take before it counts as stuck.
    pub time_limit_s: f64,
    /// Steps at a time; `None` takes one for each processor.
    pub jobs: Option<usize>,
    /// How kernels are reached.
    pub registry: RegistrySettings,
}

impl Default for CheckRequest {
    fn default() -> Self {
        Self {
            reference: String::new(),
            op: None,
            targets: Vec::new(),
            shapes: Vec::new(),
            model: None,
            dtypes: Vec::new(),
            skip: Vec::new(),
            time_limit_s: 120.0,
            jobs: None,
            registry: RegistrySettings::default(),
        }
    }
}

/// The answer to a [`CheckRequest`].
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct CheckResponse {
    /// The kernel.
    pub kernel: CheckedKernel,
    /// Whether nothing is wrong: no finding is an error.
    pub passed: bool,
    /// What was found, errors first.
    pub findings: Vec<Finding>,
    /// The ops that were checked.
    pub ops: Vec<CheckedOp>,
    /// Comparisons with float64.
    pub parity: Vec<ParityEntry>,
    /// Runs in the simulated memory of a TPU.
    pub races: Vec<RaceEntry>,
    /// Builds by the compiler for TPUs.
    pub targets: Vec<TargetEntry>,
    /// Always true: no figure of `targets` was measured on a TPU.
    pub estimate: bool,
    /// Versions of what took part.
    pub versions: BTreeMap<String, String>,
    /// Seconds that the check took.
    pub seconds: f64,
}

/// Which kernel was checked.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct CheckedKernel {
    /// The reference, as given.
    #[serde(rename = "ref")]
    pub reference: String,
    /// Its repository, where it has one.
    pub repo: Option<String>,
    /// Its commit, where it has one.
    pub commit: Option<String>,
    /// The build that was checked.
    pub variant: String,
}

/// An op that was checked.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct CheckedOp {
    /// The op.
    pub op: String,
    /// The kernel's function or layer.
    pub symbol: String,
    /// `function` or `layer`.
    pub kind: String,
    /// Names of its parameters.
    pub parameters: Vec<String>,
}

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// The kernel is wrong or cannot be used as asked.
    Error,
    /// It may go wrong.
    Warning,
    /// Good to know.
    Note,
}

/// One thing that was found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// Stable name of the kind, such as `wrong-result`, `race` or `vmem`.
    pub kind: String,
    /// The op.
    pub op: Option<String>,
    /// The TPU generation.
    pub target: Option<String>,
    /// The shape.
    pub shape: Option<String>,
    /// The element type.
    pub dtype: Option<String>,
    /// What was found.
    pub message: String,
    /// File, line and text in the kernel.
    pub place: Option<String>,
    /// What can be done.
    pub hint: Option<String>,
    /// The whole traceback or the compiler's own words, for `-v`.
    pub detail: Option<String>,
}

/// One comparison with float64.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ParityEntry {
    /// The op.
    pub op: String,
    /// The shape.
    pub shape: String,
    /// The element type.
    pub dtype: String,
    /// What was put into the inputs, such as NaN; `None` for plain numbers.
    pub poison: Option<String>,
    /// Whether the kernel is right.
    pub ok: bool,
    /// Largest deviation from float64, relative to the largest value (at least 1).
    pub error: Option<f64>,
    /// The default op's deviation in this element type.
    pub default_error: Option<f64>,
    /// The largest deviation that is allowed.
    pub tolerance: Option<f64>,
    /// Whether a Pallas body ran in interpret mode.
    pub interpreted: bool,
}

/// One run in the simulated memory of a TPU.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RaceEntry {
    /// The op.
    pub op: String,
    /// The shape.
    pub shape: String,
    /// TensorCores that shared the grid.
    pub cores: u32,
    /// Whether there was a Pallas call to simulate.
    pub simulated: bool,
    /// Whether accesses race; `None` where the run failed.
    pub found: Option<bool>,
}

/// One build by the compiler for TPUs. Every figure is known while compiling: an estimate.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TargetEntry {
    /// The TPU generation.
    pub target: String,
    /// The op.
    pub op: String,
    /// The shape.
    pub shape: String,
    /// The element type.
    pub dtype: String,
    /// The kernel.
    #[serde(flatten)]
    pub kernel: BuildEntry,
    /// The default op, as XLA compiles it, at the same shape.
    pub baseline: Option<BuildEntry>,
    /// Estimated cycles of the kernel over those of the default op.
    pub ratio: Option<f64>,
    /// Why there is no ratio.
    pub ratio_reason: Option<String>,
    /// The least that this shape needs on this chip.
    pub roofline: Roofline,
}

/// What one build gave.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct BuildEntry {
    /// Whether it compiles.
    pub compiles: bool,
    /// The compiler's error, where it does not.
    pub error: Option<String>,
    /// Estimated cycles, where a figure may be believed.
    pub estimated_cycles: Option<u64>,
    /// What the method gave, believable or not.
    pub modelled_cycles: Option<u64>,
    /// `static profile` or `schedule x grid`; `None` where neither applies.
    pub method: Option<String>,
    /// Why there are no estimated cycles.
    pub method_reason: Option<String>,
    /// The least cycles that the chip allows over the estimated ones.
    pub of_roofline: Option<f64>,
    /// Bundles of all operations, each counted once.
    pub bundles: Option<u64>,
    /// Stores of spilled registers in these bundles.
    pub spills: Option<u64>,
    /// Share of the bundles' slots that each unit uses, between 0 and 1.
    pub utilisation: BTreeMap<String, f64>,
    /// Most bytes of VMEM that one operation takes.
    pub vmem_bytes: Option<u64>,
    /// Bytes of scratch in HBM.
    pub temp_bytes: Option<u64>,
    /// Bytes of code.
    pub code_bytes: Option<u64>,
    /// torch ops around the JAX functions, which are in no figure.
    pub torch_ops: Vec<String>,
    /// Seconds that the build took.
    pub seconds: f64,
}

/// The least that a shape needs on a chip.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Roofline {
    /// Floating-point operations of the matrix products.
    pub flops: f64,
    /// Bytes of all inputs and results.
    pub bytes: f64,
    /// Cycles of the matrix units at their peak.
    pub arithmetic_cycles: f64,
    /// Cycles of HBM at its peak.
    pub memory_cycles: f64,
    /// `MXU` or `HBM`, whichever binds.
    pub bound: String,
    /// Peak of the matrix units in bf16, operations a second.
    pub peak_flops_per_second: f64,
    /// Peak of HBM, bytes a second.
    pub peak_bytes_per_second: f64,
    /// Cycles a second.
    pub clock_hz: f64,
}
