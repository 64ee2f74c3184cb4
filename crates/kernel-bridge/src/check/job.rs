//! What is asked of the child process, and what it answers.

use std::collections::BTreeMap;

use kernel_spec::OpName;
use serde::{Deserialize, Serialize};

/// Sizes of an op by their letters, such as `T`.
pub type Sizes = BTreeMap<String, i64>;

/// One job of the child process.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "job", rename_all = "snake_case")]
pub enum Job {
    /// Load the kernel and say which ops it offers; answered by [`Signature`].
    Signature {
        /// The op; `None` finds all.
        op: Option<OpName>,
        /// The function or layer; `None` takes the op's usual name.
        symbol: Option<String>,
    },
    /// Compare with float64; a [`ParityPart`] for each case.
    Parity {
        /// The op.
        op: OpName,
        /// The function or layer.
        symbol: Option<String>,
        /// The cases.
        cases: Vec<Case>,
    },
    /// Run in the simulated memory of a TPU; answered by [`RaceReport`].
    Races {
        /// The op.
        op: OpName,
        /// The function or layer.
        symbol: Option<String>,
        /// Sizes of the op.
        sizes: Sizes,
        /// `float32`, `bfloat16` or `float16`.
        dtype: String,
        /// TensorCores that share the grid.
        cores: u32,
    },
    /// Build for a TPU; answered by [`Build`].
    Build(Work),
}

/// What is built by the compiler for TPUs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Work {
    /// The op.
    pub op: OpName,
    /// The function or layer.
    pub symbol: Option<String>,
    /// The kernel, or the default op in XLA's own code.
    pub arm: BuildArm,
    /// Sizes of the op.
    pub sizes: Sizes,
    /// `float32`, `bfloat16` or `float16`.
    pub dtype: String,
    /// The generation, such as `v5e`.
    pub target: String,
    /// Whether the compiler's cost model runs, which ends the process on what it does not know.
    pub profile: bool,
}

/// Which implementation is built.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum BuildArm {
    /// The kernel.
    Kernel,
    /// The op as XLA compiles it.
    Default,
}

/// One case of a parity job.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Case {
    /// Sizes of the op.
    pub sizes: Sizes,
    /// `float32`, `bfloat16` or `float16`.
    pub dtype: String,
    /// Sliding window, for attention.
    pub window: Option<i64>,
    /// Whether NaN and infinity are put into the inputs, one place at a time.
    pub poison: bool,
}

/// What a kernel offers.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Signature {
    /// The ops that were asked for or found.
    pub ops: Vec<Offered>,
    /// Names of all public functions, for messages.
    pub callables: Vec<String>,
}

/// One op that a kernel offers.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Offered {
    /// The op.
    pub op: OpName,
    /// Its function or layer.
    pub symbol: String,
    /// `function` or `layer`.
    pub kind: String,
    /// Names of its parameters.
    pub parameters: Vec<String>,
    /// What breaks the op's contract.
    pub problems: Vec<String>,
    /// What narrows its use.
    pub notes: Vec<String>,
}

/// A case of a parity job, judged.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct ParityPart {
    /// Index of the case.
    pub case: usize,
    /// What was put into the inputs, for a poisoned case.
    pub poison: Option<String>,
    /// Whether the kernel is right.
    pub ok: bool,
    /// Largest deviation from float64, relative to the largest value (at least 1).
    #[serde(default)]
    pub error: Option<f64>,
    /// The same for the default op in this dtype.
    #[serde(default)]
    pub default_error: Option<f64>,
    /// What is allowed.
    #[serde(default)]
    pub tolerance: Option<f64>,
    /// Values that are NaN or infinite and should not be.
    #[serde(default)]
    pub spread: u64,
    /// Values that are finite and should not be.
    #[serde(default)]
    pub lost: u64,
    /// What is wrong with number, shape or dtype of the results.
    #[serde(default)]
    pub form: Option<String>,
    /// What the kernel raised.
    #[serde(default)]
    pub failure: Option<Exception>,
    /// The mistake that gives just this result.
    #[serde(default)]
    pub explanation: Option<String>,
    /// Inputs that the kernel wrote to.
    #[serde(default)]
    pub changed_inputs: Vec<String>,
    /// What JAX said of 64-bit types that it cut down.
    #[serde(default)]
    pub truncated: Vec<String>,
    /// Whether a Pallas call ran in interpret mode.
    #[serde(default)]
    pub interpreted: bool,
}

/// What the simulation of a TPU's memory found.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct RaceReport {
    /// Whether there was a Pallas call to simulate.
    pub simulated: bool,
    /// Whether accesses race.
    #[serde(default)]
    pub found: bool,
    /// Deviation from float64 in the simulation.
    #[serde(default)]
    pub error: f64,
    /// What is allowed.
    #[serde(default)]
    pub tolerance: f64,
    /// Values of the result that come from memory nobody wrote.
    #[serde(default)]
    pub uninitialized: u64,
}

/// What a build gave.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct Build {
    /// The JAX functions that a call launches.
    pub launches: Vec<Launch>,
    /// torch ops around them, which are not part of any figure.
    #[serde(default)]
    pub torch_ops: Vec<String>,
}

/// One JAX function, built.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct Launch {
    /// Its name.
    pub name: String,
    /// The Pallas calls in it.
    pub pallas: Vec<Grid>,
    /// Names of hazards seen before compiling.
    pub hazards: Vec<String>,
    /// Bytes of arguments in HBM.
    pub argument_bytes: u64,
    /// Bytes of results in HBM.
    pub output_bytes: u64,
    /// Bytes of scratch in HBM.
    pub temp_bytes: u64,
    /// Bytes of code.
    pub code_bytes: u64,
    /// Estimated cycles by operation, where the cost model ran.
    pub cycles: Option<BTreeMap<String, u64>>,
    /// The schedule of each operation.
    pub operations: Vec<Operation>,
}

/// A Pallas call's grid.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct Grid {
    /// Steps in all; `None` where the grid is known at run time only.
    pub steps: Option<u64>,
    /// Whether the body has no loop and no branch, so that its bundles tell its time.
    pub straight: bool,
    /// Whether the grid or the blocks depend on scalars read from memory.
    pub scalar_prefetch: bool,
}

/// The schedule of one operation.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct Operation {
    /// Its name.
    pub name: String,
    /// Bundles, each counted once however often it runs.
    pub bundles: u64,
    /// Bytes of VMEM, double buffers included.
    #[serde(default)]
    pub vmem_bytes: u64,
    /// How much each unit is used in these bundles.
    #[serde(default)]
    pub units: BTreeMap<String, Unit>,
}

/// Use of one unit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
pub struct Unit {
    /// Uses in all bundles.
    pub used: u64,
    /// Uses that fit into one bundle.
    pub capacity: u64,
}

/// An exception of a kernel or of the compiler.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Exception {
    /// Name of its class.
    pub class: String,
    /// Its message.
    pub message: String,
    /// File, line and text in the kernel where it came from.
    pub place: Option<String>,
    /// The whole traceback.
    pub traceback: String,
}

/// What a job used.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct Account {
    /// Wall-clock seconds.
    pub seconds: f64,
    /// Most memory in bytes.
    pub peak_bytes: u64,
    /// What the job printed on standard output, the end of it.
    pub printed: String,
}

/// What came back of a job.
#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    /// One of several results; the job goes on.
    Part(serde_json::Value),
    /// The last result.
    Done(serde_json::Value, Account),
    /// The job raised an exception.
    Raised(Exception, Account),
    /// The job's process ended without an answer.
    Ended {
        /// `time limit`, `memory limit`, `signal 6` or `exit 1`.
        how: String,
        /// The end of what it said on standard error.
        said: String,
        /// What it used.
        account: Account,
    },
}
