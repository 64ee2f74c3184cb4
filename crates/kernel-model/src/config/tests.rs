use serde_json::json;

use super::*;
use crate::rope::RopeKind;

fn base() -> Value {
    json!({
        "model_type": "llama", "vocab_size": 256, "hidden_size": 64, "intermediate_size": 128,
        "num_hidden_layers": 4, "num_attention_heads": 4
    })
}

fn with(changes: &Value) -> Result<ModelConfig> {
    let mut value = base();
    for (key, change) in changes.as_object().unwrap() {
        value[key] = change.clone();
    }
    ModelConfig::from_value(Path::new("dir/config.json"), value)
}

fn without(key: &str) -> Result<ModelConfig> {
    let mut value = base();
    value.as_object_mut().unwrap().remove(key);
    ModelConfig::from_value(Path::new("dir/config.json"), value)
}

fn refused(changes: &Value, words: &[&str]) {
    let error = with(changes).unwrap_err().to_string();
    for word in words.iter().chain(&["config.json"]) {
        assert!(error.contains(word), "`{error}` does not say `{word}`");
    }
}

#[test]
fn missing_sizes_are_named_with_their_file() {
    for field in [
        "model_type",
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
    ] {
        let error = without(field).unwrap_err().to_string();
        assert!(
            error.contains(field) && error.contains("dir/config.json"),
            "{error}"
        );
    }
}

#[test]
fn fields_of_the_wrong_type_or_range_are_named() {
    refused(&json!({"hidden_size": "64"}), &["hidden_size", "integer"]);
    refused(&json!({"hidden_size": 0}), &["hidden_size", "positive"]);
    refused(&json!({"hidden_size": 64.5}), &["hidden_size", "integer"]);
    refused(
        &json!({"num_hidden_layers": 1_000_000}),
        &["num_hidden_layers"],
    );
    refused(
        &json!({"rms_norm_eps": "small"}),
        &["rms_norm_eps", "number"],
    );
    refused(&json!({"rms_norm_eps": -1.0}), &["rms_norm_eps", "above 0"]);
    refused(
        &json!({"tie_word_embeddings": 1}),
        &["tie_word_embeddings", "true or false"],
    );
    refused(&json!({"eos_token_id": ["a"]}), &["eos_token_id"]);
    refused(&json!({"dtype": "int8"}), &["dtype", "int8"]);
    refused(&json!({"rope_scaling": []}), &["rope_scaling", "object"]);
    refused(&json!({"hidden_act": "swiglu"}), &["activation", "swiglu"]);
}

#[test]
fn contradictions_are_found() {
    refused(
        &json!({"num_key_value_heads": 3}),
        &["num_key_value_heads", "divide"],
    );
    refused(&json!({"hidden_size": 66}), &["hidden_size", "head_dim"]);
    refused(&json!({"head_dim": 15}), &["head_dim", "even"]);
    refused(
        &json!({"model_type": "qwen3", "num_key_value_heads": 2, "layer_types": ["full_attention"]}),
        &["layer_types", "num_hidden_layers"],
    );
}

#[test]
fn quantized_checkpoints_are_refused_by_the_name_of_their_method() {
    let error = with(&json!({"quantization_config": {"quant_method": "awq"}})).unwrap_err();
    assert!(error.to_string().contains("`awq`"), "{error}");
    assert!(error.hint().is_some());
    assert!(with(&json!({"quantization_config": null})).is_ok());
}

#[test]
fn unknown_families_and_rope_types_are_refused_by_name() {
    refused(&json!({"model_type": "mamba"}), &["mamba"]);
    for name in ["dynamic", "longrope"] {
        let error = with(&json!({"rope_scaling": {"type": name, "factor": 2.0}})).unwrap_err();
        assert!(error.to_string().contains(name), "{error}");
        assert!(error.hint().unwrap().contains(name));
    }
    refused(
        &json!({"rope_scaling": {"rope_type": "linear"}}),
        &["rope_scaling.factor", "linear"],
    );
}

#[test]
fn both_rope_spellings_give_the_same_values() {
    let scaling = json!({
        "rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192
    });
    let old = with(&json!({"rope_theta": 500_000.0, "rope_scaling": scaling})).unwrap();
    let mut parameters = scaling;
    parameters["rope_theta"] = json!(500_000.0);
    let new = with(&json!({"rope_parameters": parameters})).unwrap();
    assert_eq!(old.rope, new.rope);
    assert!(matches!(
        old.rope.kind,
        RopeKind::Llama3 {
            original_max_positions: 8192,
            ..
        }
    ));
}

#[test]
fn a_value_inside_the_rope_object_goes_before_one_at_the_top() {
    let config = with(&json!({
        "rope_theta": 5.0, "rope_parameters": {"rope_type": "default", "rope_theta": 7.0}
    }));
    assert!((config.unwrap().rope.theta - 7.0).abs() < 1e-12);
    // ... except for the length of the pretraining, which some files state at the top.
    let config = with(&json!({
        "original_max_position_embeddings": 64,
        "rope_parameters": {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 32}
    }));
    let RopeKind::Yarn(yarn) = config.unwrap().rope.kind else {
        panic!("not yarn")
    };
    assert_eq!(yarn.original_max_positions, 64);
}

#[test]
fn rope_parameters_nested_by_layer_type_load_where_they_agree() {
    let qwen = |full: f64, sliding: f64| {
        with(&json!({
            "model_type": "qwen3", "num_key_value_heads": 2, "use_sliding_window": true,
            "sliding_window": 8,
            "layer_types": ["full_attention", "sliding_attention", "full_attention", "full_attention"],
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": full},
                "sliding_attention": {"rope_type": "default", "rope_theta": sliding}
            }
        }))
    };
    assert!((qwen(9.0, 9.0).unwrap().rope.theta - 9.0).abs() < 1e-12);
    assert!(
        qwen(9.0, 8.0)
            .unwrap_err()
            .to_string()
            .contains("different per layer type")
    );
}

#[test]
fn mistral_windows_default_on_and_null_turns_them_off() {
    let windows = |changes: Value| with(&changes).unwrap().windows;
    let mistral = json!({"model_type": "mistral", "num_key_value_heads": 2});
    assert_eq!(windows(mistral.clone()), vec![Some(4096); 4]);
    let mut off = mistral.clone();
    off["sliding_window"] = Value::Null;
    assert_eq!(windows(off), vec![None; 4]);
    let mut stated = mistral;
    stated["sliding_window"] = json!(7);
    assert_eq!(windows(stated), vec![Some(7); 4]);
}

#[test]
fn qwen_windows_follow_their_switch_and_layer_types_win() {
    let windows = |changes: Value| {
        let mut all = json!({
            "model_type": "qwen3", "num_key_value_heads": 2, "sliding_window": 8,
            "max_window_layers": 2
        });
        for (key, change) in changes.as_object().unwrap() {
            all[key] = change.clone();
        }
        with(&all).unwrap().windows
    };
    assert_eq!(windows(json!({})), vec![None; 4]);
    assert_eq!(
        windows(json!({"use_sliding_window": true})),
        [None, None, Some(8), Some(8)]
    );
    let types = [
        "sliding_attention",
        "full_attention",
        "full_attention",
        "sliding_attention",
    ];
    assert_eq!(
        windows(json!({"use_sliding_window": true, "layer_types": types})),
        [Some(8), None, None, Some(8)]
    );
}

#[test]
fn class_defaults_are_those_of_the_family() {
    let qwen3 = with(&json!({"model_type": "qwen3", "num_attention_heads": 32})).unwrap();
    assert_eq!((qwen3.head_dim, qwen3.key_value_heads), (128, 32));
    let glm = with(&json!({"model_type": "glm4"})).unwrap();
    assert_eq!((glm.head_dim, glm.key_value_heads), (128, 2));
    assert!(glm.query_key_value_bias && !glm.output_bias && glm.family.post_norms);
    assert_eq!(glm.eos, [151_329, 151_336, 151_338]);
    assert_eq!(glm.rope.rotary_dim(128), 64);
    assert!((glm.norm_eps - 1.5625e-7).abs() < 1e-15);
    let llama = with(&json!({"attention_bias": true, "mlp_bias": true})).unwrap();
    assert!(llama.query_key_value_bias && llama.output_bias && llama.mlp_bias);
    assert_eq!((llama.head_dim, llama.key_value_heads), (16, 4));
    assert!(!llama.tied);
}

#[test]
fn dtype_has_two_keys_and_several_spellings() {
    assert_eq!(
        with(&json!({"dtype": "bfloat16"})).unwrap().dtype,
        Some(Dtype::BFloat16)
    );
    let old = with(&json!({"torch_dtype": "torch.float32"})).unwrap();
    assert_eq!(old.dtype, Some(Dtype::Float32));
    assert!(Dtype::by_name("int8").unwrap_err().hint().is_some());
}
