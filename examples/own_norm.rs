//! Puts an implementation of one's own into an op slot: here an RMSNorm that counts its calls.
//!
//! ```text
//! cargo run --release -p kernel-model --example own_norm -- DIRECTORY
//! ```
//!
//! A slot is a trait of `kernel_model::ops`; whatever implements it takes the place of the default,
//! in the same way as a Hub kernel does. Nothing here needs Python.

use std::error::Error;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use kernel_model::generate::Surroundings;
use kernel_model::ops::{DefaultNorm, Norm};
use kernel_model::sampling::SamplingOptions;
use kernel_model::{GenerateOptions, LoadOptions, Model, Result};
use tch::Tensor;

/// RMSNorm that knows how often it was called.
#[derive(Default)]
struct CountedNorm {
    calls: AtomicUsize,
}

impl Norm for CountedNorm {
    fn forward(&self, hidden: &Tensor, weight: &Tensor, eps: f64) -> Result<Tensor> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        DefaultNorm.forward(hidden, weight, eps)
    }

    fn name(&self) -> &'static str {
        "counted"
    }
}

#[expect(clippy::print_stdout, reason = "a program that talks to people")]
fn main() -> Result<(), Box<dyn Error>> {
    let directory = std::env::args()
        .nth(1)
        .ok_or("a model directory is missing")?;
    let mut model = Model::load(&PathBuf::from(directory), &LoadOptions::default())?;
    let norm = Arc::new(CountedNorm::default());
    let slot: Arc<dyn Norm> = norm.clone();
    model.set_norm(&slot);

    let options = GenerateOptions {
        max_new_tokens: Some(4),
        sampling: SamplingOptions {
            greedy: true,
            ..SamplingOptions::default()
        },
        ..GenerateOptions::default()
    };
    let prompt = vec![1, 2, 3];
    let mut go_on = |_: kernel_model::generate::Event<'_>| ControlFlow::Continue(());
    let generation = model.generate(&[prompt], &options, Surroundings::default(), &mut go_on)?;
    println!(
        "tokens {:?} with {} calls of the norm",
        generation.rows[0].tokens,
        norm.calls.load(Ordering::Relaxed)
    );
    Ok(())
}
