//! What it costs to load a kernel once torch and JAX are imported.

#![allow(clippy::unwrap_used, reason = "a benchmark may panic")]

#[path = "../tests/support/mod.rs"]
mod support;

use std::cell::Cell;
use std::hint::black_box;

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use kernel_spec::variant::Backend;
use support::{Sample, bridge, of_index};

fn load(criterion: &mut Criterion) {
    let bridge = bridge();
    // Imports Pallas, which every later kernel finds.
    bridge.load(&of_index("attention", Backend::Tpu)).unwrap();
    let counter = Cell::new(0);
    // A kernel is loaded once, so each round brings one with another text.
    criterion.bench_function("load a kernel with one op", |bencher| {
        bencher.iter_batched(
            || {
                counter.set(counter.get() + 1);
                let text = format!(
                    "import jax\nfrom torch_tpu.pallas import jax_op\nNUMBER = {}\n\
                     def _same(x: jax.Array) -> jax.Array:\n    return x\n\
                     same = jax_op('load::same', _same)\n",
                    counter.get()
                );
                Sample::new("_load", &[("__init__.py", &text)]).verified()
            },
            |kernel| black_box(bridge.load(&kernel).unwrap()),
            BatchSize::SmallInput,
        );
    });
}

criterion_group!(benches, load);
criterion_main!(benches);
