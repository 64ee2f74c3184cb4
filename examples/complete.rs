//! Loads a model directory, answers one question, and reports how fast it was.
//!
//! ```text
//! cargo run --release -p kernel-model --example complete -- DIRECTORY "What is the capital of France?" \
//!     [float32|bfloat16] [kernels]
//! ```

use std::error::Error;
use std::io::Write;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::Instant;

use kernel_bridge::{Bridge, BridgeOptions, Environment};
use kernel_model::chat::{ChatOptions, ChatTemplate, Message};
use kernel_model::generate::{Event, Surroundings};
use kernel_model::sampling::SamplingOptions;
use kernel_model::{
    Dtype, GenerateOptions, GenerationConfig, KernelizeOptions, LoadOptions, Model, Tokenizer,
    kernelize,
};
use kernel_registry::Registry;
use kernel_spec::KernelConfig;

#[expect(
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a program that talks to people"
)]
fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let directory = PathBuf::from(arguments.next().ok_or("a model directory is missing")?);
    let question = arguments.next().ok_or("a question is missing")?;
    let dtype = arguments
        .next()
        .map(|name| Dtype::by_name(&name))
        .transpose()?;
    let with_kernels = arguments.next().is_some_and(|word| word == "kernels");

    let started = Instant::now();
    let mut model = Model::load(
        &directory,
        &LoadOptions {
            dtype,
            ..LoadOptions::default()
        },
    )?;
    let tokenizer = Tokenizer::from_directory(&directory)?.ok_or("there is no tokenizer.json")?;
    let config = GenerationConfig::from_directory(&directory)?;
    eprintln!("loaded in {:.3} s", started.elapsed().as_secs_f64());

    if with_kernels {
        let registry = Registry::builder().build()?;
        let wanted = KernelConfig::from_model_config(&model.config().raw)?;
        let mut bridge = || Bridge::start(&Environment::discover()?, BridgeOptions::default());
        let started = Instant::now();
        let options = KernelizeOptions::from_environment()?;
        let report = kernelize(&mut model, &wanted, &registry, &mut bridge, &options)?;
        for entry in &report.entries {
            eprintln!(
                "{:17} {:45} {} of {}: {}",
                entry.op, entry.implementation, entry.replaced, entry.total, entry.reason
            );
        }
        eprintln!("kernels in {:.3} s", started.elapsed().as_secs_f64());
    }

    let template = ChatTemplate::from_directory(&directory)?;
    let text = template.render(&[Message::user(question)], &ChatOptions::default())?;
    let prompt = tokenizer.encode(&text, false)?;
    let options = GenerateOptions {
        max_new_tokens: Some(128),
        sampling: SamplingOptions {
            greedy: true,
            ..SamplingOptions::default()
        },
        ..GenerateOptions::default()
    };
    let surroundings = Surroundings {
        tokenizer: Some(&tokenizer),
        generation_config: Some(&config),
        cancel: None,
    };
    let mut out = std::io::stdout();
    let mut show = |event: Event<'_>| {
        let Event::Text { text, .. } = event else {
            return ControlFlow::Continue(());
        };
        match write!(out, "{text}").and_then(|()| out.flush()) {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        }
    };
    let generation = model.generate(&[prompt], &options, surroundings, &mut show)?;
    println!();
    eprintln!(
        "{} prompt tokens in {:.3} s, {} tokens at {:.1} tokens/s",
        generation.rows[0].prompt_tokens,
        generation.prefill.as_secs_f64(),
        generation.decode_tokens,
        generation.decode_tokens as f64 / generation.decode.as_secs_f64()
    );
    Ok(())
}
