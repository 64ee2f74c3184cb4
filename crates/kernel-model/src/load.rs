//! From a model directory to a [`Model`].

use std::path::Path;
use std::sync::Arc;

use tch::Tensor;

use crate::config::{Dtype, ModelConfig};
use crate::error::{ModelError, Result};
use crate::layer::{AttentionSite, DecoderLayer, MlpSite, NormSite, QueryKeyNorms};
use crate::model::{Model, Parts};
use crate::ops::{
    AttentionParameters, DefaultMlp, DefaultNorm, DefaultRotary, Linear, MlpWeights, SdpaDecode,
    SdpaPrefill,
};
use crate::parallel::{Embedding, Group, Layout};
use crate::placement::{Device, Host, Transfer};
use crate::weights::Weights;

const EMBEDDING: &str = "model.embed_tokens.weight";
const FINAL_NORM: &str = "model.norm.weight";
pub(crate) const HEAD: &str = "lm_head.weight";

/// How a model is loaded.
#[derive(Debug, Clone)]
pub struct LoadOptions {
    /// Dtype of weights and activations; `None` takes the config's, else that of the weights.
    pub dtype: Option<Dtype>,
    /// Where it runs.
    pub device: Device,
    /// How tensors get there; not needed for the CPU.
    pub transfer: Option<Arc<dyn Transfer>>,
    /// The ranks that the model is spread over; `None` for one process.
    pub group: Option<Group>,
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self {
            dtype: None,
            device: Device::Cpu,
            transfer: None,
            group: None,
        }
    }
}

impl Model {
    /// Loads `config.json` and the safetensors of a directory.
    pub fn load(directory: &Path, options: &LoadOptions) -> Result<Self> {
        let config = ModelConfig::from_directory(directory)?;
        Self::load_with_config(directory, config, options)
    }

    /// Loads the safetensors of a directory for a config from elsewhere.
    pub fn load_with_config(
        directory: &Path,
        config: ModelConfig,
        options: &LoadOptions,
    ) -> Result<Self> {
        if options.device == Device::Tpu && options.transfer.is_none() {
            return Err(ModelError::Device {
                device: options.device.to_string(),
                problem: "nothing was given that moves tensors there".to_owned(),
                hint: "set `LoadOptions::transfer`, or use `cpu`".to_owned(),
            });
        }
        let transfer: Arc<dyn Transfer> =
            options.transfer.clone().unwrap_or_else(|| Arc::new(Host));
        let weights = Weights::open(directory)?;
        let dtype = options
            .dtype
            .or(config.dtype)
            .or_else(|| weights.stored_dtype(EMBEDDING))
            .unwrap_or(Dtype::Float32);
        let rank = options.group.as_ref().map_or(0, Group::rank);
        let layout = match &options.group {
            Some(group) => group.layout.clone(),
            None => Layout::single(&config),
        };
        let mut loader = Loader {
            config: &config,
            layout: &layout,
            group: options.group.as_ref(),
            rank,
            weights,
            transfer: &*transfer,
        };
        loader.weights.set_dtype(dtype);
        loader.weights.check(&expected_tensors(&config))?;

        let mut warnings = Vec::new();
        let table = loader.tensor(EMBEDDING)?;
        let head = loader.head(&table, &mut warnings)?;
        let embedding = match &options.group {
            Some(group) => Embedding::of_rank(
                table,
                layout.share(rank).embedding,
                group.sum(layout.embedding()),
            ),
            None => Embedding::whole(table),
        };
        let layers = (0..config.layers)
            .map(|n| loader.layer(n))
            .collect::<Result<Vec<_>>>()?;
        let norm = loader.norm(FINAL_NORM)?;
        let extra = loader.weights.untaken();
        if !extra.is_empty() {
            let shown = extra
                .iter()
                .take(3)
                .map(|name| format!("`{name}`"))
                .collect::<Vec<_>>();
            warnings.push(format!(
                "{} tensors of the weight files are not part of the model: {}{}",
                extra.len(),
                shown.join(", "),
                if extra.len() > shown.len() {
                    ", ..."
                } else {
                    ""
                }
            ));
        }
        for warning in &warnings {
            tracing::warn!("{warning}");
        }
        Model::new(Parts {
            directory: directory.to_owned(),
            dtype,
            device: options.device,
            transfer: Arc::clone(&transfer),
            embedding,
            layers,
            norm,
            head,
            warnings,
            group: options.group.clone(),
            bytes_read: loader.weights.bytes_taken(),
            local_config: layout.local_config(&config, rank),
            config,
        })
    }
}

/// Names and shapes of all tensors that a config implies; the head of tied models is optional
/// and not among them.
pub(crate) fn expected_tensors(config: &ModelConfig) -> Vec<(String, Vec<i64>)> {
    let c = config;
    let (hidden, inner) = (c.hidden_size, c.intermediate_size);
    let (queries, keys) = (c.heads * c.head_dim, c.key_value_heads * c.head_dim);
    let mut all = vec![(EMBEDDING.to_owned(), vec![c.vocab_size, hidden])];
    let mut linear = |name: String, output: i64, input: i64, bias: bool| {
        if bias {
            all.push((format!("{name}.bias"), vec![output]));
        }
        all.push((format!("{name}.weight"), vec![output, input]));
    };
    for n in 0..c.layers {
        let attention = format!("model.layers.{n}.self_attn");
        linear(
            format!("{attention}.q_proj"),
            queries,
            hidden,
            c.query_key_value_bias,
        );
        linear(
            format!("{attention}.k_proj"),
            keys,
            hidden,
            c.query_key_value_bias,
        );
        linear(
            format!("{attention}.v_proj"),
            keys,
            hidden,
            c.query_key_value_bias,
        );
        linear(
            format!("{attention}.o_proj"),
            hidden,
            queries,
            c.output_bias,
        );
        let mlp = format!("model.layers.{n}.mlp");
        if c.family.fused_gate_up {
            linear(format!("{mlp}.gate_up_proj"), 2 * inner, hidden, c.mlp_bias);
        } else {
            linear(format!("{mlp}.gate_proj"), inner, hidden, c.mlp_bias);
            linear(format!("{mlp}.up_proj"), inner, hidden, c.mlp_bias);
        }
        linear(format!("{mlp}.down_proj"), hidden, inner, c.mlp_bias);
    }
    for n in 0..c.layers {
        let layer = format!("model.layers.{n}");
        let mut norm =
            |name: &str, width| all.push((format!("{layer}.{name}.weight"), vec![width]));
        norm("input_layernorm", hidden);
        norm("post_attention_layernorm", hidden);
        if c.family.query_key_norm {
            norm("self_attn.q_norm", c.head_dim);
            norm("self_attn.k_norm", c.head_dim);
        }
        if c.family.post_norms {
            norm("post_self_attn_layernorm", hidden);
            norm("post_mlp_layernorm", hidden);
        }
    }
    all.push((FINAL_NORM.to_owned(), vec![hidden]));
    if !c.tied {
        all.push((HEAD.to_owned(), vec![c.vocab_size, hidden]));
    }
    all
}

struct Loader<'a> {
    config: &'a ModelConfig,
    layout: &'a Layout,
    group: Option<&'a Group>,
    rank: usize,
    weights: Weights,
    transfer: &'a dyn Transfer,
}

impl Loader<'_> {
    fn tensor(&mut self, name: &str) -> Result<Tensor> {
        let tensor = self.part(name)?;
        self.transfer.to_device(tensor)
    }

    /// What this rank holds of a tensor, on the host.
    fn part(&mut self, name: &str) -> Result<Tensor> {
        let shard = self.layout.shard(self.config, name, self.rank);
        self.weights.take_shard(name, &shard)
    }

    /// Whether something is true on any rank.
    fn on_any_rank(&self, truth: bool) -> Result<bool> {
        let Some(group) = self.group else {
            return Ok(truth);
        };
        let mut count = Tensor::f_from_slice(&[i32::from(truth)])?;
        group.collectives.sum(&mut count)?;
        Ok(count.f_int64_value(&[0])? > 0)
    }

    fn linear(&mut self, name: &str, bias: bool) -> Result<Linear> {
        let weight = self.tensor(&format!("{name}.weight"))?;
        let bias = if bias {
            Some(self.tensor(&format!("{name}.bias"))?)
        } else {
            None
        };
        Ok(Linear { weight, bias })
    }

    fn norm(&mut self, name: &str) -> Result<NormSite> {
        Ok(NormSite {
            weight: self.tensor(name)?,
            eps: self.config.norm_eps,
            op: Arc::new(DefaultNorm),
        })
    }

    /// The head: stored, or the embedding. A tied checkpoint that stores a head too is believed
    /// about tying only where the two are equal.
    fn head(&mut self, embedding: &Tensor, warnings: &mut Vec<String>) -> Result<Linear> {
        let weight = if !self.config.tied {
            self.tensor(HEAD)?
        } else if self.weights.contains(HEAD) {
            let shape = [self.config.vocab_size, self.config.hidden_size];
            self.weights.check(&[(HEAD.to_owned(), shape.to_vec())])?;
            let stored = self.part(HEAD)?;
            let tied = self.part(EMBEDDING)?;
            let differs = !stored.f_equal(&tied)?;
            if self.on_any_rank(differs)? {
                warnings.push(format!(
                    "`tie_word_embeddings` is true, but `{HEAD}` differs from `{EMBEDDING}`; \
                     both are used as stored"
                ));
                self.transfer.to_device(stored)?
            } else {
                embedding.f_detach()?
            }
        } else {
            embedding.f_detach()?
        };
        Ok(Linear { weight, bias: None })
    }

    fn mlp(&mut self, name: &str) -> Result<MlpWeights> {
        let config = self.config;
        let (gate, up) = if config.family.fused_gate_up {
            let fused = self.linear(&format!("{name}.gate_up_proj"), config.mlp_bias)?;
            (half(&fused, 0)?, half(&fused, 1)?)
        } else {
            (
                self.linear(&format!("{name}.gate_proj"), config.mlp_bias)?,
                self.linear(&format!("{name}.up_proj"), config.mlp_bias)?,
            )
        };
        let down = self.linear(&format!("{name}.down_proj"), config.mlp_bias)?;
        Ok(MlpWeights {
            gate,
            up,
            down,
            activation: config.activation,
        })
    }

    fn layer(&mut self, n: i64) -> Result<DecoderLayer> {
        let config = self.config;
        let layer = format!("model.layers.{n}");
        let attention = format!("{layer}.self_attn");
        let norms = if config.family.query_key_norm {
            Some(QueryKeyNorms {
                query: self.norm(&format!("{attention}.q_norm.weight"))?,
                key: self.norm(&format!("{attention}.k_norm.weight"))?,
            })
        } else {
            None
        };
        let post_norm = |loader: &mut Self, name: &str| -> Result<Option<NormSite>> {
            if !config.family.post_norms {
                return Ok(None);
            }
            loader.norm(&format!("{layer}.{name}.weight")).map(Some)
        };
        let window = usize::try_from(n)
            .ok()
            .and_then(|n| config.windows.get(n).copied());
        Ok(DecoderLayer {
            input_norm: self.norm(&format!("{layer}.input_layernorm.weight"))?,
            attention: AttentionSite {
                query: self.linear(&format!("{attention}.q_proj"), config.query_key_value_bias)?,
                key: self.linear(&format!("{attention}.k_proj"), config.query_key_value_bias)?,
                value: self.linear(&format!("{attention}.v_proj"), config.query_key_value_bias)?,
                output: self.linear(&format!("{attention}.o_proj"), config.output_bias)?,
                norms,
                parameters: AttentionParameters {
                    scale: config.attention_scale(),
                    causal: true,
                    window: window.flatten(),
                },
                head_dim: config.head_dim,
                prefill: Arc::new(SdpaPrefill),
                decode: Arc::new(SdpaDecode),
                rotary: Arc::new(DefaultRotary {
                    layout: config.rotary_layout(),
                }),
                sum: self
                    .group
                    .and_then(|group| group.sum(self.layout.attention())),
            },
            attention_output_norm: post_norm(self, "post_self_attn_layernorm")?,
            mlp_norm: self.norm(&format!("{layer}.post_attention_layernorm.weight"))?,
            mlp: MlpSite {
                weights: self.mlp(&format!("{layer}.mlp"))?,
                op: Arc::new(DefaultMlp),
                sum: self.group.and_then(|group| group.sum(self.layout.mlp())),
            },
            mlp_output_norm: post_norm(self, "post_mlp_layernorm")?,
        })
    }
}

/// Half of the rows of a fused projection, without a copy.
fn half(fused: &Linear, index: i64) -> Result<Linear> {
    let part = |tensor: &Tensor| -> Result<Tensor> {
        let rows = tensor
            .size()
            .first()
            .copied()
            .ok_or_else(|| ModelError::Op {
                op: "mlp".to_owned(),
                problem: "a fused projection without dimensions".to_owned(),
            })?
            / 2;
        Ok(tensor.f_narrow(0, index * rows, rows)?)
    };
    Ok(Linear {
        weight: part(&fused.weight)?,
        bias: fused.bias.as_ref().map(part).transpose()?,
    })
}
