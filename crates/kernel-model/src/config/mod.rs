//! config.json as the values a model is built from.
//!
//! Both spellings of transformers 4 and 5 load. An absent field takes the default of the
//! family's configuration class; sizes without a sensible default have to be stated. Whatever is
//! wrong is reported with file and field before a weight is read.

pub(crate) mod fields;
mod rope;

use std::path::{Path, PathBuf};

use serde_json::Value;
use tch::Kind;

use self::fields::{Fields, read_json};
use crate::error::{ModelError, Result};
use crate::family::{Bias, FAMILIES, Family, RotaryLayout, SlidingRule};
use crate::ops::Activation;
use crate::rope::RopeConfig;

/// A floating-point type that models run in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Dtype {
    /// 32 bits.
    Float32,
    /// 16 bits with the exponent range of f32.
    BFloat16,
    /// IEEE half precision.
    Float16,
}

impl Dtype {
    /// Reads the spellings of config files and of the command line: `float32`, `torch.bfloat16`,
    /// `bf16` and the like.
    pub fn by_name(name: &str) -> Result<Self> {
        match name.strip_prefix("torch.").unwrap_or(name) {
            "float32" | "f32" | "float" => Ok(Self::Float32),
            "bfloat16" | "bf16" => Ok(Self::BFloat16),
            "float16" | "f16" | "half" => Ok(Self::Float16),
            _ => Err(ModelError::Dtype(name.to_owned())),
        }
    }

    /// The name that config files use.
    pub fn name(self) -> &'static str {
        match self {
            Self::Float32 => "float32",
            Self::BFloat16 => "bfloat16",
            Self::Float16 => "float16",
        }
    }

    /// libtorch's name for it.
    pub fn kind(self) -> Kind {
        match self {
            Self::Float32 => Kind::Float,
            Self::BFloat16 => Kind::BFloat16,
            Self::Float16 => Kind::Half,
        }
    }

    /// Bytes of one value.
    pub fn bytes(self) -> u64 {
        match self {
            Self::Float32 => 4,
            Self::BFloat16 | Self::Float16 => 2,
        }
    }
}

/// What config.json says of a model, checked.
#[derive(Debug, Clone)]
#[expect(clippy::struct_excessive_bools, reason = "they are fields of a file")]
pub struct ModelConfig {
    /// The file.
    pub path: PathBuf,
    /// The family named by `model_type`.
    pub family: &'static Family,
    /// Rows of the embedding.
    pub vocab_size: i64,
    /// Width of the residual stream.
    pub hidden_size: i64,
    /// Width of the MLP.
    pub intermediate_size: i64,
    /// Number of decoder layers.
    pub layers: i64,
    /// Query heads.
    pub heads: i64,
    /// Key/value heads; divides `heads`.
    pub key_value_heads: i64,
    /// Width of a head.
    pub head_dim: i64,
    /// Activation of the MLP's gate.
    pub activation: Activation,
    /// Added to the mean square in RMSNorm.
    pub norm_eps: f64,
    /// Longest sequence in tokens.
    pub max_positions: i64,
    /// Whether the embedding serves as head.
    pub tied: bool,
    /// Biases on query, key and value projections.
    pub query_key_value_bias: bool,
    /// Bias on the output projection.
    pub output_bias: bool,
    /// Biases in the MLP.
    pub mlp_bias: bool,
    /// Rotary embeddings.
    pub rope: RopeConfig,
    /// Sliding window of each layer in tokens, the current one included; `None` attends to all.
    pub windows: Vec<Option<i64>>,
    /// Beginning-of-sequence token.
    pub bos: Option<i64>,
    /// End-of-sequence tokens; any of them ends a row.
    pub eos: Vec<i64>,
    /// Padding token.
    pub pad: Option<i64>,
    /// `dtype` or `torch_dtype`, where stated.
    pub dtype: Option<Dtype>,
    /// The whole document, for what other crates read from it, such as `kernel_config`.
    pub raw: Value,
}

impl ModelConfig {
    /// Reads `config.json` of a model directory.
    pub fn from_directory(directory: &Path) -> Result<Self> {
        let path = directory.join("config.json");
        if !path.is_file() {
            return Err(ModelError::MissingFile {
                directory: directory.to_owned(),
                file: "config.json".to_owned(),
            });
        }
        Self::from_file(&path)
    }

    /// Reads a configuration file of any name.
    pub fn from_file(path: &Path) -> Result<Self> {
        Self::from_value(path, read_json(path)?)
    }

    /// Reads a parsed document; `path` is where errors say it comes from.
    pub fn from_value(path: &Path, raw: Value) -> Result<Self> {
        let fields = Fields::root(path, &raw)?;
        refuse_quantized(&fields)?;
        let family = read_family(&fields)?;

        let layers = fields.required_size("num_hidden_layers")?;
        // Keeps a damaged file from asking for gigabytes of layer records.
        if layers > 4096 {
            return Err(fields.error("num_hidden_layers", format!("is {layers}, beyond 4096")));
        }
        let hidden_size = fields.required_size("hidden_size")?;
        let heads = fields.required_size("num_attention_heads")?;
        let key_value_heads = read_key_value_heads(&fields, family, heads)?;
        let head_dim = read_head_dim(&fields, family, hidden_size, heads)?;
        let max_positions = fields
            .size("max_position_embeddings")?
            .unwrap_or(family.default_max_positions);

        let layer_types = fields.strings("layer_types")?;
        let windows = read_windows(&fields, family, layers, layer_types.as_deref())?;
        let kinds: Vec<&str> = windows
            .iter()
            .map(|window| {
                if window.is_some() {
                    "sliding_attention"
                } else {
                    "full_attention"
                }
            })
            .collect();
        let rope = rope::read(&fields, family, max_positions, &kinds)?;
        let rotary_dim = rope.rotary_dim(head_dim);
        if rotary_dim < 2 || rotary_dim % 2 != 0 {
            return Err(fields.error(
                "head_dim",
                format!("gives a rotary width of {rotary_dim}, which must be even and above 0"),
            ));
        }

        let mut config = Self {
            family,
            vocab_size: fields.required_size("vocab_size")?,
            hidden_size,
            intermediate_size: fields.required_size("intermediate_size")?,
            layers,
            heads,
            key_value_heads,
            head_dim,
            activation: read_activation(&fields)?,
            norm_eps: fields
                .positive("rms_norm_eps")?
                .unwrap_or(family.default_norm_eps),
            max_positions,
            tied: fields.boolean("tie_word_embeddings")?.unwrap_or(false),
            query_key_value_bias: read_bias(&fields, family.query_key_value_bias)?,
            output_bias: read_bias(&fields, family.output_bias)?,
            mlp_bias: read_bias(&fields, family.mlp_bias)?,
            rope,
            windows,
            bos: fields.integer("bos_token_id")?,
            eos: read_eos(&fields, family)?,
            pad: fields.integer("pad_token_id")?.or(family.default_pad),
            dtype: read_dtype(&fields)?,
            path: path.to_owned(),
            raw: Value::Null,
        };
        config.raw = raw;
        Ok(config)
    }

    /// Query heads that share one key/value head.
    pub fn group_size(&self) -> i64 {
        self.heads / self.key_value_heads
    }

    /// Factor on attention scores.
    pub fn attention_scale(&self) -> f64 {
        (self.head_dim as f64).powf(-0.5)
    }

    /// How the family pairs rotary dimensions.
    pub fn rotary_layout(&self) -> RotaryLayout {
        self.family.rotary_layout
    }
}

fn refuse_quantized(fields: &Fields<'_>) -> Result<()> {
    for name in ["quantization_config", "compression_config"] {
        if let Some(object) = fields.object(name)? {
            let method = object
                .string("quant_method")?
                .unwrap_or("an unnamed method");
            return Err(ModelError::Quantized {
                path: fields.path(),
                method: method.to_owned(),
            });
        }
    }
    Ok(())
}

fn read_family(fields: &Fields<'_>) -> Result<&'static Family> {
    let Some(name) = fields.string("model_type")? else {
        return Err(fields.error("model_type", "is missing"));
    };
    Family::by_name(name).ok_or_else(|| {
        let known: Vec<_> = FAMILIES
            .iter()
            .map(|family| format!("`{}`", family.name))
            .collect();
        ModelError::Unsupported {
            path: fields.path(),
            what: "model type",
            name: name.to_owned(),
            hint: format!("these run: {}", known.join(", ")),
        }
    })
}

fn read_key_value_heads(fields: &Fields<'_>, family: &Family, heads: i64) -> Result<i64> {
    let name = "num_key_value_heads";
    let key_value_heads = match (fields.get(name), fields.size(name)?) {
        (_, Some(stated)) => stated,
        (None, None) => family.default_key_value_heads.unwrap_or(heads),
        (Some(_), None) => heads,
    };
    if heads % key_value_heads != 0 {
        return Err(fields.error(
            name,
            format!("is {key_value_heads}, which does not divide num_attention_heads, {heads}"),
        ));
    }
    Ok(key_value_heads)
}

fn read_head_dim(
    fields: &Fields<'_>,
    family: &Family,
    hidden_size: i64,
    heads: i64,
) -> Result<i64> {
    if let Some(stated) = fields.size("head_dim")? {
        return Ok(stated);
    }
    if fields.get("head_dim").is_none()
        && let Some(default) = family.default_head_dim
    {
        return Ok(default);
    }
    if hidden_size % heads != 0 {
        return Err(fields.error(
            "hidden_size",
            format!(
                "is {hidden_size}, not a multiple of num_attention_heads, {heads}, and head_dim \
                 is not stated"
            ),
        ));
    }
    Ok(hidden_size / heads)
}

fn read_windows(
    fields: &Fields<'_>,
    family: &Family,
    layers: i64,
    layer_types: Option<&[&str]>,
) -> Result<Vec<Option<i64>>> {
    let count = usize::try_from(layers).unwrap_or(0);
    let window_or = |default: i64| -> Result<Option<i64>> {
        let name = "sliding_window";
        Ok(if fields.get(name).is_some() {
            fields.size(name)?
        } else {
            Some(default)
        })
    };
    match family.sliding {
        SlidingRule::Never => Ok(vec![None; count]),
        SlidingRule::AllLayers { default } => Ok(vec![window_or(default)?; count]),
        SlidingRule::ByLayer {
            default_window,
            default_first,
        } => {
            let used = fields.boolean("use_sliding_window")?.unwrap_or(false);
            let window = if used {
                window_or(default_window)?
            } else {
                None
            };
            if let Some(types) = layer_types {
                return windows_of_types(fields, types, count, window);
            }
            let first = fields
                .integer("max_window_layers")?
                .unwrap_or(default_first);
            Ok((0..layers)
                .map(|layer| window.filter(|_| layer >= first))
                .collect())
        }
    }
}

fn windows_of_types(
    fields: &Fields<'_>,
    types: &[&str],
    layers: usize,
    window: Option<i64>,
) -> Result<Vec<Option<i64>>> {
    let name = "layer_types";
    if types.len() != layers {
        return Err(fields.error(
            name,
            format!(
                "has {} entries, but num_hidden_layers is {layers}",
                types.len()
            ),
        ));
    }
    types
        .iter()
        .map(|layer_type| match (*layer_type, window) {
            ("full_attention", _) => Ok(None),
            ("sliding_attention", Some(window)) => Ok(Some(window)),
            ("sliding_attention", None) => Err(fields.error(
                name,
                "names `sliding_attention`, but sliding_window is off or null",
            )),
            (other, _) => Err(fields.error(
                name,
                format!("names `{other}`; `full_attention` and `sliding_attention` run"),
            )),
        })
        .collect()
}

fn read_activation(fields: &Fields<'_>) -> Result<Activation> {
    let name = fields.string("hidden_act")?.unwrap_or("silu");
    Activation::by_name(name).ok_or_else(|| ModelError::Unsupported {
        path: fields.path(),
        what: "activation",
        name: name.to_owned(),
        hint: "`silu`, `gelu`, `gelu_pytorch_tanh` and `relu` run".to_owned(),
    })
}

fn read_bias(fields: &Fields<'_>, bias: Bias) -> Result<bool> {
    match bias {
        Bias::Always => Ok(true),
        Bias::Never => Ok(false),
        Bias::Field { name, default } => Ok(fields.boolean(name)?.unwrap_or(default)),
    }
}

fn read_eos(fields: &Fields<'_>, family: &Family) -> Result<Vec<i64>> {
    if let Some(ids) = fields.token_ids("eos_token_id")? {
        return Ok(ids);
    }
    // An explicit null turns the token off, except in the GLM classes, which replace it.
    let replaced = family.default_eos.len() > 1;
    let absent = fields.get("eos_token_id").is_none();
    Ok(if absent || replaced {
        family.default_eos.to_vec()
    } else {
        Vec::new()
    })
}

fn read_dtype(fields: &Fields<'_>) -> Result<Option<Dtype>> {
    for name in ["dtype", "torch_dtype"] {
        if let Some(text) = fields.string(name)? {
            let dtype = Dtype::by_name(text).map_err(|_| {
                fields.error(name, format!("is `{text}`, which models do not run in"))
            })?;
            return Ok(Some(dtype));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests;
