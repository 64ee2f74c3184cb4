//! generation_config.json: the sampling defaults and end tokens that a model's authors chose.

use std::path::Path;

use crate::config::ModelConfig;
use crate::config::fields::{Fields, read_json};
use crate::error::Result;

/// What generation_config.json says; `None` where it says nothing.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GenerationConfig {
    /// Whether to draw tokens; else the most probable one is taken.
    pub do_sample: Option<bool>,
    /// Divides the logits.
    pub temperature: Option<f64>,
    /// Keep the `k` most probable tokens; 0 keeps all.
    pub top_k: Option<usize>,
    /// Keep the smallest set of tokens with this probability mass.
    pub top_p: Option<f64>,
    /// Drop tokens less probable than this share of the most probable one.
    pub min_p: Option<f64>,
    /// Penalty on tokens that the row already holds.
    pub repetition_penalty: Option<f64>,
    /// New tokens a row at most.
    pub max_new_tokens: Option<usize>,
    /// Tokens that end a row.
    pub eos: Option<Vec<i64>>,
    /// What finished rows are padded with.
    pub pad: Option<i64>,
}

impl GenerationConfig {
    /// Reads the file of a model directory; all `None` where there is none.
    pub fn from_directory(directory: &Path) -> Result<Self> {
        let path = directory.join("generation_config.json");
        if !path.is_file() {
            return Ok(Self::default());
        }
        let document = read_json(&path)?;
        let fields = Fields::root(&path, &document)?;
        let count = |name: &str| -> Result<Option<usize>> {
            fields
                .integer(name)?
                .map(|count| {
                    usize::try_from(count)
                        .map_err(|_| fields.error(name, format!("is {count}, below 0")))
                })
                .transpose()
        };
        Ok(Self {
            do_sample: fields.boolean("do_sample")?,
            temperature: fields.number("temperature")?,
            top_k: count("top_k")?,
            top_p: fields.number("top_p")?,
            min_p: fields.number("min_p")?,
            repetition_penalty: fields.number("repetition_penalty")?,
            max_new_tokens: count("max_new_tokens")?,
            eos: fields.token_ids("eos_token_id")?,
            pad: fields.integer("pad_token_id")?,
        })
    }

    /// Tokens that end a row: these go before config.json's.
    pub fn eos_of<'a>(&'a self, config: &'a ModelConfig) -> &'a [i64] {
        self.eos.as_deref().unwrap_or(&config.eos)
    }

    /// What finished rows are padded with: this, else config.json's, else the first end token.
    pub fn pad_of(&self, config: &ModelConfig) -> i64 {
        self.pad
            .or(config.pad)
            .or_else(|| self.eos_of(config).first().copied())
            .unwrap_or(0)
    }
}
