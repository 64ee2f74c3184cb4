//! `bench ab`: two arms against each other.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{ArgGroup, Args};
use kernel_spec::protocol::{BenchmarkRequest, Workload};

use super::super::Context;
use crate::failure::Failure;

#[derive(Debug, Args)]
#[command(group(ArgGroup::new("workload").required(true).multiple(true).args(["op", "model"])))]
pub(crate) struct Arguments {
    /// A kernel reference or `default`; of a whole model or a layer `default`, `config` or `OP=REF,...`
    a: String,
    /// What is compared with it: the ratio is its time over that of A
    b: String,

    /// Compare one op: attention, `decode_attention`, mlp, `rms_norm` or rotary
    #[arg(long, value_name = "OP")]
    op: Option<String>,
    /// Sizes of the op, such as T=128,D=64; repeatable
    #[arg(long, value_name = "NAME=N,...", value_parser = parse_shape, requires = "op", conflicts_with = "model")]
    shape: Vec<Sizes>,
    /// The op at this model's shapes; without --op, the whole model
    #[arg(long, value_name = "DIR")]
    model: Option<PathBuf>,
    /// One layer of the model, from 0
    #[arg(long, value_name = "N", requires = "model", conflicts_with = "op")]
    layer: Option<usize>,
    /// Prompt length of a whole model
    #[arg(long, value_name = "N", default_value_t = 128)]
    prompt_tokens: usize,
    /// Decode steps of a whole model before the cache is used again
    #[arg(long, value_name = "N", default_value_t = 64)]
    new_tokens: usize,

    /// float32 or bfloat16 [default: float32 for ops, that of config.json for models]
    #[arg(long, value_name = "DTYPE")]
    dtype: Option<String>,
    /// Seconds of measuring for each row
    #[arg(long, value_name = "SECONDS", default_value_t = 5.0)]
    budget: f64,
    /// Confidence of the intervals, all rows together
    #[arg(long, value_name = "P", default_value_t = 0.95)]
    confidence: f64,
    /// Seed of inputs and of the order within pairs
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Threads for libtorch and XLA
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// What the processor's caches hold when a sample begins: what the call before left, or nothing
    #[arg(long, value_enum, default_value_t = Caches::Hot)]
    cache: Caches,
    /// Let kernels that have only a TPU build run in interpret mode: compared, and never judged
    #[arg(long)]
    interpret: bool,
    /// Each arm in a process of its own, for kernels that cannot share one
    #[arg(long)]
    apart: bool,
    /// Estimate for these TPU generations with their compiler, and measure nothing: v5e,v6e,...
    #[arg(
        long,
        value_name = "T,...",
        value_delimiter = ',',
        requires = "op",
        conflicts_with_all = ["budget", "confidence", "interpret", "cache", "apart"]
    )]
    target: Vec<String>,
    /// Write the record, all samples included, to this file
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Caches {
    Hot,
    Flushed,
}

/// Named sizes of an op.
#[derive(Debug, Clone)]
pub(in crate::commands) struct Sizes(pub(in crate::commands) BTreeMap<String, usize>);

/// Reads sizes of the form `T=128,D=64`.
pub(in crate::commands) fn parse_shape(text: &str) -> Result<Sizes, String> {
    let size = |word: &str| {
        let (name, value) = word
            .split_once('=')
            .ok_or_else(|| format!("`{word}` is not of the form NAME=N"))?;
        let value = value
            .trim()
            .parse()
            .map_err(|_| format!("`{value}` is not a size"))?;
        Ok((name.trim().to_owned(), value))
    };
    text.split(',')
        .map(size)
        .collect::<Result<_, String>>()
        .map(Sizes)
}

pub(crate) fn run(arguments: &Arguments, context: &Context<'_>) -> Result<ExitCode, Failure> {
    let comparison = request(arguments, context)?;
    let output = arguments.output.as_deref();
    if arguments.target.is_empty() {
        return super::measured::run(comparison, output, context);
    }
    super::estimated::run(comparison, &arguments.target, output, context)
}

fn request(arguments: &Arguments, context: &Context<'_>) -> Result<BenchmarkRequest, Failure> {
    let shapes = || {
        arguments
            .shape
            .iter()
            .map(|shape| shape.0.clone())
            .collect()
    };
    let workload = match (&arguments.op, &arguments.model) {
        (Some(op), Some(model)) => Workload::OpOfModel {
            op: op.clone(),
            model: model.clone(),
        },
        (Some(op), None) => Workload::Op {
            op: op.clone(),
            shapes: shapes(),
        },
        (None, model) => of_model(arguments, model.clone().unwrap_or_default()),
    };
    let apart = if arguments.apart {
        let program = std::env::current_exe()
            .map_err(|error| Failure::io("find", Path::new("kernel-cli"), &error))?;
        Some(program)
    } else {
        None
    };
    Ok(BenchmarkRequest {
        a: arguments.a.clone(),
        b: arguments.b.clone(),
        workload,
        dtype: arguments.dtype.clone(),
        budget_s: arguments.budget,
        confidence: arguments.confidence,
        seed: arguments.seed,
        flush_caches: arguments.cache == Caches::Flushed,
        threads: arguments.threads,
        interpret: arguments.interpret,
        apart,
        registry: context.shared.settings(),
    })
}

fn of_model(arguments: &Arguments, model: PathBuf) -> Workload {
    let (prompt_tokens, new_tokens) = (arguments.prompt_tokens, arguments.new_tokens);
    match arguments.layer {
        Some(layer) => Workload::Layer {
            model,
            layer,
            prompt_tokens,
            new_tokens,
        },
        None => Workload::Model {
            model,
            prompt_tokens,
            new_tokens,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_are_read_or_named() {
        let sizes = parse_shape("T=128, D=64").unwrap().0;
        assert_eq!((sizes["T"], sizes["D"]), (128, 64));
        assert!(parse_shape("T").unwrap_err().contains("`T`"));
        assert!(parse_shape("T=x").unwrap_err().contains("`x`"));
    }
}
