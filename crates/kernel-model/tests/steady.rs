//! Many requests of mixed length, one after the other: nothing compiles once the model is warm, and
//! memory stays where it was.

#![expect(clippy::unwrap_used, reason = "helpers of tests may panic")]

mod support;

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::path::PathBuf;

use kernel_bridge::{Bridge, BridgeOptions, Environment};
use kernel_model::generate::{Buckets, Generation, Surroundings};
use kernel_model::{Dtype, GenerateOptions, KernelizeOptions, Model, kernelize};
use kernel_registry::Registry;
use kernel_spec::KernelConfig;
use support::load;

/// Requests after which lengths and batch sizes come again.
const SERIES: usize = 48;

/// The n-th of a series of requests: one to three rows of up to a hundred tokens.
fn request(model: &mut Model, n: usize) -> Generation {
    let prompts: Vec<Vec<i64>> = (0..=n % 3)
        .map(|row| {
            let length = 1 + (n * 37 + row * 11) % 100;
            (0..length).map(|at| ((n + at * 7) % 250) as i64).collect()
        })
        .collect();
    let options = GenerateOptions {
        max_new_tokens: Some(1 + n % 6),
        ignore_eos: true,
        buckets: Some(Buckets::PowersOfTwo),
        ..GenerateOptions::default()
    };
    model
        .generate(&prompts, &options, Surroundings::default(), &mut |_| {
            ControlFlow::Continue(())
        })
        .unwrap()
}

fn resident_kilobytes() -> i64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.unwrap()
        .split_whitespace()
        .next()
        .unwrap()
        .parse()
        .unwrap()
}

/// Warm-up, then so many requests.
fn stays_steady(model: &mut Model, compiles: &dyn Fn() -> usize, count: usize) {
    let shapes: BTreeSet<_> = (0..SERIES).map(|n| shape_of(&request(model, n))).collect();
    let (before, resident) = (compiles(), resident_kilobytes());
    for n in 0..count {
        let generation = request(model, n % SERIES);
        assert!(shapes.contains(&shape_of(&generation)), "request {n}");
    }
    assert_eq!(compiles(), before, "something compiled in a warm model");
    let grown = resident_kilobytes() - resident;
    assert!(grown < 8 * 1024, "{grown} kB more after {count} requests");
}

fn shape_of(generation: &Generation) -> (i64, i64, i64) {
    let shapes = generation.shapes;
    (shapes.batch, shapes.prompt, shapes.capacity)
}

#[test]
fn memory_stays_steady_on_the_default_ops() {
    let mut model = load("qwen3-tied", "config.json", Dtype::Float32);
    stays_steady(&mut model, &|| 0, 96);
}

/// A thousand requests with a kernel in every slot. Minutes: `cargo test -- --ignored`.
#[test]
#[ignore = "takes minutes"]
fn nothing_compiles_in_a_warm_model_with_kernels() {
    let mut model = load("qwen3-tied", "config.json", Dtype::Float32);
    let mut options = KernelizeOptions::default();
    let index = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../kernels-index");
    for (op, name, symbol) in [
        ("attention", "attention", "attention"),
        ("decode_attention", "decode-attention", "decode_attention"),
        ("mlp", "swiglu-mlp", "SwiGLUMLP"),
        ("rms_norm", "rms-norm", "RMSNorm"),
        ("rotary", "rotary", "rotary_pos_emb"),
    ] {
        let reference = format!("{}:{symbol}", index.join(name).display());
        options.add_override(op, &reference).unwrap();
    }
    let config = KernelConfig {
        inherit_mapping: false,
        ..KernelConfig::default()
    };
    let cache = tempfile::tempdir().unwrap();
    let registry = Registry::builder()
        .cache_dir(cache.path())
        .offline(true)
        .build()
        .unwrap();
    let bridge =
        Bridge::start(&Environment::discover().unwrap(), BridgeOptions::default()).unwrap();
    let mut source = || Ok(bridge.clone());
    let report = kernelize(&mut model, &config, &registry, &mut source, &options).unwrap();
    assert!(
        report
            .entries
            .iter()
            .all(|entry| entry.replaced == entry.total)
    );
    let compiles = || bridge.compile_count().unwrap();
    stays_steady(&mut model, &compiles, 1000);
}
