//! Logits and greedy tokens of every family against transformers' own.

#![expect(clippy::unwrap_used, reason = "helpers of tests may panic")]

mod support;

use kernel_model::{Dtype, Model};
use support::{golden, load, rows, spellings, worst};
use tch::{Kind, Tensor};

/// f32 logits differ from transformers by rounding only.
const F32_TOLERANCE: f64 = 1e-4;
/// bf16 logits of magnitude 16 differ by up to a few units in the last place.
const BF16_TOLERANCE: f64 = 0.3;

fn prefill_logits(model: &mut Model, ids: &Tensor) -> Tensor {
    let (batch, tokens) = ids.size2().unwrap();
    let mut cache = model.new_cache(batch, tokens).unwrap();
    let hidden = model.prefill(ids, &mut cache, None).unwrap();
    model.logits(&hidden).unwrap()
}

/// Names the first place where activations leave the reference, to say where a fault lies.
fn first_difference(
    model: &mut Model,
    golden: &std::collections::HashMap<String, Tensor>,
) -> String {
    let ids = golden["input_ids"].narrow(0, 0, 1);
    let mut cache = model.new_cache(1, ids.size()[1]).unwrap();
    let mut first = None;
    let mut probe = |name: &str, tensor: &Tensor| {
        let Some(expected) = golden.get(&format!("act.{name}")) else {
            return Ok(());
        };
        let difference = worst(&tensor.reshape(expected.size()), expected);
        if difference > F32_TOLERANCE && first.is_none() {
            first = Some(format!("{name} differs by {difference}"));
        }
        Ok(())
    };
    let _ = model.prefill(&ids, &mut cache, Some(&mut probe)).unwrap();
    first.unwrap_or_else(|| "no activation differs".to_owned())
}

fn check_prefill_and_decode(name: &str, config: &str) {
    let golden = golden(name);
    let mut model = load(name, config, Dtype::Float32);
    let ids = &golden["input_ids"];
    let (batch, tokens) = ids.size2().unwrap();
    let generated = &golden["generated_ids"];
    let steps = generated.size()[1] - 1;

    let mut cache = model.new_cache(batch, tokens + steps).unwrap();
    let hidden = model.prefill(ids, &mut cache, None).unwrap();
    let logits = model.logits(&hidden).unwrap();
    let difference = worst(&logits, &golden["prefill_logits"]);
    assert!(
        difference < F32_TOLERANCE,
        "{name} with {config}: prefill differs by {difference}; {}",
        first_difference(&mut model, &golden)
    );

    let mut next = logits.select(1, tokens - 1).argmax(-1, false);
    for step in 0..steps {
        let wanted = generated.select(1, step);
        assert_eq!(
            Vec::<i64>::try_from(&next).unwrap(),
            Vec::<i64>::try_from(&wanted).unwrap()
        );
        let ids = Vec::<i64>::try_from(&next).unwrap();
        let positions = vec![tokens + step; ids.len()];
        let hidden = model.decode(&ids, &positions, &mut cache, None).unwrap();
        let logits = model.logits(&hidden).unwrap().squeeze_dim(1);
        let difference = worst(&logits, &golden["decode_logits"].select(1, step));
        assert!(
            difference < F32_TOLERANCE,
            "{name}: step {step} differs by {difference}"
        );
        next = logits.argmax(-1, false);
    }
}

/// The reference's padded batch is left-padded. The same rows right-padded must give the same
/// logits, in prefill and in decode.
fn check_ragged_rows(name: &str) {
    let golden = golden(name);
    let mut model = load(name, "config.json", Dtype::Float32);
    let (ids, mask) = (
        &golden["padded.input_ids"],
        &golden["padded.attention_mask"],
    );
    let (batch, tokens) = ids.size2().unwrap();
    let lengths: Vec<i64> =
        Vec::try_from(mask.sum_dim_intlist([1_i64].as_slice(), false, Kind::Int64)).unwrap();
    let padded: Vec<i64> = rows(ids)
        .into_iter()
        .zip(&lengths)
        .flat_map(|(row, length)| {
            let skip = row.len() - *length as usize;
            let mut row = row[skip..].to_vec();
            row.resize(tokens as usize, 0);
            row
        })
        .collect();
    let padded = Tensor::from_slice(&padded).view([batch, tokens]);
    let generated = &golden["padded.generated_ids"];
    let steps = generated.size()[1] - 1;

    let mut cache = model.new_cache(batch, tokens + steps).unwrap();
    let hidden = model.prefill(&padded, &mut cache, None).unwrap();
    let logits = model.logits(&hidden).unwrap();
    for (row, length) in (0_i64..).zip(&lengths) {
        let ours = logits.select(0, row).narrow(0, 0, *length);
        let theirs =
            golden["padded.prefill_logits"]
                .select(0, row)
                .narrow(0, tokens - length, *length);
        let difference = worst(&ours, &theirs);
        assert!(
            difference < F32_TOLERANCE,
            "{name}: row {row} differs by {difference}"
        );
    }
    for step in 0..steps {
        let ids: Vec<i64> = Vec::try_from(generated.select(1, step)).unwrap();
        let positions: Vec<i64> = lengths.iter().map(|length| length + step).collect();
        let hidden = model.decode(&ids, &positions, &mut cache, None).unwrap();
        let logits = model.logits(&hidden).unwrap().squeeze_dim(1);
        let difference = worst(&logits, &golden["padded.decode_logits"].select(1, step));
        assert!(
            difference < F32_TOLERANCE,
            "{name}: padded step {step} differs by {difference}"
        );
        let next: Vec<i64> = Vec::try_from(logits.argmax(-1, false)).unwrap();
        let wanted: Vec<i64> = Vec::try_from(generated.select(1, step + 1)).unwrap();
        assert_eq!(next, wanted, "{name}: padded step {step}");
    }
}

fn check_bf16(name: &str) {
    let golden = golden(name);
    let mut model = load(name, "config.json", Dtype::BFloat16);
    let logits = prefill_logits(&mut model, &golden["input_ids"]);
    let difference = worst(&logits, &golden["prefill_logits_bf16"]);
    assert!(
        difference < BF16_TOLERANCE,
        "{name}: bf16 differs by {difference}"
    );
}

fn check_rope(name: &str) {
    let golden = golden(name);
    for config in spellings(name) {
        let model = load(name, config, Dtype::Float32);
        let config = model.config();
        let (frequencies, scale) = config
            .rope
            .inverse_frequencies(config.rope.rotary_dim(config.head_dim));
        assert!(worst(&Tensor::from_slice(&frequencies), &golden["rope.inv_freq"]) < 1e-7);
        assert!((scale - golden["rope.attention_scaling"].double_value(&[])).abs() < 1e-6);
        let table =
            kernel_model::rope::RotaryTable::new(&config.rope, config.head_dim, 40, Kind::Float)
                .unwrap();
        assert!(worst(&table.cos, &golden["rope.cos"].reshape(table.cos.size())) < 1e-5);
        assert!(worst(&table.sin, &golden["rope.sin"].reshape(table.sin.size())) < 1e-5);
    }
}

macro_rules! golden_tests {
    ($($module:ident: $name:literal),+ $(,)?) => {
        $(mod $module {
            #[test]
            fn logits_and_greedy_tokens_are_those_of_transformers() {
                for config in super::spellings($name) {
                    super::check_prefill_and_decode($name, config);
                }
            }

            #[test]
            fn rows_of_different_length_do_not_disturb_each_other() {
                super::check_ragged_rows($name);
            }

            #[test]
            fn bfloat16_stays_within_rounding() {
                super::check_bf16($name);
            }

            #[test]
            fn rotary_table_is_that_of_transformers() {
                super::check_rope($name);
            }
        })+
    };
}

golden_tests! {
    llama: "llama",
    qwen2_tied: "qwen2-tied",
    qwen3_tied: "qwen3-tied",
    qwen3_untied: "qwen3-untied",
    qwen3_untied_sharded: "qwen3-untied-sharded",
    qwen3_yarn: "qwen3-yarn",
    mistral: "mistral",
    glm4: "glm4",
    glm4_sharded: "glm4-sharded",
}
