//! Decoder language models on libtorch, with op slots that Hub kernels or a user's own code fill.
//!
//! | to learn about | start at |
//! | --- | --- |
//! | what config.json may say | [`config`], [`family`], [`rope`] |
//! | how weights get into memory | [`weights`], [`load`] |
//! | the forward pass | [`model`], [`layer`], [`cache`] |
//! | why decode on the CPU is fast | `host`, the default ops on the host's own memory |
//! | replacing an op | [`ops`] for the slots, [`Model::set_attention`] and its neighbours |
//! | Hub kernels in the slots | [`kernelize`](mod@kernelize) |
//! | from prompt to text | [`tokenizer`], [`chat`], [`generate`], [`sampling`] |
//! | which device | [`placement`] |
//! | several devices | [`parallel`] |
//! | what would run | [`plan`](mod@plan) |
//!
//! Files that this crate reads, all in the model directory: `config.json` ([`config`]),
//! `generation_config.json` ([`generation_config`]), `*.safetensors` and their index
//! ([`weights`]), `tokenizer.json` ([`tokenizer`]), `chat_template.jinja` and
//! `tokenizer_config.json` ([`chat`]). It writes none but the logits dump that a caller asks for.

pub mod cache;
pub mod chat;
pub mod config;
pub mod error;
pub mod family;
pub mod generate;
pub mod generation_config;
mod host;
pub mod kernelize;
pub mod layer;
pub mod load;
pub mod model;
pub mod ops;
pub mod parallel;
pub mod placement;
pub mod plan;
pub mod rope;
pub mod sampling;
pub mod tokenizer;
pub mod weights;

pub use config::{Dtype, ModelConfig};
pub use error::{ModelError, Result};
pub use generate::{GenerateOptions, Generation};
pub use generation_config::GenerationConfig;
pub use kernelize::{KernelReport, KernelizeOptions, kernelize};
pub use load::LoadOptions;
pub use model::Model;
pub use placement::{Device, DeviceRequest, Placement};
pub use tokenizer::Tokenizer;
