//! The one error type of this crate.
//!
//! Messages name the thing and the place (file and field, tensor, op, row); what the user can do
//! about it is apart, in [`ModelError::hint`].

use std::path::PathBuf;

use tch::TchError;

/// Result of this crate's operations.
pub type Result<T, E = ModelError> = std::result::Result<T, E>;

/// What can go wrong between a model directory and its text.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// A file of the model directory cannot be read.
    #[error("cannot read `{}`", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// A file that has to be there is not.
    #[error("`{}` has no `{file}`", directory.display())]
    MissingFile {
        /// The model directory.
        directory: PathBuf,
        /// The file that was looked for.
        file: String,
    },
    /// A file is not what its name promises.
    #[error("`{}` is not valid: {problem}", path.display())]
    InvalidFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// A field of a configuration file is missing, of the wrong type, or contradicts another.
    #[error("field `{field}` of `{}` {problem}", path.display())]
    Field {
        /// The file.
        path: PathBuf,
        /// The field, with dots for nested ones.
        field: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A model type, activation, rope type or the like that this crate does not run.
    #[error("`{}` asks for {what} `{name}`, which is not supported", path.display())]
    Unsupported {
        /// The file that asks for it.
        path: PathBuf,
        /// What kind of thing it is, such as `model type`.
        what: &'static str,
        /// Its name.
        name: String,
        /// What would do instead.
        hint: String,
    },
    /// The checkpoint is quantized.
    #[error("`{}` is quantized with `{method}`; only unquantized checkpoints run", path.display())]
    Quantized {
        /// The config file.
        path: PathBuf,
        /// The `quant_method`.
        method: String,
    },
    /// Tensors that the model needs are not in its weight files.
    #[error("the weights in `{}` lack {}", directory.display(), list(names))]
    MissingTensors {
        /// The model directory.
        directory: PathBuf,
        /// Names of the tensors.
        names: Vec<String>,
    },
    /// A tensor has another shape than the config implies.
    #[error(
        "tensor `{name}` of `{}` has shape {found:?}, but the config implies {expected:?}",
        path.display()
    )]
    TensorShape {
        /// The weight file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// Its shape in the file.
        found: Vec<i64>,
        /// The shape that follows from config.json.
        expected: Vec<i64>,
    },
    /// A tensor has a dtype that cannot be a weight here.
    #[error("tensor `{name}` of `{}` has dtype {dtype}, which cannot be a weight", path.display())]
    TensorDtype {
        /// The weight file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// The dtype in the spelling of safetensors.
        dtype: String,
    },
    /// A device that cannot be had.
    #[error("device `{device}` cannot be used: {problem}")]
    Device {
        /// The device as it was asked for.
        device: String,
        /// Why not.
        problem: String,
        /// What would do instead.
        hint: String,
    },
    /// A dtype that is not one of those the models run in.
    #[error("dtype `{0}` is not one that models run in")]
    Dtype(String),
    /// The tokenizer failed.
    #[error("the tokenizer failed: {0}")]
    Tokenizer(String),
    /// The model directory has no tokenizer, and the call needs one.
    #[error("`{}` has no tokenizer.json, so text cannot become tokens", .0.display())]
    NoTokenizer(PathBuf),
    /// The model directory has no chat template.
    #[error("`{}` has no chat template", .0.display())]
    NoChatTemplate(PathBuf),
    /// The chat template failed, or refused the conversation.
    #[error("the chat template of `{}` failed: {problem}", path.display())]
    ChatTemplate {
        /// Where the template comes from.
        path: PathBuf,
        /// What it said.
        problem: String,
    },
    /// A sampling parameter outside its range.
    #[error("sampling parameter `{name}` is {value}, but must be {expected}")]
    Sampling {
        /// The parameter.
        name: &'static str,
        /// Its value.
        value: String,
        /// Its range.
        expected: &'static str,
    },
    /// A prompt that cannot be run.
    #[error("prompt {row} {problem}")]
    Prompt {
        /// Row of the batch, from 0.
        row: usize,
        /// What is wrong with it.
        problem: String,
        /// What would do instead.
        hint: String,
    },
    /// Logits that are not numbers.
    #[error("row {row} has logits that are not finite at step {step}{}", layer_text(layer.as_ref()))]
    NotFinite {
        /// Row of the batch, from 0.
        row: usize,
        /// 0 is the prefill, then one a decode step.
        step: usize,
        /// The first layer whose output was not finite, where that could be found.
        layer: Option<String>,
    },
    /// A tensor handed to an op does not have the shape its contract states.
    #[error("op `{op}`: {problem}")]
    Op {
        /// The op, such as `decode_attention`.
        op: String,
        /// What is wrong.
        problem: String,
    },
    /// An option or a variable of the environment that cannot be used.
    #[error(transparent)]
    Setting(#[from] kernel_spec::Error),
    /// A kernel did not take over an op, and the policy is to fail then.
    #[error("kernel `{reference}` was not used for `{op}`: {reason}")]
    Kernel {
        /// The op.
        op: String,
        /// The kernel's reference.
        reference: String,
        /// Why it was not used.
        reason: String,
    },
    /// A tensor-parallel plan that cannot be, or ranks that do not fit the model.
    #[error("tensor parallelism: {problem}")]
    Parallel {
        /// What is wrong.
        problem: String,
        /// What would do instead.
        hint: Option<String>,
    },
    /// A collective operation failed: most often because another rank is gone.
    #[error("rank {rank} could not {operation} with the other ranks: {problem}")]
    Collective {
        /// This rank.
        rank: usize,
        /// What it was about to do.
        operation: &'static str,
        /// What torch.distributed said.
        problem: String,
    },
    /// The caller asked to stop.
    #[error("cancelled")]
    Cancelled,
    /// libtorch refused an operation.
    #[error("libtorch: {}", first_line(.0))]
    Torch(#[from] TchError),
}

impl ModelError {
    /// What the user can do about it, where there is something.
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::MissingFile { file, .. } => match file.as_str() {
                "config.json" => "name a directory that holds config.json and safetensors".into(),
                _ => "the directory is incomplete; copy or download it again".to_owned(),
            },
            Self::InvalidFile { path, .. }
                if path
                    .extension()
                    .is_some_and(|extension| extension == "safetensors") =>
            {
                "the file may be truncated; copy or download it again".to_owned()
            }
            Self::Unsupported { hint, .. }
            | Self::Device { hint, .. }
            | Self::Prompt { hint, .. } => hint.clone(),
            Self::Parallel { hint, .. } => return hint.clone(),
            Self::Quantized { .. } => "use the unquantized checkpoint of this model".to_owned(),
            Self::MissingTensors { .. } | Self::TensorShape { .. } => {
                "config.json and the weights may belong to different models".to_owned()
            }
            Self::Dtype(_) => "use `float32` or `bfloat16`".to_owned(),
            Self::NoTokenizer(_) => "give the prompt as token ids".to_owned(),
            Self::NoChatTemplate(_) => {
                "give the prompt as plain text, or add a chat_template.jinja".to_owned()
            }
            Self::NotFinite { .. } => {
                "run with `--kernels off` to see whether a kernel is at fault, or in `float32`"
                    .to_owned()
            }
            Self::Setting(error) => return error.hint(),
            Self::Kernel { .. } => "use `--fallback warn` to go on with the default op".to_owned(),
            _ => return None,
        };
        Some(hint)
    }

    /// Stable name of the kind, for machine-readable output.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Read { .. } => "read",
            Self::MissingFile { .. } => "missing_file",
            Self::InvalidFile { .. } => "invalid_file",
            Self::Field { .. } => "config_field",
            Self::Unsupported { .. } => "unsupported",
            Self::Quantized { .. } => "quantized",
            Self::MissingTensors { .. } => "missing_tensors",
            Self::TensorShape { .. } => "tensor_shape",
            Self::TensorDtype { .. } => "tensor_dtype",
            Self::Device { .. } => "device",
            Self::Dtype(_) => "dtype",
            Self::Tokenizer(_) => "tokenizer",
            Self::NoTokenizer(_) => "no_tokenizer",
            Self::NoChatTemplate(_) => "no_chat_template",
            Self::ChatTemplate { .. } => "chat_template",
            Self::Sampling { .. } => "sampling",
            Self::Prompt { .. } => "prompt",
            Self::NotFinite { .. } => "not_finite",
            Self::Op { .. } => "op",
            Self::Setting(error) => error.kind(),
            Self::Kernel { .. } => "kernel",
            Self::Parallel { .. } => "parallel",
            Self::Collective { .. } => "collective",
            Self::Cancelled => "cancelled",
            Self::Torch(_) => "torch",
        }
    }
}

/// libtorch appends a C++ backtrace to its messages; the first line is the message.
fn first_line(error: &TchError) -> String {
    let text = error.to_string();
    let line = text
        .lines()
        .find(|line| !line.trim().is_empty())
        .unwrap_or_default();
    line.trim().to_owned()
}

/// Up to five names; how many more there are is said, not listed.
fn list(names: &[String]) -> String {
    const SHOWN: usize = 5;
    let mut text = names
        .iter()
        .take(SHOWN)
        .map(|name| format!("`{name}`"))
        .collect::<Vec<_>>()
        .join(", ");
    if names.len() > SHOWN {
        let more = format!(" and {} more", names.len() - SHOWN);
        text.push_str(&more);
    }
    text
}

fn layer_text(layer: Option<&String>) -> String {
    layer
        .map(|layer| format!(", first in `{layer}`"))
        .unwrap_or_default()
}
