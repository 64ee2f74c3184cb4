//! Hub kernels in the slots: the kernels of the index on golden checkpoints, and what happens
//! when a kernel does not fit.

#![expect(clippy::unwrap_used, reason = "helpers of tests may panic")]

mod support;

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use kernel_bridge::{Bridge, BridgeError, BridgeOptions, Environment};
use kernel_model::generate::Surroundings;
use kernel_model::sampling::SamplingOptions;
use kernel_model::{
    Dtype, GenerateOptions, KernelReport, KernelizeOptions, LoadOptions, Model, ModelConfig,
    ModelError, kernelize,
};
use kernel_registry::Registry;
use kernel_spec::{DeviceType, Fallback, KernelConfig, System};
use serde_json::json;
use support::{directory, golden, load, rows, worst};
use tch::Tensor;

fn start_bridge() -> Result<Bridge, BridgeError> {
    Bridge::start(&Environment::discover()?, BridgeOptions::default())
}

fn registry(cache: &Path) -> Registry {
    Registry::builder()
        .cache_dir(cache)
        .offline(true)
        .build()
        .unwrap()
}

fn repository(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../kernels-index")
        .join(name)
}

/// The kernels of the index by path, which lifts the constraints that the index states for them.
fn all_by_path() -> KernelizeOptions {
    let mut options = KernelizeOptions::default();
    for (op, name, symbol) in [
        ("attention", "attention", "attention"),
        ("decode_attention", "decode-attention", "decode_attention"),
        ("mlp", "swiglu-mlp", "SwiGLUMLP"),
        ("rms_norm", "rms-norm", "RMSNorm"),
        ("rotary", "rotary", "rotary_pos_emb"),
    ] {
        let reference = format!("{}:{symbol}", repository(name).display());
        options.add_override(op, &reference).unwrap();
    }
    options
}

fn run(model: &mut Model, config: &KernelConfig, options: &KernelizeOptions) -> KernelReport {
    let cache = tempfile::tempdir().unwrap();
    kernelize(
        model,
        config,
        &registry(cache.path()),
        &mut start_bridge,
        options,
    )
    .unwrap()
}

fn generate(model: &mut Model, prompts: &[Vec<i64>], count: usize) -> Vec<Vec<i64>> {
    let options = GenerateOptions {
        max_new_tokens: Some(count),
        sampling: SamplingOptions {
            greedy: true,
            ..SamplingOptions::default()
        },
        ignore_eos: true,
        ..GenerateOptions::default()
    };
    let mut quietly = |_: kernel_model::generate::Event<'_>| ControlFlow::Continue(());
    let generation = model
        .generate(prompts, &options, Surroundings::default(), &mut quietly)
        .unwrap();
    generation.rows.into_iter().map(|row| row.tokens).collect()
}

fn explicit() -> KernelConfig {
    KernelConfig {
        inherit_mapping: false,
        ..KernelConfig::default()
    }
}

#[test]
fn goldens_pass_with_kernels_in_every_slot() {
    for name in [
        "llama",
        "qwen3-tied",
        "qwen3-untied",
        "mistral",
        "qwen2-tied",
    ] {
        let golden = golden(name);
        let mut model = load(name, "config.json", Dtype::Float32);
        let report = run(&mut model, &explicit(), &all_by_path());
        for entry in &report.entries {
            assert_eq!(entry.replaced, entry.total, "{name}: {entry:?}");
            assert!(entry.reason.contains("agrees"), "{entry:?}");
        }
        let ids = &golden["input_ids"];
        let (batch, tokens) = ids.size2().unwrap();
        let mut cache = model.new_cache(batch, tokens).unwrap();
        let hidden = model.prefill(ids, &mut cache, None).unwrap();
        let logits = model.logits(&hidden).unwrap();
        let difference = worst(&logits, &golden["prefill_logits"]);
        assert!(difference < 1e-4, "{name}: {difference}");

        let expected = rows(&golden["generated_ids"]);
        assert_eq!(
            generate(&mut model, &rows(ids), expected[0].len()),
            expected,
            "{name}"
        );
        // Rows of different length, in buckets.
        let masks = rows(&golden["padded.attention_mask"]);
        let ragged: Vec<Vec<i64>> = rows(&golden["padded.input_ids"])
            .into_iter()
            .zip(masks)
            .map(|(row, mask)| {
                row.into_iter()
                    .zip(mask)
                    .filter(|(_, m)| *m == 1)
                    .map(|(id, _)| id)
                    .collect()
            })
            .collect();
        let expected = rows(&golden["padded.generated_ids"]);
        assert_eq!(
            generate(&mut model, &ragged, expected[0].len()),
            expected,
            "{name}"
        );
        assert!(report.incidents.all().is_empty());
    }
}

#[test]
fn kernels_pass_the_gate_in_bfloat16() {
    let golden = golden("llama");
    let mut model = load("llama", "config.json", Dtype::BFloat16);
    let report = run(&mut model, &explicit(), &all_by_path());
    for entry in &report.entries {
        assert_eq!(entry.replaced, entry.total, "{entry:?}");
    }
    let ids = &golden["input_ids"];
    let mut cache = model.new_cache(ids.size()[0], ids.size()[1]).unwrap();
    let hidden = model.prefill(ids, &mut cache, None).unwrap();
    let logits = model.logits(&hidden).unwrap();
    assert!(worst(&logits, &golden["prefill_logits_bf16"]) < 0.3);
}

#[test]
fn the_index_default_for_the_device_applies_unless_the_config_declines() {
    let mut model = load("llama", "config.json", Dtype::Float32);
    let report = run(
        &mut model,
        &KernelConfig::default(),
        &KernelizeOptions::default(),
    );
    // What the index maps on the CPU is its own choice: a kernel that is not slower there.
    let cache = tempfile::tempdir().unwrap();
    let registry = registry(cache.path());
    let mapped = registry.index().unwrap().default_mapping(DeviceType::Cpu);
    for (op, reference) in mapped {
        let entry = report
            .entries
            .iter()
            .find(|entry| entry.implementation == reference.to_string())
            .unwrap_or_else(|| panic!("{op} is not on its default"));
        assert_eq!(entry.replaced, entry.total, "{entry:?}");
        assert_eq!(entry.commit.as_ref().map(String::len), Some(40));
    }
    assert!(report.warnings.is_empty());

    let mut model = load("llama", "config.json", Dtype::Float32);
    let report = run(&mut model, &explicit(), &KernelizeOptions::default());
    assert!(
        report
            .entries
            .iter()
            .all(|entry| entry.implementation == "default")
    );
    assert!(report.warnings.is_empty(), "nothing was asked for");
}

#[test]
fn tpu_inference_d32_a_head_dimension_that_does_not_fit_is_refused_with_the_reason() {
    let config = KernelConfig::from_model_config(&json!({"kernel_config": {
        "inherit_mapping": false,
        "kernel_mapping": {"attention": "hub-kernels/attention@v1:attention"}
    }}))
    .unwrap();
    let mut model = load("llama", "config.json", Dtype::Float32);
    let report = run(&mut model, &config, &KernelizeOptions::default());
    let entry = report.entry("attention").unwrap();
    assert_eq!(
        (entry.replaced, entry.implementation.as_str()),
        (0, "default")
    );
    assert!(
        entry.reason.contains("head dimension 16"),
        "{}",
        entry.reason
    );
    // The refusal, and that nothing at all was replaced.
    assert_eq!(report.warnings.len(), 2, "{:?}", report.warnings);

    let cache = tempfile::tempdir().unwrap();
    let options = KernelizeOptions {
        fallback: Some(Fallback::Error),
        ..KernelizeOptions::default()
    };
    let error = kernelize(
        &mut model,
        &config,
        &registry(cache.path()),
        &mut start_bridge,
        &options,
    )
    .unwrap_err();
    assert!(matches!(error, ModelError::Kernel { .. }), "{error}");
    assert!(error.hint().unwrap().contains("--fallback"));

    let options = KernelizeOptions {
        fallback: Some(Fallback::Silent),
        ..KernelizeOptions::default()
    };
    assert!(run(&mut model, &config, &options).warnings.is_empty());
}

#[test]
fn transformers_48335_swiglu_kernel_on_a_gelu_model_is_refused() {
    let source = directory("llama");
    let mut document = ModelConfig::from_directory(&source).unwrap().raw;
    document["hidden_act"] = json!("gelu");
    let config = ModelConfig::from_value(&source.join("config.json"), document).unwrap();
    let mut model = Model::load_with_config(&source, config, &LoadOptions::default()).unwrap();
    let report = run(&mut model, &explicit(), &all_by_path());
    let entry = report.entry("mlp").unwrap();
    assert_eq!(entry.replaced, 0);
    assert!(
        entry.reason.contains("hidden_act is `gelu`"),
        "{}",
        entry.reason
    );
    assert!(report.entry("rms_norm").unwrap().replaced > 0);
}

#[test]
fn interleaved_rotary_is_refused_and_the_rest_of_glm_runs_on_kernels() {
    let golden = golden("glm4");
    let mut model = load("glm4", "config.json", Dtype::Float32);
    let report = run(&mut model, &explicit(), &all_by_path());
    let rotary = report.entry("rotary").unwrap();
    assert_eq!(rotary.replaced, 0);
    assert!(rotary.reason.contains("neighbouring"), "{}", rotary.reason);
    for op in ["attention", "decode_attention", "mlp", "rms_norm"] {
        let entry = report.entry(op).unwrap();
        assert_eq!(entry.replaced, entry.total, "{entry:?}");
    }
    let expected = rows(&golden["generated_ids"]);
    let ours = generate(&mut model, &rows(&golden["input_ids"]), expected[0].len());
    assert_eq!(ours, expected);
}

#[test]
fn transformers_46755_kernels_for_other_devices_only_are_a_warning() {
    let config = KernelConfig::from_model_config(&json!({"kernel_config": {
        "inherit_mapping": false,
        "kernel_mapping": {"RMSNorm": {"cuda": "org/rms@v1:RMSNorm"}}
    }}))
    .unwrap();
    let mut model = load("llama", "config.json", Dtype::Float32);
    let report = run(&mut model, &config, &KernelizeOptions::default());
    assert!(
        report.warnings[0].contains("none for cpu"),
        "{:?}",
        report.warnings
    );
}

#[test]
fn python_is_not_started_and_nothing_fetched_for_slots_that_are_off() {
    let starts = AtomicUsize::new(0);
    let mut counting = || {
        starts.fetch_add(1, Ordering::Relaxed);
        start_bridge()
    };
    let mut model = load("llama", "config.json", Dtype::Float32);
    let cache = tempfile::tempdir().unwrap();
    let registry = registry(cache.path());
    let off = KernelizeOptions {
        off: Some("--kernels off".to_owned()),
        ..KernelizeOptions::default()
    };
    let config = KernelConfig::default();
    let report = kernelize(&mut model, &config, &registry, &mut counting, &off).unwrap();
    assert!(
        report
            .entries
            .iter()
            .all(|entry| entry.reason.contains("--kernels off"))
    );

    let mut single = KernelizeOptions::default();
    single.add_override("RMSNorm", "").unwrap();
    let report = kernelize(&mut model, &config, &registry, &mut counting, &single).unwrap();
    assert!(
        report
            .entry("rms_norm")
            .unwrap()
            .reason
            .contains("empty reference")
    );
    assert_eq!(starts.load(Ordering::Relaxed), 0);
    assert_eq!(std::fs::read_dir(cache.path()).unwrap().count(), 0);
}

#[test]
fn kernels_172_a_kernel_that_cannot_be_fetched_leaves_the_default() {
    let mut options = KernelizeOptions::default();
    options
        .add_override("attention", "kernels-test/not-there@v1")
        .unwrap();
    let mut model = load("llama", "config.json", Dtype::Float32);
    let report = run(&mut model, &explicit(), &options);
    let entry = report.entry("attention").unwrap();
    assert_eq!(entry.replaced, 0);
    assert!(
        entry.reason.contains("kernels-test/not-there"),
        "{}",
        entry.reason
    );
}

/// A kernel in a folder: one build for the CPU whose module is `source`.
fn local_kernel(source: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let build = folder.path().join("build/torch-cpu");
    std::fs::create_dir_all(&build).unwrap();
    std::fs::write(build.join("__init__.py"), source).unwrap();
    let files = [("__init__.py", source.as_bytes())];
    let digest =
        kernel_spec::Digest::of_files(kernel_spec::DigestAlgorithm::Sha256, files).unwrap();
    let metadata = json!({
        "name": "bad", "id": "_bad_cpu_0000000", "version": 1, "license": "Apache-2.0",
        "python-depends": [], "backend": {"type": "cpu"}, "digest": digest
    });
    std::fs::write(build.join("metadata.json"), metadata.to_string()).unwrap();
    folder
}

/// Runs attention of `body` in the model's attention slot and returns the entry's reason.
fn refusal(body: &str) -> String {
    let kernel = local_kernel(body);
    let mut options = KernelizeOptions::default();
    options
        .add_override(
            "attention",
            &format!("{}:attention", kernel.path().display()),
        )
        .unwrap();
    let mut model = load("llama", "config.json", Dtype::Float32);
    let report = run(&mut model, &explicit(), &options);
    let entry = report.entry("attention").unwrap();
    assert_eq!(entry.replaced, 0, "{entry:?}");
    entry.reason.clone()
}

const SIGNATURE: &str = "import torch\n\
    def attention(q, k, v, *, scale: float, causal: bool = True, window=None):\n";

#[test]
fn jax_35916_a_kernel_for_the_other_layout_is_refused_by_numbers() {
    let body = format!(
        "{SIGNATURE}    t = lambda x: x.transpose(1, 2)\n    \
         k, v = (x.repeat_interleave(2, 1) for x in (k, v))\n    \
         o = torch.nn.functional.scaled_dot_product_attention(t(q), t(k), t(v), scale=scale)\n    \
         return t(o).contiguous()\n"
    );
    let reason = refusal(&body);
    assert!(reason.contains("differs from the default op"), "{reason}");
}

#[test]
fn jax_27224_nan_on_a_ragged_length_is_refused_with_the_shape() {
    let body = format!(
        "{SIGNATURE}    o = torch.nn.functional.scaled_dot_product_attention(\n        \
         q, k, v, scale=scale, is_causal=q.shape[2] > 1, enable_gqa=True)\n    \
         return o if q.shape[2] != 13 else o * float('nan')\n"
    );
    let reason = refusal(&body);
    assert!(
        reason.contains("NaN") && reason.contains("13 tokens"),
        "{reason}"
    );
}

#[test]
fn a_kernel_that_raises_is_refused_with_its_words() {
    let reason = refusal(&format!(
        "{SIGNATURE}    raise ValueError('head_dim must be 128')\n"
    ));
    assert!(reason.contains("head_dim must be 128"), "{reason}");
    let reason = refusal(&format!("{SIGNATURE}    return q[:, :1]\n"));
    assert!(reason.contains("where"), "{reason}");
}

#[test]
fn tpu_inference_d33_a_kernel_that_fails_later_gives_way_to_the_default() {
    // Right on all lengths of the gate, out of memory beyond them.
    let body = format!(
        "{SIGNATURE}    if q.shape[2] > 40:\n        \
         raise RuntimeError('RESOURCE_EXHAUSTED: vmem')\n    \
         return torch.nn.functional.scaled_dot_product_attention(\n        \
         q, k, v, scale=scale, is_causal=q.shape[2] > 1, enable_gqa=True)\n"
    );
    let kernel = local_kernel(&body);
    let prompt: Vec<i64> = (0..50).map(|n| 5 + n % 200).collect();
    let mut plain = load("llama", "config.json", Dtype::Float32);
    let expected = generate(&mut plain, std::slice::from_ref(&prompt), 4);

    let reference = format!("{}:attention", kernel.path().display());
    let mut options = KernelizeOptions::default();
    options.add_override("attention", &reference).unwrap();
    let mut model = load("llama", "config.json", Dtype::Float32);
    let report = run(&mut model, &explicit(), &options);
    assert_eq!(report.entry("attention").unwrap().replaced, 2);
    assert_eq!(
        generate(&mut model, std::slice::from_ref(&prompt), 4),
        expected
    );
    let incidents = report.incidents.all();
    assert_eq!(incidents.len(), 1, "{incidents:?}");
    assert!(incidents[0].contains("RESOURCE_EXHAUSTED"), "{incidents:?}");
    let now = &report.current()[0];
    assert_eq!((now.op.as_str(), now.replaced), ("attention", 0));
    assert!(now.reason.contains("RESOURCE_EXHAUSTED"), "{now:?}");

    options.fallback = Some(Fallback::Error);
    let mut model = load("llama", "config.json", Dtype::Float32);
    run(&mut model, &explicit(), &options);
    let error = model
        .generate(
            &[prompt],
            &GenerateOptions::default(),
            Surroundings::default(),
            &mut |_| ControlFlow::Continue(()),
        )
        .unwrap_err();
    assert!(error.to_string().contains("RESOURCE_EXHAUSTED"), "{error}");
}

#[test]
fn weights_of_replaced_ops_lie_where_xla_reads_them_in_place() {
    let mut model = load("qwen3-tied", "config.json", Dtype::Float32);
    let before: Vec<Tensor> = model.norms_mut().map(|site| site.weight.copy()).collect();
    let report = run(&mut model, &explicit(), &all_by_path());
    assert_eq!(report.entry("rms_norm").unwrap().replaced, before.len());
    for (site, before) in model.norms_mut().zip(&before) {
        assert_eq!(&site.weight, before);
        assert_eq!(site.weight.data_ptr() as usize % 64, 0);
    }
    for layer in model.layers() {
        assert_eq!(layer.mlp.weights.down.weight.data_ptr() as usize % 64, 0);
    }
}

#[test]
fn a_machine_description_is_not_what_decides_the_build() {
    // The registry may have detected a TPU backend; the model's tensors are on the CPU.
    let cache = tempfile::tempdir().unwrap();
    let registry = Registry::builder()
        .cache_dir(cache.path())
        .offline(true)
        .system(System::new("x86_64", "linux", kernel_spec::Backend::Tpu))
        .build()
        .unwrap();
    let mut model = load("llama", "config.json", Dtype::Float32);
    let config = KernelConfig::from_model_config(&json!({"kernel_config": {
        "kernel_mapping": {"RMSNorm": "hub-kernels/rms-norm@v1:RMSNorm"},
        "inherit_mapping": false,
    }}))
    .unwrap();
    let options = KernelizeOptions::default();
    let report = kernelize(&mut model, &config, &registry, &mut start_bridge, &options).unwrap();
    assert_eq!(
        report.entry("rms_norm").unwrap().replaced,
        5,
        "{:?}",
        report.entries
    );
}
