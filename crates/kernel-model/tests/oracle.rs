//! Tiny random models of many configurations against transformers, which runs beside the test.
//!
//! The golden checkpoints show that the families run as published; here every field of a config
//! that changes what is computed is turned once.

#![expect(clippy::unwrap_used, reason = "helpers of tests may panic")]

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::Command;

use kernel_model::generate::Surroundings;
use kernel_model::sampling::SamplingOptions;
use kernel_model::{Dtype, GenerateOptions, LoadOptions, Model, ModelConfig};
use tch::{Kind, Tensor};

/// Logits differ by rounding only; they are larger than those of the golden checkpoints.
const TOLERANCE: f64 = 1e-4;

fn make_models(directory: &Path) -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let output = Command::new(root.join("../../.venv/bin/python"))
        .arg("-W")
        .arg("ignore")
        .arg(root.join("tests/oracle/make_models.py"))
        .arg(directory)
        .env("HF_HUB_OFFLINE", "1")
        .env("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let mut models: Vec<PathBuf> = std::fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    models.sort();
    let made = String::from_utf8(output.stdout).unwrap();
    assert_eq!(models.len(), made.trim().parse::<usize>().unwrap());
    models
}

/// Ids of each row that a mask lets through.
fn rows(ids: &Tensor, mask: &Tensor) -> Vec<Vec<i64>> {
    let (batch, tokens) = ids.size2().unwrap();
    (0..batch)
        .map(|row| {
            (0..tokens)
                .filter(|column| mask.int64_value(&[row, *column]) == 1)
                .map(|column| ids.int64_value(&[row, column]))
                .collect()
        })
        .collect()
}

/// The largest difference relative to the largest value.
fn difference(ours: &Tensor, theirs: &Tensor) -> f64 {
    let largest = theirs.abs().max().double_value(&[]).max(1.0);
    (ours - theirs).abs().max().double_value(&[]) / largest
}

fn check(
    model: &mut Model,
    expected: &HashMap<String, Tensor>,
    prefix: &str,
) -> Result<(), String> {
    let of = |name: &str| &expected[&format!("{prefix}{name}")];
    let prompts = rows(of("input_ids"), of("attention_mask"));
    let wanted = of("generated_ids");
    let new = wanted.size()[1];
    let options = GenerateOptions {
        max_new_tokens: Some(usize::try_from(new).unwrap()),
        sampling: SamplingOptions {
            greedy: true,
            ..SamplingOptions::default()
        },
        ignore_eos: true,
        keep_logits: true,
        ..GenerateOptions::default()
    };
    let generation = model
        .generate(&prompts, &options, Surroundings::default(), &mut |_| {
            ControlFlow::Continue(())
        })
        .map_err(|error| error.to_string())?;
    let file = tempfile::NamedTempFile::new().unwrap();
    generation.logits.unwrap().write(file.path()).unwrap();
    let dump: HashMap<String, Tensor> = Tensor::read_safetensors(file.path())
        .unwrap()
        .into_iter()
        .collect();

    let tokens = of("input_ids").size()[1];
    for (row, prompt) in (0_i64..).zip(&prompts) {
        let length = prompt.len() as i64;
        let ours = dump["prefill_logits"].get(row).narrow(0, 0, length);
        let theirs = of("prefill_logits").get(row);
        let worst = difference(&ours, &theirs.narrow(0, tokens - length, length));
        if worst > TOLERANCE {
            return Err(format!("{prefix}row {row}: prefill differs by {worst:.1e}"));
        }
    }
    if dump["generated_ids"] != *wanted {
        return Err(format!(
            "{prefix}tokens differ: {:?} for {:?}",
            rows(&dump["generated_ids"], &wanted.ones_like()),
            rows(wanted, &wanted.ones_like())
        ));
    }
    let worst = difference(&dump["decode_logits"], of("decode_logits"));
    if worst > TOLERANCE {
        return Err(format!("{prefix}decode differs by {worst:.1e}"));
    }
    Ok(())
}

#[test]
fn every_configuration_computes_what_transformers_computes() {
    let directory = tempfile::tempdir().unwrap();
    let mut wrong = Vec::new();
    for path in make_models(directory.path()) {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let expected: HashMap<String, Tensor> =
            Tensor::read_safetensors(path.join("expected.safetensors"))
                .unwrap()
                .into_iter()
                .map(|(name, tensor)| {
                    let kind = if tensor.kind() == Kind::Float {
                        Kind::Float
                    } else {
                        Kind::Int64
                    };
                    (name, tensor.to_kind(kind))
                })
                .collect();
        for spelling in ["config.json", "config_v4.json"] {
            let options = LoadOptions {
                dtype: Some(Dtype::Float32),
                ..LoadOptions::default()
            };
            let outcome = ModelConfig::from_file(&path.join(spelling))
                .and_then(|config| Model::load_with_config(&path, config, &options))
                .map_err(|error| error.to_string())
                .and_then(|mut model| {
                    check(&mut model, &expected, "")?;
                    check(&mut model, &expected, "left.")
                });
            if let Err(problem) = outcome {
                wrong.push(format!("{name} ({spelling}): {problem}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
