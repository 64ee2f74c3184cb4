//! Measures a model on the CPU and prints one line of JSON: what `cargo xtask speed` compares with
//! transformers.
//!
//! Usage: measure MODEL DTYPE THREADS PROMPT_TOKENS NEW_TOKENS
#![allow(clippy::print_stdout)]

use std::hint::black_box;
use std::ops::ControlFlow;
use std::path::Path;
use std::time::Instant;

use kernel_model::generate::{Generation, Surroundings};
use kernel_model::{Dtype, GenerateOptions, LoadOptions, Model};

type Error = Box<dyn std::error::Error>;

/// Runs of each kind; the best one counts, as the machine is only ever slower than it could be.
const RUNS: usize = 3;

fn main() -> Result<(), Error> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, dtype, threads, prompt, new] = &*arguments else {
        return Err("usage: measure MODEL DTYPE THREADS PROMPT_TOKENS NEW_TOKENS".into());
    };
    let threads: usize = threads.parse()?;
    let (prompt, new): (usize, usize) = (prompt.parse()?, new.parse()?);
    tch::set_num_threads(i32::try_from(threads)?);

    let started = Instant::now();
    let options = LoadOptions {
        dtype: Some(Dtype::by_name(dtype)?),
        ..LoadOptions::default()
    };
    let mut model = Model::load(Path::new(model), &options)?;
    let load = started.elapsed().as_secs_f64();
    generate(&mut model, 16, 1)?;
    let first_token = started.elapsed().as_secs_f64();

    let mut prefill = f64::INFINITY;
    let mut decode = f64::INFINITY;
    for _ in 0..RUNS {
        let generation = generate(&mut model, prompt, 1)?;
        prefill = prefill.min(generation.prefill.as_secs_f64() / prompt as f64);
        let generation = generate(&mut model, 16, new)?;
        decode = decode.min(generation.decode.as_secs_f64() / generation.decode_tokens as f64);
    }
    let peak = peak_resident_bytes()?;
    println!(
        "{}",
        serde_json::json!({
            "load_s": load,
            "first_token_s": first_token,
            "prefill_tokens_per_s": 1.0 / prefill,
            "decode_tokens_per_s": 1.0 / decode,
            "peak_resident_bytes": peak,
            // Last, since it takes memory of its own.
            "read_bytes_per_s": read_bandwidth(threads),
        })
    );
    Ok(())
}

fn generate(model: &mut Model, prompt: usize, new: usize) -> Result<Generation, Error> {
    let vocabulary = model.config().vocab_size;
    let ids = (0..prompt as i64)
        .map(|n| (n * 7919 + 11) % vocabulary)
        .collect();
    let options = GenerateOptions {
        max_new_tokens: Some(new),
        ignore_eos: true,
        sampling: kernel_model::sampling::SamplingOptions {
            greedy: true,
            ..Default::default()
        },
        ..GenerateOptions::default()
    };
    let generation = model.generate(&[ids], &options, Surroundings::default(), &mut |_| {
        ControlFlow::Continue(())
    })?;
    Ok(generation)
}

/// The most memory that this process has had, mapped weight files included.
fn peak_resident_bytes() -> Result<u64, Error> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kilobytes = line.and_then(|rest| rest.split_whitespace().next());
    Ok(kilobytes
        .ok_or("no VmHWM in /proc/self/status")?
        .parse::<u64>()?
        * 1024)
}

/// Bytes a second that so many threads read from memory: the limit of a decode step, which reads
/// every weight once.
fn read_bandwidth(threads: usize) -> f64 {
    /// Numbers a thread: 256 MiB, far beyond any cache.
    const NUMBERS: usize = 32 * 1024 * 1024;
    let buffers: Vec<Vec<u64>> = (0..threads).map(|n| vec![n as u64 + 1; NUMBERS]).collect();
    let best = (0..8)
        .map(|_| {
            let started = Instant::now();
            std::thread::scope(|scope| {
                for buffer in &buffers {
                    scope.spawn(|| black_box(sum(buffer)));
                }
            });
            started.elapsed().as_secs_f64()
        })
        .fold(f64::INFINITY, f64::min);
    (threads * NUMBERS * size_of::<u64>()) as f64 / best
}

/// Many sums side by side, so that reading is all that takes time.
fn sum(numbers: &[u64]) -> u64 {
    let mut sums = [0_u64; 32];
    for chunk in numbers.chunks_exact(32) {
        for (sum, number) in sums.iter_mut().zip(chunk) {
            *sum = sum.wrapping_add(*number);
        }
    }
    sums.iter().fold(0, |all, sum| all.wrapping_add(*sum))
}
