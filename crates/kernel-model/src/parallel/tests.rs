//! Rules on plans, layouts and shards; nothing here needs a tensor or another process.

use std::path::Path;

use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::*;
use crate::config::ModelConfig;
use crate::load::expected_tensors;

fn config(changes: Value) -> ModelConfig {
    let mut config = json!({
        "model_type": "llama",
        "vocab_size": 256,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 16
    });
    if let (Value::Object(config), Value::Object(changes)) = (&mut config, changes) {
        config.extend(changes);
    }
    ModelConfig::from_value(Path::new("config.json"), config).unwrap()
}

fn glm4() -> ModelConfig {
    config(json!({ "model_type": "glm4" }))
}

fn plan(entries: Value) -> Map<String, Value> {
    match entries {
        Value::Object(map) => map,
        _ => unreachable!("an object"),
    }
}

fn layout(config: &ModelConfig, ranks: usize, entries: Value) -> Result<Layout> {
    let rules = Rules::with_overrides(config, &plan(entries))?;
    Layout::new(config, ranks, &rules)
}

fn default_layout(config: &ModelConfig, ranks: usize) -> Layout {
    Layout::new(config, ranks, &Rules::defaults(config)).unwrap()
}

#[test]
fn heads_width_and_vocabulary_are_spread_by_default() {
    let config = config(json!({}));
    let layout = default_layout(&config, 2);
    assert!(layout.notes().is_empty(), "{:?}", layout.notes());
    // 2L + 1; the exchange of candidates comes to them.
    assert_eq!(layout.sums_per_step(config.layers), 5);
    let share = layout.share(1);
    assert_eq!((share.heads, share.key_value_heads), (4..8, 1..2));
    assert_eq!((share.inner.range, share.head.range), (48..96, 128..256));
}

#[test]
fn the_override_of_the_guide_works_in_both_spellings() {
    let config = glm4();
    let entries = |prefix: &str| {
        let style = "replicated_with_grad_allreduce";
        let modules = ["q_proj", "k_proj", "v_proj", "o_proj"];
        let pairs = modules.map(|m| (format!("{prefix}layers.*.self_attn.{m}"), json!(style)));
        Value::Object(pairs.into_iter().collect())
    };
    let bare = layout(&config, 4, entries("")).unwrap();
    let prefixed = layout(&config, 4, entries("model.")).unwrap();
    assert_eq!(bare, prefixed);
    assert_eq!(bare.attention(), Spread::Replicated);
    // What is not overridden keeps its default.
    assert_eq!(
        (bare.mlp(), bare.embedding()),
        (Spread::Sharded, Spread::Sharded)
    );
}

#[test]
fn keys_and_styles_that_mean_nothing_are_refused_by_name() {
    let config = config(json!({}));
    for (entries, word) in [
        (
            json!({"layers.*.self_attn.qkv_proj": "colwise"}),
            "`layers.*.self_attn.qkv_proj`",
        ),
        (
            json!({"model.layers.0.self_attn.q_proj": "colwise"}),
            "`model.layers.0.self_attn.q_proj`",
        ),
        (json!({"lm_head": "column"}), "`column`"),
        (json!({"lm_head": "local_colwise"}), "`local_colwise`"),
        (
            json!({"model.norm": "sequence_parallel"}),
            "`sequence_parallel`",
        ),
        (json!({"model.norm": "colwise"}), "`colwise`"),
        (json!({"lm_head": 3}), "`lm_head`"),
        (
            json!({"layers.*.mlp.down_proj": "embedding_rowwise"}),
            "`embedding_rowwise`",
        ),
        (json!({}), "no rules"),
    ] {
        let error = layout(&config, 2, entries.clone()).unwrap_err();
        assert!(error.to_string().contains(word), "{entries}: {error}");
    }
    let error = layout(&config, 2, json!({"layers.*.q_proj": "colwise"})).unwrap_err();
    assert!(
        error
            .hint()
            .unwrap()
            .contains("model.layers.*.self_attn.q_proj")
    );
}

#[test]
fn a_block_whose_modules_do_not_fit_together_names_the_two() {
    let config = config(json!({}));
    let error = layout(
        &config,
        2,
        json!({"layers.*.self_attn.k_proj": "replicate"}),
    )
    .unwrap_err();
    let text = error.to_string();
    assert!(text.contains("q_proj") && text.contains("k_proj"), "{text}");
    let fused = glm4();
    let error = layout(&fused, 2, json!({"layers.*.mlp.gate_up_proj": "colwise"})).unwrap_err();
    assert!(error.hint().unwrap().contains("packed_colwise"));
}

#[test]
fn the_gathers_of_transformers_own_glm_plan_are_left_out() {
    let config = glm4();
    let entries = json!({
        "layers.*.mlp.gate_up_proj": "colwise_gather_output",
        "layers.*.mlp.down_proj": "rowwise_split_input"
    });
    let given = layout(&config, 2, entries).unwrap();
    assert_eq!(given.mlp(), Spread::Sharded);
    assert_eq!(given.share(1), default_layout(&config, 2).share(1));
    assert!(given.notes()[0].contains("left out"));
}

#[test]
fn more_ranks_than_key_value_heads_share_a_head() {
    let config = config(json!({}));
    let layout = default_layout(&config, 8);
    assert_eq!(layout.attention(), Spread::Sharded);
    let heads: Vec<_> = (0..8)
        .map(|rank| layout.share(rank).key_value_heads)
        .collect();
    assert_eq!(heads[..4], vec![0..1; 4][..]);
    assert_eq!(heads[4..], vec![1..2; 4][..]);
    // Rank 5 holds query head 5, which reads key/value head 5 / (8 / 2).
    assert_eq!(layout.share(5).heads, 5..6);
    assert!(layout.notes()[0].contains("held by 4 ranks"));
}

#[test]
fn heads_that_do_not_divide_replicate_attention_and_say_so() {
    let config = config(json!({"num_attention_heads": 6, "num_key_value_heads": 3}));
    let by_heads = default_layout(&config, 4);
    assert_eq!(by_heads.attention(), Spread::Replicated);
    assert!(by_heads.notes()[0].contains("6 query heads"));
    let by_shared_heads = default_layout(&config, 2);
    assert_eq!(by_shared_heads.attention(), Spread::Replicated);
    assert!(by_shared_heads.notes()[0].contains("3 key/value heads"));
    assert_eq!(by_heads.sums_per_step(2), 3);
}

#[test]
fn a_tied_table_is_held_once() {
    let config = config(json!({"tie_word_embeddings": true}));
    let layout = layout(&config, 2, json!({"lm_head": "replicate"})).unwrap();
    assert_eq!(layout.embedding(), Spread::Replicated);
    let shared = default_layout(&config, 3);
    assert_eq!(shared.share(2).embedding, shared.share(2).head);
}

#[test]
fn the_fused_projection_is_split_half_by_half() {
    let config = glm4();
    let layout = default_layout(&config, 2);
    let shard = layout.shard(&config, "model.layers.1.mlp.gate_up_proj.weight", 1);
    assert_eq!(shard.describe(), "rows 48..96 and 144..192");
    assert_eq!(shard.held_shape(&[192, 64]), [96, 64]);
}

#[test]
fn a_bias_behind_a_sum_is_added_once() {
    let config = config(json!({"attention_bias": true}));
    let layout = default_layout(&config, 2);
    let bias = |rank| layout.shard(&config, "model.layers.0.self_attn.o_proj.bias", rank);
    assert_eq!(bias(0), Shard::OnFirstRank { first: true });
    assert_eq!(bias(1).read_values(&[64]), 0);
    let query = layout.shard(&config, "model.layers.0.self_attn.q_proj.bias", 1);
    assert_eq!(query.describe(), "rows 64..128");
}

proptest! {
    /// Each value of a spread tensor is read by exactly one rank; each of a shared or replicated one by as
    /// many as hold it. Shapes are the same on all ranks.
    #[test]
    fn ranks_cover_every_tensor(
        ranks in 1_usize..9,
        group in 1_i64..5,
        shared in 1_i64..5,
        inner in 1_i64..100,
        vocabulary in 1_i64..100,
        fused in any::<bool>(),
    ) {
        let family = if fused { "glm4" } else { "qwen3" };
        let config = config(json!({
            "model_type": family,
            "num_attention_heads": group * shared,
            "num_key_value_heads": shared,
            "intermediate_size": inner,
            "vocab_size": vocabulary,
        }));
        let layout = default_layout(&config, ranks);
        for (name, shape) in expected_tensors(&config) {
            let all: i64 = shape.iter().product();
            let shards: Vec<_> = (0..ranks).map(|rank| layout.shard(&config, &name, rank)).collect();
            let read: i64 = shards.iter().map(|shard| shard.read_values(&shape)).sum();
            let copies = read / all;
            prop_assert_eq!(read % all, 0, "{} {:?}", &name, shards);
            let keys = name.contains("k_proj") || name.contains("v_proj");
            let spread = matches!(shards[0], Shard::Slices { .. } | Shard::OnFirstRank { .. });
            let expected = match (spread, keys) {
                (false, _) => ranks as i64,
                (true, true) => (ranks as i64 / shared).max(1),
                (true, false) => 1,
            };
            prop_assert_eq!(copies, expected, "{}", &name);
            for shard in &shards {
                prop_assert_eq!(shard.held_shape(&shape), shards[0].held_shape(&shape));
            }
        }
        for rank in 0..ranks {
            let local = layout.local_config(&config, rank);
            prop_assert_eq!(local.heads % local.key_value_heads, 0);
            // A rank's query heads read the key/value heads that it holds.
            let share = layout.share(rank);
            for head in share.heads.clone() {
                let whole = head / (config.heads / config.key_value_heads);
                prop_assert!(share.key_value_heads.contains(&whole));
                let place = (head - share.heads.start) / (local.heads / local.key_value_heads);
                prop_assert_eq!(share.key_value_heads.start + place, whole);
            }
        }
    }
}
