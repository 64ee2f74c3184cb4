//! What `kernel-cli` and the runtime library say to each other.
//!
//! The command links neither libtorch nor libpython; it opens `libkernel_runtime` when a command
//! needs one of them. Between the two there is one call: a [`Request`] goes in as JSON, [`Event`]s
//! come back as JSON, one at a time, the last of them [`Event::Done`] or [`Event::Failed`]. Both
//! sides are built from this module, and [`ABI_VERSION`] is compared before anything else.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::plan::PlanRequest;

pub mod check;

/// Version of the C interface and of the messages in this module. Any change to either raises it.
pub const ABI_VERSION: u32 = 5;

/// What the command asks of the runtime library.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case")]
pub enum Request {
    /// Load a model and continue prompts.
    Generate(GenerateRequest),
    /// Compare two implementations of an op, or two set-ups of a model.
    Benchmark(BenchmarkRequest),
    /// Be one arm of a [`BenchmarkRequest`] with `apart`, for the process at the other end of standard
    /// input.
    BenchmarkArm,
    /// Say what would run.
    Plan(PlanRequest),
    /// Check a kernel without a TPU.
    Check(check::CheckRequest),
    /// Compare two implementations of an op by the estimates of the compiler for TPUs.
    Estimate(EstimateRequest),
}

/// How the runtime library reaches kernels: the shared flags of the command.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "one for each flag of the command"
)]
pub struct RegistrySettings {
    /// No network at all.
    pub offline: bool,
    /// Fail where kernels.lock is missing or stale.
    pub locked: bool,
    /// As `locked`, and do not look at the Hub.
    pub frozen: bool,
    /// Path of kernels.lock.
    pub lockfile: Option<PathBuf>,
    /// Repositories that are trusted whatever the Hub says of their owners.
    pub trust: Vec<String>,
    /// Refuse kernels without a valid signature.
    pub require_signed: bool,
    /// A file that says whose signatures count.
    pub signature_policy: Option<PathBuf>,
    /// A folder of vendored kernels, which go before all others.
    pub vendor: Option<PathBuf>,
}

/// Which kernels a model runs with.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct KernelChoice {
    /// No Hub kernels at all, whatever the config says.
    pub off: bool,
    /// A file whose `kernel_config` replaces the one in the model's config.json.
    pub config: Option<PathBuf>,
    /// `OP=REF` pairs that go before both. An empty reference keeps the default op.
    pub overrides: Vec<(String, String)>,
    /// `warn`, `error` or `silent`; `None` leaves it to the config.
    pub fallback: Option<String>,
    /// Let a kernel that has only a TPU build run on the CPU in Pallas' interpret mode: functional
    /// only, and slow.
    pub interpret: bool,
}

/// Load a model and continue prompts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GenerateRequest {
    /// Model directory: config.json, safetensors, and a tokenizer unless the prompts are ids.
    pub model: PathBuf,
    /// What to continue.
    pub prompt: Prompt,
    /// At most so many new tokens a row; `None` takes the generation config's, else 128.
    pub max_new_tokens: Option<usize>,
    /// How the next token is chosen.
    pub sampling: SamplingChoice,
    /// `float32` or `bfloat16`; `None` takes the config's.
    pub dtype: Option<String>,
    /// `auto`, `cpu` or `tpu`.
    pub device: String,
    /// Number of tensor-parallel ranks. Above 1, this process is one of them, and torchrun's environment
    /// says which.
    pub tp_size: usize,
    /// A tensor-parallel plan over the model's own: styles by module name.
    pub tp_plan: Option<serde_json::Map<String, serde_json::Value>>,
    /// Seconds that a rank waits for the others.
    pub tp_timeout_s: f64,
    /// Which kernels to use.
    pub kernels: KernelChoice,
    /// Go on after an end-of-sequence token.
    pub ignore_eos: bool,
    /// Texts at which a row ends.
    pub stop_strings: Vec<String>,
    /// Where to write logits and ids as safetensors.
    pub dump_logits: Option<PathBuf>,
    /// How kernels are reached.
    pub registry: RegistrySettings,
    /// Threads for libtorch and XLA; `None` leaves it to them.
    pub threads: Option<usize>,
}

/// What a model is to continue.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Prompt {
    /// Plain texts, one row each.
    Texts(Vec<String>),
    /// One user message for the model's chat template.
    Chat {
        /// The user's message.
        user: String,
        /// An optional system message.
        system: Option<String>,
    },
    /// Token ids, one row each; rows may differ in length.
    Ids(Vec<Vec<i64>>),
}

/// Sampling options of the call. `None` takes the value of generation_config.json, else the
/// default of transformers.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SamplingChoice {
    /// Always the most probable token; goes before all others.
    pub greedy: bool,
    /// Divides the logits.
    pub temperature: Option<f64>,
    /// Keep the `k` most probable tokens.
    pub top_k: Option<usize>,
    /// Keep the smallest set of tokens with this probability mass.
    pub top_p: Option<f64>,
    /// Drop tokens less probable than this share of the most probable one.
    pub min_p: Option<f64>,
    /// Penalty on tokens that the row already holds.
    pub repetition_penalty: Option<f64>,
    /// Seed of the random numbers.
    pub seed: Option<u64>,
}

/// One line of the report: what an op of the model runs on, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelEntry {
    /// `attention`, `decode_attention`, `mlp`, `rms_norm` or `rotary`.
    pub op: String,
    /// The kernel's reference, or `default`.
    pub implementation: String,
    /// Repository of the kernel, where it has one.
    pub repo: Option<String>,
    /// Commit of the kernel, where it has one.
    pub commit: Option<String>,
    /// Places in the model that the kernel took.
    pub replaced: usize,
    /// Places in the model where the op occurs.
    pub total: usize,
    /// Why the kernel was not used, or how it passed the gate.
    pub reason: String,
}

/// Wall-clock seconds of the phases of a generation.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Timings {
    /// Weights, tokenizer, environment and kernels.
    pub load_s: f64,
    /// Compiles during warm-up, where there were any.
    pub compile_s: f64,
    /// The prompt.
    pub prefill_s: f64,
    /// All steps after it.
    pub decode_s: f64,
    /// New tokens of all rows over `decode_s`.
    pub decode_tokens_per_s: f64,
}

/// The answer to [`Request::Generate`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GenerateResponse {
    /// The text of each row; `None` where the model has no tokenizer.
    pub texts: Vec<Option<String>>,
    /// Length of each prompt in tokens.
    pub prompt_tokens: Vec<usize>,
    /// The new token ids of each row.
    pub tokens: Vec<Vec<i64>>,
    /// Why each row ended: `stop`, `length` or `cancelled`.
    pub finish: Vec<String>,
    /// The device that was chosen.
    pub device: String,
    /// The dtype of weights and activations.
    pub dtype: String,
    /// What runs on what.
    pub kernels: Vec<KernelEntry>,
    /// Seconds by phase.
    pub timings: Timings,
    /// Compiles by kernel ops, warm-up included.
    pub compiles: usize,
    /// What ranks did, where there were several.
    pub parallel: Option<ParallelReport>,
}

/// What the ranks of a generation did.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ParallelReport {
    /// One entry a rank.
    pub ranks: Vec<RankReport>,
    /// Collective operations of a decode step.
    pub collectives_per_step: u64,
    /// Collective operations of the whole generation, the prompt included.
    pub collectives: u64,
    /// What is good to know of how the model is spread.
    pub notes: Vec<String>,
}

/// What one rank did.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RankReport {
    /// The rank.
    pub rank: usize,
    /// Bytes that it took from the weight files.
    pub bytes_read: u64,
    /// Seconds from the start of its work to a model with its kernels in place.
    pub load_s: f64,
    /// Seconds of them that the weights took.
    pub weights_s: f64,
}

/// Compare two arms.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BenchmarkRequest {
    /// The first arm: a kernel reference, `default`, or `config` (whole model only).
    pub a: String,
    /// The second arm; the ratio is the time of `b` over the time of `a`.
    pub b: String,
    /// What is compared.
    pub workload: Workload,
    /// `float32` or `bfloat16`.
    pub dtype: Option<String>,
    /// Seconds of measuring for each row of the table.
    pub budget_s: f64,
    /// Confidence of the interval, between 0 and 1.
    pub confidence: f64,
    /// Seed of inputs and of the order of pairs.
    pub seed: u64,
    /// Flush the processor's caches before each sample.
    pub flush_caches: bool,
    /// Threads for libtorch and XLA; `None` leaves it to them.
    pub threads: Option<usize>,
    /// Let kernels without a CPU build run in interpret mode (functional, never timed).
    pub interpret: bool,
    /// The program to start for each arm, which does [`Request::BenchmarkArm`] as `bench arm`; `None` has
    /// both arms in one process.
    pub apart: Option<PathBuf>,
    /// How kernels are reached.
    pub registry: RegistrySettings,
}

/// Compare two arms on TPUs that are not there.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EstimateRequest {
    /// The arms, the op and its shapes.
    pub comparison: BenchmarkRequest,
    /// TPU generations.
    pub targets: Vec<String>,
    /// Seconds that one build may take.
    pub time_limit_s: f64,
}

/// What two arms are compared on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Workload {
    /// One op at given shapes.
    Op {
        /// The op's name, as in [`KernelEntry::op`].
        op: String,
        /// Named sizes, such as `T=128,D=64`; empty takes the op's usual ones.
        shapes: Vec<BTreeMap<String, usize>>,
    },
    /// One op at the shapes of a model.
    OpOfModel {
        /// The op's name, as in [`KernelEntry::op`].
        op: String,
        /// Model directory.
        model: PathBuf,
    },
    /// The benchmark scripts of a kernel: `a` is their reference, `b` the kernel.
    Script {
        /// The scripts.
        scripts: Vec<PathBuf>,
    },
    /// One layer of a model: prefill and decode.
    Layer {
        /// Model directory.
        model: PathBuf,
        /// Number of the layer, from 0.
        layer: usize,
        /// Prompt length in tokens.
        prompt_tokens: usize,
        /// Room for so many tokens after it.
        new_tokens: usize,
    },
    /// A whole model: prefill, time to the first token, and decode.
    Model {
        /// Model directory.
        model: PathBuf,
        /// Prompt length in tokens.
        prompt_tokens: usize,
        /// Decode steps a run.
        new_tokens: usize,
    },
}

/// The answer to [`Request::Benchmark`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BenchmarkResponse {
    /// The record: arms, correctness, samples, ratio, verdict, environment.
    pub record: serde_json::Value,
    /// Whether the arms agree on every workload.
    pub agree: bool,
}

/// What the runtime library reports while it works.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// Long work goes on.
    Progress {
        /// What is being done, for people.
        stage: String,
        /// Units done.
        done: u64,
        /// Units in all; 0 where that is not known.
        total: u64,
    },
    /// Something to tell the user on standard error.
    Note {
        /// `info` or `warning`.
        level: String,
        /// One sentence.
        message: String,
    },
    /// What runs on what, before the first token.
    Kernels {
        /// The device that was chosen and why.
        device: String,
        /// The report.
        entries: Vec<KernelEntry>,
    },
    /// How far a rank of several is, twice a second.
    Pulse {
        /// Collective operations that it has begun.
        begun: u64,
        /// Collective operations that it has ended; one less means that it waits for other ranks.
        ended: u64,
    },
    /// New text of a row, never half a character.
    Text {
        /// The row.
        row: usize,
        /// The text.
        text: String,
    },
    /// The last event of a request that went well: the response as JSON.
    Done {
        /// [`GenerateResponse`], [`BenchmarkResponse`] or [`check::CheckResponse`].
        response: serde_json::Value,
    },
    /// The last event of a request that failed.
    Failed(Failure),
}

/// An error of the runtime library, ready to print.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// Stable name of the kind, for `--json`.
    pub kind: String,
    /// The message.
    pub message: String,
    /// Its causes, outermost first.
    pub causes: Vec<String>,
    /// What the user can do.
    pub hint: Option<String>,
    /// Details behind `-v`, such as a Python traceback.
    pub detail: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_survive_the_way_through_json() {
        let events = [
            Event::Text {
                row: 1,
                text: "é".into(),
            },
            Event::Done {
                response: serde_json::json!({"a": [1, 2]}),
            },
            Event::Failed(Failure {
                kind: "model".into(),
                message: "m".into(),
                causes: vec!["c".into()],
                hint: None,
                detail: Some("d".into()),
            }),
        ];
        for event in events {
            let text = serde_json::to_string(&event).unwrap();
            assert_eq!(serde_json::from_str::<Event>(&text).unwrap(), event);
        }
    }
}
