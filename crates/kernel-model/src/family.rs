//! What tells the model families apart, as data.
//!
//! All families share one skeleton ([`crate::layer`]); where they differ, they differ in the
//! values below. The values are those of the configuration classes in transformers 5.

/// How rotary embeddings pair the dimensions of a head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RotaryLayout {
    /// Dimension `i` goes with `i + R/2`, where `R` is the rotary width.
    Halves,
    /// Dimension `2i` goes with `2i + 1`.
    Interleaved,
}

/// Whether a group of projections has biases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bias {
    /// Always, and no config field says so.
    Always,
    /// Never, whatever the config says.
    Never,
    /// As the config field says; the default where it is absent.
    Field {
        /// Name of the field in config.json.
        name: &'static str,
        /// Value where the field is absent.
        default: bool,
    },
}

/// Which layers attend to a sliding window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlidingRule {
    /// None.
    Never,
    /// All, if `sliding_window` is a number; the window where the key is absent.
    AllLayers {
        /// Window where config.json lacks the key. `null` means none.
        default: i64,
    },
    /// Those of `layer_types`, else from `max_window_layers` on, and only with
    /// `use_sliding_window`.
    ByLayer {
        /// Window where config.json lacks the key.
        default_window: i64,
        /// First windowed layer where config.json lacks the key.
        default_first: i64,
    },
}

/// One model family: the differences from the common skeleton and the class defaults of
/// config.json fields.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Family {
    /// `model_type` of config.json.
    pub name: &'static str,
    /// RMSNorm over the head dimension of queries and keys, before rotary.
    pub query_key_norm: bool,
    /// Biases of the query, key and value projections.
    pub query_key_value_bias: Bias,
    /// Bias of the output projection.
    pub output_bias: Bias,
    /// Biases of the MLP.
    pub mlp_bias: Bias,
    /// `gate_up_proj` [2I, h] in the checkpoint, gate first, in place of two tensors.
    pub fused_gate_up: bool,
    /// Norms on the outputs of attention and MLP, before the residual is added.
    pub post_norms: bool,
    /// Pairing of the rotary dimensions.
    pub rotary_layout: RotaryLayout,
    /// Share of the head that is rotated, where config.json does not say.
    pub partial_rotary_factor: f64,
    /// Sliding windows.
    pub sliding: SlidingRule,
    /// `num_key_value_heads` where absent; `None` means as many as query heads.
    pub default_key_value_heads: Option<i64>,
    /// `head_dim` where absent; `None` means hidden size over query heads.
    pub default_head_dim: Option<i64>,
    /// `rms_norm_eps` where absent.
    pub default_norm_eps: f64,
    /// `max_position_embeddings` where absent.
    pub default_max_positions: i64,
    /// `eos_token_id` where absent.
    pub default_eos: &'static [i64],
    /// `pad_token_id` where absent.
    pub default_pad: Option<i64>,
}

const LLAMA: Family = Family {
    name: "llama",
    query_key_norm: false,
    query_key_value_bias: Bias::Field {
        name: "attention_bias",
        default: false,
    },
    output_bias: Bias::Field {
        name: "attention_bias",
        default: false,
    },
    mlp_bias: Bias::Field {
        name: "mlp_bias",
        default: false,
    },
    fused_gate_up: false,
    post_norms: false,
    rotary_layout: RotaryLayout::Halves,
    partial_rotary_factor: 1.0,
    sliding: SlidingRule::Never,
    default_key_value_heads: None,
    default_head_dim: None,
    default_norm_eps: 1e-6,
    default_max_positions: 2048,
    default_eos: &[2],
    default_pad: None,
};

const QWEN2: Family = Family {
    name: "qwen2",
    query_key_value_bias: Bias::Always,
    output_bias: Bias::Never,
    mlp_bias: Bias::Never,
    sliding: SlidingRule::ByLayer {
        default_window: 4096,
        default_first: 28,
    },
    default_key_value_heads: Some(32),
    default_max_positions: 32768,
    default_eos: &[],
    ..LLAMA
};

const QWEN3: Family = Family {
    name: "qwen3",
    query_key_norm: true,
    query_key_value_bias: Bias::Field {
        name: "attention_bias",
        default: false,
    },
    output_bias: Bias::Field {
        name: "attention_bias",
        default: false,
    },
    default_head_dim: Some(128),
    ..QWEN2
};

const MISTRAL: Family = Family {
    name: "mistral",
    query_key_value_bias: Bias::Never,
    output_bias: Bias::Never,
    mlp_bias: Bias::Never,
    sliding: SlidingRule::AllLayers { default: 4096 },
    default_key_value_heads: Some(8),
    default_max_positions: 131_072,
    ..LLAMA
};

const GLM: Family = Family {
    name: "glm",
    query_key_value_bias: Bias::Field {
        name: "attention_bias",
        default: true,
    },
    output_bias: Bias::Never,
    mlp_bias: Bias::Never,
    fused_gate_up: true,
    rotary_layout: RotaryLayout::Interleaved,
    partial_rotary_factor: 0.5,
    default_key_value_heads: Some(2),
    default_head_dim: Some(128),
    default_norm_eps: 1.5625e-7,
    default_max_positions: 131_072,
    default_eos: &[151_329, 151_336, 151_338],
    default_pad: Some(151_329),
    ..LLAMA
};

const GLM4: Family = Family {
    name: "glm4",
    post_norms: true,
    ..GLM
};

/// All families that run.
pub const FAMILIES: &[Family] = &[LLAMA, QWEN2, QWEN3, MISTRAL, GLM, GLM4];

impl Family {
    /// The family of a `model_type`.
    pub fn by_name(name: &str) -> Option<&'static Self> {
        FAMILIES.iter().find(|family| family.name == name)
    }
}
