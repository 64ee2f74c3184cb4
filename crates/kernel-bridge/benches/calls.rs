//! What a call costs on each way from Rust to a kernel, side by side with libtorch's own op and with
//! the public Python route. One thread: run it as `taskset -c 0 cargo bench --package kernel-bridge
//! --bench calls`. The figures are in docs/bridge-costs.md.

#![allow(clippy::unwrap_used, reason = "a benchmark may panic")]

#[path = "../tests/support/mod.rs"]
mod support;

use std::cell::Cell;
use std::hint::black_box;

use criterion::{
    BenchmarkGroup, Criterion, criterion_group, criterion_main, measurement::WallTime,
};
use kernel_bridge::{Arg, CpuPath, Op};
use support::{Sample, bridge};
use tch::{Device, Kind, Tensor};

const KERNEL: &str = r#"
import jax
import jax.numpy as jnp
import torch
from torch_tpu.pallas import jax_op

def _gate(x: jax.Array, y: jax.Array) -> jax.Array:
    return jax.nn.silu(x) * y

def _norm(x: jax.Array, weight: jax.Array, *, eps: float) -> jax.Array:
    wide = x.astype(jnp.float32)
    scale = jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + eps)
    return (wide * scale).astype(x.dtype) * weight

gate = jax_op("bench::gate", _gate)
norm = jax_op("bench::norm", _norm)
_jitted = jax.jit(_gate)

def gate_by_from_dlpack(x, y):
    return torch.from_dlpack(_jitted(jax.dlpack.from_dlpack(x), jax.dlpack.from_dlpack(y)))

def torch_op(x):
    return torch.relu(x)
"#;

/// A function of the kernel above.
fn op(name: &str) -> Op {
    let sample = Sample::new("_bench", &[("__init__.py", KERNEL)]);
    let kernel = bridge().load(&sample.verified()).unwrap();
    kernel.function(name).unwrap()
}

/// The paths that a call of a JAX op can take. PJRT is left out where there is no plug-in.
fn paths() -> Vec<(&'static str, CpuPath)> {
    let mut paths = vec![("python op", CpuPath::Python), ("jax", CpuPath::Jax)];
    if bridge().cpu_path() == CpuPath::Pjrt {
        paths.push(("pjrt", CpuPath::Auto));
    }
    paths
}

/// Small tensors: the border is all that costs.
fn small(criterion: &mut Criterion) {
    tch::set_num_threads(1);
    let mut group = criterion.benchmark_group("silu(x) * y, [8, 128] f32");
    let random = || Tensor::randn([8, 128], (Kind::Float, Device::Cpu));
    let (x, y) = (random(), random());
    group.bench_function("libtorch", |bencher| {
        bencher.iter(|| black_box(x.silu() * &y));
    });
    let call = |op: &Op, x: &Tensor, y: &Tensor| {
        black_box(op.call(&[Arg::Tensor(x), Arg::Tensor(y)], &[]).unwrap());
    };
    // More places in memory than are remembered, so that each call imports anew.
    let many: Vec<(Tensor, Tensor)> = (0..64).map(|_| (random(), random())).collect();
    let gate = op("gate");
    for (name, path) in paths() {
        bridge().set_cpu_path(path);
        call(&gate, &x, &y);
        let next = Cell::new(0);
        group.bench_function(format!("{name}, new tensors"), |bencher| {
            bencher.iter(|| {
                next.set((next.get() + 1) % many.len());
                let (x, y) = &many[next.get()];
                call(&gate, x, y);
            });
        });
        group.bench_function(format!("{name}, the same tensors"), |bencher| {
            bencher.iter(|| call(&gate, &x, &y));
        });
    }
    bridge().set_cpu_path(CpuPath::Auto);
    let public = op("gate_by_from_dlpack");
    group.bench_function("public from_dlpack", |bencher| {
        bencher.iter(|| call(&public, &x, &y));
    });
    let python = op("torch_op");
    group.bench_function("libtorch relu", |bencher| {
        bencher.iter(|| black_box(x.relu()));
    });
    group.bench_function("relu by a Python function of torch", |bencher| {
        bencher.iter(|| black_box(python.call(&[Arg::Tensor(&x)], &[]).unwrap()));
    });
    group.finish();
}

/// RMSNorm of a prompt: the work is what costs.
fn norm(criterion: &mut Criterion) {
    tch::set_num_threads(1);
    for kind in [Kind::BFloat16, Kind::Float] {
        let mut group = criterion.benchmark_group(format!("RMSNorm, [512, 4096] {kind:?}"));
        let x = Tensor::randn([512, 4096], (Kind::Float, Device::Cpu)).to_kind(kind);
        let weight = Tensor::randn([4096], (Kind::Float, Device::Cpu)).to_kind(kind);
        bench_norm(&mut group, &x, &weight);
        group.finish();
    }
}

fn bench_norm(group: &mut BenchmarkGroup<'_, WallTime>, x: &Tensor, weight: &Tensor) {
    let eps = 1e-6;
    // As transformers has it, which is what a model runs without a kernel.
    group.bench_function("libtorch", |bencher| {
        bencher.iter(|| {
            let wide = x.to_kind(Kind::Float);
            let mean = wide.square().mean_dim(-1, true, Kind::Float);
            let normed = wide * (mean + eps).rsqrt();
            black_box(normed.to_kind(x.kind()) * weight)
        });
    });
    let norm = op("norm");
    let call = || {
        let keywords = [("eps", Arg::Float(eps))];
        norm.call(&[Arg::Tensor(x), Arg::Tensor(weight)], &keywords)
            .unwrap()
    };
    for (name, path) in paths() {
        bridge().set_cpu_path(path);
        call();
        group.bench_function(name, |bencher| bencher.iter(|| black_box(call())));
    }
    bridge().set_cpu_path(CpuPath::Auto);
}

criterion_group!(benches, small, norm);
criterion_main!(benches);
