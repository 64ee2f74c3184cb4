//! A second process finds what the first one compiled.

#![allow(clippy::unwrap_used, reason = "helpers of tests may panic")]

mod support;

use std::path::Path;
use std::process::Command;

use kernel_bridge::{Arg, CACHE_VARIABLE, CpuPath};
use support::{Sample, bridge};
use tch::{Device, Kind, Tensor};

const KERNEL: &str = r#"
import jax
import jax.numpy as jnp
from torch_tpu.pallas import jax_op

def _gate(x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.tanh(x) @ jax.nn.silu(y)

gate = jax_op("warm::gate", _gate)
"#;

/// What a process did, as it prints it: for each compile its path, and whether it was cached.
fn compiles_of_a_process(cache: &Path) -> Vec<String> {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "one_process", "--nocapture"])
        .env(CACHE_VARIABLE, cache)
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        output.status.success(),
        "{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    text.lines()
        .filter_map(|line| line.strip_prefix("compile: "))
        .map(|line| line.split(" in ").next().unwrap().to_owned())
        .collect()
}

#[test]
fn a_second_process_compiles_nothing_and_a_damaged_artifact_is_made_again() {
    let cache = tempfile::tempdir().unwrap();
    let first = compiles_of_a_process(cache.path());
    assert!(
        !first.is_empty() && first.iter().all(|line| line.ends_with("cached false")),
        "{first:?}"
    );
    let second = compiles_of_a_process(cache.path());
    assert_eq!(second.len(), first.len());
    assert!(
        second.iter().all(|line| line.ends_with("cached true")),
        "{second:?}"
    );
    let pjrt = cache.path().join("pjrt");
    for entry in std::fs::read_dir(&pjrt).into_iter().flatten() {
        std::fs::write(entry.unwrap().path(), "torn").unwrap();
    }
    let third = compiles_of_a_process(cache.path());
    let pjrt: Vec<_> = third
        .iter()
        .filter(|line| line.starts_with("Pjrt"))
        .collect();
    assert!(
        pjrt.iter().all(|line| line.ends_with("cached false")),
        "{third:?}"
    );
}

#[test]
#[ignore = "what the test above runs in processes of its own"]
fn one_process() {
    let sample = Sample::new("_warm", &[("__init__.py", KERNEL)]);
    let bridge = bridge();
    let gate = bridge
        .load(&sample.verified())
        .unwrap()
        .function("gate")
        .unwrap();
    let x = Tensor::ones([64, 64], (Kind::Float, Device::Cpu));
    for path in [CpuPath::Jax, CpuPath::Auto] {
        bridge.set_cpu_path(path);
        gate.call(&[Arg::Tensor(&x), Arg::Tensor(&x)], &[]).unwrap();
    }
    for compile in bridge.compiles().unwrap() {
        println!(
            "compile: {:?} cached {} in {:.4} s, traced in {:.4} s",
            compile.path, compile.cached, compile.compile_seconds, compile.trace_seconds
        );
    }
}
