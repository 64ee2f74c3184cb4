//! Generation on golden checkpoints: batches, buckets, ends of rows, bad calls.

#![expect(clippy::unwrap_used, reason = "helpers of tests may panic")]

mod support;

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use kernel_model::generate::{Buckets, Event, Finish, Surroundings};
use kernel_model::ops::{AttentionParameters, PrefillAttention, SdpaPrefill};
use kernel_model::sampling::SamplingOptions;
use kernel_model::{
    Dtype, GenerateOptions, Generation, GenerationConfig, LoadOptions, Model, ModelError, Result,
};
use support::{directory, golden, load, rows, worst};
use tch::{Kind, Tensor};

fn quietly(_: Event<'_>) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

fn greedy(new_tokens: usize) -> GenerateOptions {
    GenerateOptions {
        max_new_tokens: Some(new_tokens),
        sampling: SamplingOptions {
            greedy: true,
            ..SamplingOptions::default()
        },
        ignore_eos: true,
        ..GenerateOptions::default()
    }
}

fn generate(model: &mut Model, prompts: &[Vec<i64>], options: &GenerateOptions) -> Generation {
    model
        .generate(prompts, options, Surroundings::default(), &mut quietly)
        .unwrap()
}

fn tokens(generation: &Generation) -> Vec<Vec<i64>> {
    generation
        .rows
        .iter()
        .map(|row| row.tokens.clone())
        .collect()
}

/// The rows of a golden's left-padded batch without their padding.
fn ragged(name: &str) -> Vec<Vec<i64>> {
    let golden = golden(name);
    let masks = rows(&golden["padded.attention_mask"]);
    rows(&golden["padded.input_ids"])
        .into_iter()
        .zip(masks)
        .map(|(row, mask)| {
            row.into_iter()
                .zip(mask)
                .filter(|(_, m)| *m == 1)
                .map(|(id, _)| id)
                .collect()
        })
        .collect()
}

#[test]
fn ragged_batches_give_the_tokens_of_transformers_with_and_without_buckets() {
    for name in [
        "llama",
        "qwen3-tied",
        "glm4",
        "mistral",
        "qwen2-tied",
        "qwen3-yarn",
    ] {
        let expected = rows(&golden(name)["padded.generated_ids"]);
        let mut model = load(name, "config.json", Dtype::Float32);
        for buckets in [Buckets::Exact, Buckets::PowersOfTwo] {
            let options = GenerateOptions {
                buckets: Some(buckets),
                ..greedy(expected[0].len())
            };
            let generation = generate(&mut model, &ragged(name), &options);
            assert_eq!(tokens(&generation), expected, "{name} with {buckets:?}");
            assert!(
                generation
                    .rows
                    .iter()
                    .all(|row| row.finish == Finish::Length)
            );
        }
    }
}

#[test]
fn dumped_logits_are_those_of_transformers() {
    let golden = golden("qwen3-untied");
    let expected = rows(&golden["generated_ids"]);
    let mut model = load("qwen3-untied", "config.json", Dtype::Float32);
    let options = GenerateOptions {
        keep_logits: true,
        ..greedy(expected[0].len())
    };
    let generation = generate(&mut model, &rows(&golden["input_ids"]), &options);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("logits.safetensors");
    generation.logits.unwrap().write(&path).unwrap();
    let dump: std::collections::HashMap<String, Tensor> = Tensor::read_safetensors(&path)
        .unwrap()
        .into_iter()
        .collect();
    assert!(worst(&dump["prefill_logits"], &golden["prefill_logits"]) < 1e-4);
    assert!(worst(&dump["decode_logits"], &golden["decode_logits"]) < 1e-4);
    assert_eq!(rows(&dump["generated_ids"]), expected);
}

#[test]
fn the_cache_is_used_again_without_a_trace_of_the_last_request() {
    let mut model = load("llama", "config.json", Dtype::Float32);
    let prompts = ragged("llama");
    let alone: Vec<_> = prompts
        .iter()
        .map(|prompt| {
            let mut fresh = load("llama", "config.json", Dtype::Float32);
            tokens(&generate(
                &mut fresh,
                std::slice::from_ref(prompt),
                &greedy(6),
            ))
            .remove(0)
        })
        .collect();
    for (prompt, alone) in prompts.iter().zip(&alone) {
        let again = generate(&mut model, std::slice::from_ref(prompt), &greedy(6));
        assert_eq!(&tokens(&again)[0], alone);
    }
    assert_eq!(tokens(&generate(&mut model, &prompts, &greedy(6))), alone);
}

#[test]
fn any_end_token_ends_its_row_and_no_other() {
    let mut model = load("llama", "config.json", Dtype::Float32);
    let prompts = ragged("llama");
    let free = tokens(&generate(&mut model, &prompts, &greedy(8)));
    let end = free[0][3];
    let config = GenerationConfig {
        eos: Some(vec![9999, end]),
        ..GenerationConfig::default()
    };
    let options = GenerateOptions {
        ignore_eos: false,
        ..greedy(8)
    };
    let surroundings = Surroundings {
        generation_config: Some(&config),
        ..Surroundings::default()
    };
    let generation = model
        .generate(&prompts, &options, surroundings, &mut quietly)
        .unwrap();
    for (row, free) in generation.rows.iter().zip(&free) {
        match free.iter().position(|id| *id == end) {
            Some(at) => {
                assert_eq!(row.tokens, free[..=at]);
                assert_eq!(
                    row.finish,
                    if at == 7 {
                        Finish::Length
                    } else {
                        Finish::Stop
                    }
                );
            }
            None => assert_eq!((&row.tokens, row.finish), (free, Finish::Length)),
        }
    }
}

#[test]
fn a_seed_repeats_a_draw_and_a_row_does_not_depend_on_its_batch() {
    let mut model = load("qwen3-tied", "config.json", Dtype::Float32);
    let prompts = ragged("qwen3-tied");
    let draw = |seed| GenerateOptions {
        sampling: SamplingOptions {
            temperature: Some(3.0),
            seed: Some(seed),
            ..SamplingOptions::default()
        },
        ..greedy(12)
    };
    let draw = |seed| {
        let mut options: GenerateOptions = draw(seed);
        options.sampling.greedy = false;
        options
    };
    let first = tokens(&generate(&mut model, &prompts, &draw(1)));
    assert_eq!(first, tokens(&generate(&mut model, &prompts, &draw(1))));
    assert_ne!(first, tokens(&generate(&mut model, &prompts, &draw(2))));
    assert_eq!(
        first[..1],
        tokens(&generate(&mut model, &prompts[..1], &draw(1)))
    );
}

#[test]
fn a_generation_stops_when_told_and_returns_what_it_has() {
    let mut model = load("llama", "config.json", Dtype::Float32);
    let prompts = ragged("llama");
    let mut seen = 0;
    let mut three = |event: Event<'_>| {
        if matches!(event, Event::Token { .. }) {
            seen += 1;
        }
        if seen == 3 {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    };
    let generation = model
        .generate(
            &prompts[..1],
            &greedy(8),
            Surroundings::default(),
            &mut three,
        )
        .unwrap();
    assert_eq!(generation.rows[0].tokens.len(), 3);
    assert_eq!(generation.rows[0].finish, Finish::Cancelled);

    let cancel = AtomicBool::new(true);
    let surroundings = Surroundings {
        cancel: Some(&cancel),
        ..Surroundings::default()
    };
    let generation = model
        .generate(&prompts, &greedy(8), surroundings, &mut quietly)
        .unwrap();
    assert!(
        generation
            .rows
            .iter()
            .all(|r| r.finish == Finish::Cancelled && r.tokens.is_empty())
    );
}

#[test]
fn bad_prompts_are_refused_before_any_work() {
    let mut model = load("llama", "config.json", Dtype::Float32);
    let limit = model.config().max_positions as usize;
    for (prompts, words) in [
        (vec![], "is missing"),
        (vec![vec![5], vec![]], "prompt 1 has no tokens"),
        (vec![vec![5; limit + 1]], "context is 128"),
        (vec![vec![5, 256]], "token id 256"),
        (vec![vec![-1]], "token id -1"),
    ] {
        let error = model
            .generate(&prompts, &greedy(1), Surroundings::default(), &mut quietly)
            .unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
        assert!(error.hint().is_some());
    }
    let stop = GenerateOptions {
        stop_strings: vec!["x".to_owned()],
        ..greedy(1)
    };
    let error = model
        .generate(&[vec![5]], &stop, Surroundings::default(), &mut quietly)
        .unwrap_err();
    assert!(matches!(error, ModelError::NoTokenizer(_)));
}

#[test]
fn a_row_ends_with_the_context() {
    let mut model = load("llama", "config.json", Dtype::Float32);
    let limit = model.config().max_positions as usize;
    for room in [0, 3] {
        let prompt = vec![7; limit - room];
        let generation = generate(&mut model, &[prompt], &greedy(50));
        assert_eq!(generation.rows[0].tokens.len(), room + 1);
        assert_eq!(generation.rows[0].finish, Finish::Length);
    }
    let none = generate(&mut model, &[vec![7]], &greedy(0));
    assert_eq!(none.rows[0].tokens.len(), 0);
}

/// The user's own attention: counts its calls, and may spoil its result.
struct Mine {
    calls: AtomicUsize,
    spoil_from: usize,
}

impl PrefillAttention for Mine {
    fn forward(
        &self,
        query: &Tensor,
        key: &Tensor,
        value: &Tensor,
        parameters: &AttentionParameters,
    ) -> Result<Tensor> {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        let output = SdpaPrefill.forward(query, key, value, parameters)?;
        Ok(if call >= self.spoil_from {
            output * f64::NAN
        } else {
            output
        })
    }

    fn name(&self) -> &'static str {
        "mine"
    }
}

#[test]
fn an_op_takes_the_users_own_implementation() {
    let mut model = load("llama", "config.json", Dtype::Float32);
    let prompts = ragged("llama");
    let before = tokens(&generate(&mut model, &prompts, &greedy(4)));
    let mine = Arc::new(Mine {
        calls: AtomicUsize::new(0),
        spoil_from: usize::MAX,
    });
    let op: Arc<dyn PrefillAttention> = mine.clone();
    model.set_attention(&op);
    assert_eq!(tokens(&generate(&mut model, &prompts, &greedy(4))), before);
    assert_eq!(mine.calls.load(Ordering::Relaxed), 2);
}

#[test]
fn logits_that_are_not_numbers_name_the_layer() {
    let mut model = load("llama", "config.json", Dtype::Float32);
    let op: Arc<dyn PrefillAttention> = Arc::new(Mine {
        calls: 0.into(),
        spoil_from: 0,
    });
    model.layers_mut()[1].attention.prefill = op;
    let error = model
        .generate(
            &ragged("llama"),
            &greedy(4),
            Surroundings::default(),
            &mut quietly,
        )
        .unwrap_err();
    assert!(error.to_string().contains("`layers.1`"), "{error}");
    assert!(error.hint().is_some());
}

/// Copies a golden's checkpoint with changes to its tensors.
fn changed(name: &str, change: impl Fn(&mut Vec<(String, Tensor)>)) -> tempfile::TempDir {
    let target = tempfile::tempdir().unwrap();
    let source = directory(name);
    std::fs::copy(
        source.join("config.json"),
        target.path().join("config.json"),
    )
    .unwrap();
    let mut tensors = Tensor::read_safetensors(source.join("model.safetensors")).unwrap();
    change(&mut tensors);
    Tensor::write_safetensors(&tensors, target.path().join("model.safetensors")).unwrap();
    target
}

#[test]
fn a_tied_model_that_stores_its_head_is_tied_only_where_they_are_equal() {
    let prompts = ragged("qwen3-tied");
    let expected = rows(&golden("qwen3-tied")["padded.generated_ids"]);
    for factor in [1.0, -1.0] {
        let directory = changed("qwen3-tied", |tensors| {
            let embedding = tensors
                .iter()
                .find(|(name, _)| name == "model.embed_tokens.weight")
                .unwrap();
            let head = (&embedding.1 * factor).to_kind(Kind::Float);
            tensors.push(("lm_head.weight".to_owned(), head));
        });
        let mut model = Model::load(directory.path(), &LoadOptions::default()).unwrap();
        let ours = tokens(&generate(&mut model, &prompts, &greedy(expected[0].len())));
        if factor > 0.0 {
            assert_eq!(ours, expected);
            assert!(model.warnings().is_empty(), "{:?}", model.warnings());
        } else {
            assert_ne!(ours, expected);
            assert!(model.warnings()[0].contains("lm_head.weight"));
        }
    }
}

#[test]
fn missing_extra_and_misshapen_tensors_are_named() {
    let lost = "model.layers.1.mlp.up_proj.weight";
    let directory = changed("llama", |tensors| tensors.retain(|(name, _)| name != lost));
    let error = Model::load(directory.path(), &LoadOptions::default()).unwrap_err();
    assert!(error.to_string().contains(lost), "{error}");

    let directory = changed("llama", |tensors| {
        tensors.push((
            "model.vision.weight".to_owned(),
            Tensor::from_slice(&[1.0_f32]),
        ));
    });
    let model = Model::load(directory.path(), &LoadOptions::default()).unwrap();
    assert!(model.warnings()[0].contains("model.vision.weight"));

    let directory = changed("llama", |tensors| {
        for (name, tensor) in tensors.iter_mut() {
            if name == lost {
                *tensor = tensor.transpose(0, 1).contiguous();
            }
        }
    });
    let error = Model::load(directory.path(), &LoadOptions::default()).unwrap_err();
    assert!(matches!(error, ModelError::TensorShape { .. }), "{error}");
}

#[test]
fn a_directory_that_holds_no_model_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let error = Model::load(directory.path(), &LoadOptions::default()).unwrap_err();
    assert!(error.to_string().contains("config.json"), "{error}");
}
