//! What a comparison leaves behind: one JSON document with all samples.
//!
//! Everything that a report says is computed from the samples in here, so that a reader can check
//! it. `docs/benchmark-record.md` explains every field.

mod arms;
mod judge;
mod machine;
mod peer;
mod read;
mod row;

use serde::{Deserialize, Serialize};

use crate::correctness::Correctness;
use crate::statistics::{Ratio, Verdict};

pub use arms::{ArmRecord, ReplacedOp};
pub use judge::About;
pub use machine::{Limits, MachineRecord};
pub use peer::{PeerRecord, PeerRow};
pub use read::{ReadError, Record};
pub use row::{ArmEstimate, Estimate, Row, Samples, Work};

/// Version of the record's format.
pub const FORMAT: u32 = 1;

/// What the two arms are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// One op by itself.
    Op,
    /// One layer of a model.
    Layer,
    /// A whole model.
    Model,
    /// A benchmark script that a kernel ships: A is its reference, B its kernel.
    Script,
}

/// What the processor's caches hold when a sample begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CacheState {
    /// Whatever the call before left: inputs that fit lie in the cache.
    #[default]
    Hot,
    /// Nothing of the inputs: a buffer larger than the last-level cache is written before each
    /// sample, outside its span. A sample is then one call.
    Flushed,
}

/// How it was measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Method {
    /// Seconds of measuring for each row.
    pub budget_s: f64,
    /// Least seconds of warm-up for each arm of a row.
    pub warm_up_s: f64,
    /// Confidence of all verdicts together (Holm).
    pub confidence: f64,
    /// Seed of the inputs, of the order within rounds, and of the bootstrap.
    pub seed: u64,
    /// State of the caches when a sample begins.
    pub cache: CacheState,
    /// Processes that the arms ran in: 1, or 3 where they could not share one (A, B, and A once more as
    /// the control).
    pub processes: u8,
    /// What the harness itself adds to a call, in seconds: measured on an empty call in the same run,
    /// part of every time, and not subtracted.
    pub harness_overhead_s: f64,
}

/// A whole comparison, as `--json` prints it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// [`FORMAT`].
    pub format: u32,
    /// When it was made, in UTC (RFC 3339).
    pub recorded_at: String,
    /// What the arms are.
    pub level: Level,
    /// Dtype of inputs and weights.
    pub dtype: String,
    /// The first arm.
    pub a: ArmRecord,
    /// The second arm.
    pub b: ArmRecord,
    /// How it was measured.
    pub method: Method,
    /// Whether the arms agree on every workload, and the largest deviations.
    pub correctness: Correctness,
    /// Every workload with its samples.
    pub samples: Vec<Row>,
    /// The geometric mean of the rows' ratios, with an interval; absent unless every row was judged.
    pub ratio: Option<Ratio>,
    /// The verdict over all rows.
    pub verdict: Option<Verdict>,
    /// The largest noise floor of the rows.
    pub noise_floor: Option<f64>,
    /// Whether every workload was measured for its whole budget; false after Ctrl-C.
    pub complete: bool,
    /// Machine and versions.
    pub environment: MachineRecord,
    /// Whether the figures are a compiler's estimates for a chip that is not here. A record is one
    /// or the other, never both.
    pub estimate: bool,
}
