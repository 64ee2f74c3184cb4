//! The plan of a model: which style each module has, by default and as a user overrides it.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::Style;
use crate::config::ModelConfig;
use crate::error::{ModelError, Result};

pub(super) const EMBEDDING: &str = "model.embed_tokens";
pub(super) const HEAD: &str = "lm_head";
const LAYERS: &str = "model.layers.*.";
const BASE: &str = "model.";

/// Style of each module, by the module's name with `*` for the number of a layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rules(BTreeMap<String, Style>);

impl Rules {
    /// What a model's family does by default: heads and the MLP's inner width are spread, and the
    /// vocabulary; norms are not.
    ///
    /// Where transformers gathers the outputs of GLM's fused projection, which its even split of
    /// two packed halves makes necessary, here the halves are split each for itself.
    pub fn defaults(config: &ModelConfig) -> Self {
        let mut rules = BTreeMap::new();
        let mut rule = |name: &str, style| rules.insert(name.to_owned(), style);
        rule(EMBEDDING, Style::EmbeddingRowwise);
        rule(HEAD, Style::ColwiseGatherOutput);
        for (module, style) in layer_modules(config) {
            rule(&format!("{LAYERS}{module}"), style);
        }
        rule("model.norm", Style::Replicate);
        Self(rules)
    }

    /// The defaults with a plan of the user's over them: a JSON object of module names and styles,
    /// the names with or without `model.` at their front.
    ///
    /// # Errors
    /// [`ModelError::Parallel`] for a name that is no module of the model and for a style that is none,
    /// both by name, and for a plan without rules.
    pub fn with_overrides(config: &ModelConfig, overrides: &Map<String, Value>) -> Result<Self> {
        let mut rules = Self::defaults(config);
        if overrides.is_empty() {
            return Err(ModelError::Parallel {
                problem: "the plan has no rules, so that each rank would hold the whole model"
                    .to_owned(),
                hint: Some("leave the plan out for the model's own, or use one rank".to_owned()),
            });
        }
        for (key, value) in overrides {
            let name = rules.resolve(key)?;
            let Some(text) = value.as_str() else {
                return Err(ModelError::Parallel {
                    problem: format!("the style of `{key}` in the plan is {value}, not a string"),
                    hint: None,
                });
            };
            let style = Style::by_name(text).map_err(|reason| ModelError::Parallel {
                problem: format!("style `{text}` of `{key}` in the plan {reason}"),
                hint: None,
            })?;
            rules.0.insert(name, style);
        }
        Ok(rules)
    }

    /// The module that a key of a plan names.
    fn resolve(&self, key: &str) -> Result<String> {
        let candidates = [key.to_owned(), format!("{BASE}{key}")];
        if let Some(name) = candidates
            .into_iter()
            .find(|name| self.0.contains_key(name))
        {
            return Ok(name);
        }
        let numbered = key.split('.').any(|part| part.parse::<u32>().is_ok());
        let hint = if numbered {
            "a rule holds for all layers; write `*` for the layer's number".to_owned()
        } else {
            let last = key.rsplit('.').next().unwrap_or(key);
            let of_model = self.0.keys().map(String::as_str);
            let same = of_model
                .clone()
                .find(|name| name.rsplit('.').next() == Some(last));
            match same {
                Some(name) => format!("did you mean `{name}`?"),
                None => format!(
                    "the model's modules: {}",
                    of_model.collect::<Vec<_>>().join(", ")
                ),
            }
        };
        Err(ModelError::Parallel {
            problem: format!("`{key}` in the plan names no module of this model"),
            hint: Some(hint),
        })
    }

    /// The style of a module.
    pub fn style(&self, module: &str) -> Style {
        self.0.get(module).copied().unwrap_or(Style::Replicate)
    }

    /// The style of a module of every layer, such as `self_attn.q_proj`.
    pub(super) fn layer_style(&self, module: &str) -> Style {
        self.style(&format!("{LAYERS}{module}"))
    }

    /// All modules and their styles.
    pub fn iter(&self) -> impl Iterator<Item = (&str, Style)> {
        self.0.iter().map(|(name, style)| (name.as_str(), *style))
    }
}

/// The modules of a layer with their default styles.
fn layer_modules(config: &ModelConfig) -> Vec<(&'static str, Style)> {
    let family = config.family;
    let mut all = vec![
        ("self_attn.q_proj", Style::Colwise),
        ("self_attn.k_proj", Style::Colwise),
        ("self_attn.v_proj", Style::Colwise),
        ("self_attn.o_proj", Style::Rowwise),
        ("mlp.down_proj", Style::Rowwise),
        ("input_layernorm", Style::Replicate),
        ("post_attention_layernorm", Style::Replicate),
    ];
    if family.query_key_norm {
        all.push(("self_attn.q_norm", Style::ReplicatedWithGradAllreduce));
        all.push(("self_attn.k_norm", Style::ReplicatedWithGradAllreduce));
    }
    if family.fused_gate_up {
        all.push(("mlp.gate_up_proj", Style::PackedColwise));
    } else {
        all.push(("mlp.gate_proj", Style::Colwise));
        all.push(("mlp.up_proj", Style::Colwise));
    }
    if family.post_norms {
        all.push(("post_self_attn_layernorm", Style::Replicate));
        all.push(("post_mlp_layernorm", Style::Replicate));
    }
    all
}
