//! `check`: is a kernel right, does it build for each TPU, and what may it cost there?

mod report;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use kernel_spec::protocol::Request;
use kernel_spec::protocol::check::{CheckRequest, CheckResponse};

use super::bench::{Sizes, parse_shape};
use super::{Context, shown};
use crate::failure::Failure;
use crate::interrupt;
use crate::runtime::{Runtime, RuntimeError};

const EXAMPLES: &str = "\
Examples:
  kernel-cli check ./my-kernel                          every op that it offers, all TPU generations
  kernel-cli check org/flash@v1 --target v5e,v6e
  kernel-cli check ./my-kernel --op attention --shape H=32,K=8,T=4096,D=128
  kernel-cli check org/flash@v1 --model ./Qwen3-8B      at a model's shapes
  kernel-cli check ./my-kernel --json > check.json      for CI: exit code 1 where something is wrong

Sizes of the ops; those that are not named take the values of an 8 billion parameter model:
  attention, rotary_pos_emb      B batch, H query heads, K key/value heads, T tokens, D head dimension
  decode_attention               as above, with C entries of the cache, of which L are filled, for T
  RMSNorm                        R rows, H width
  SwiGLUMLP, SiluAndMul, SiLU    R rows, H width, I inner width

Figures are the compiler's estimates: nothing is measured on a TPU, and none is needed.";

#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// A kernel reference, or the folder of a kernel
    #[arg(value_name = "REF|PATH")]
    reference: String,

    /// Check one op only: attention, `decode_attention`, RMSNorm, SwiGLUMLP, SiluAndMul, SiLU or `rotary_pos_emb`
    #[arg(long, value_name = "OP")]
    op: Option<String>,
    /// TPU generations to compile for [default: v4,v5e,v5p,v6e,tpu7x]
    #[arg(long, value_name = "T,...", value_delimiter = ',')]
    target: Vec<String>,
    /// Sizes at which it is compiled, such as T=128,D=64; repeatable
    #[arg(long, value_name = "NAME=N,...", value_parser = parse_shape, conflicts_with = "model")]
    shape: Vec<Sizes>,
    /// Take the sizes from this model's config.json
    #[arg(long, value_name = "DIR")]
    model: Option<PathBuf>,
    /// Element types: float32, bfloat16, float16 [default: those of the index, else the first two]
    #[arg(long, value_name = "D,...", value_delimiter = ',')]
    dtype: Vec<String>,
    /// Leave parts out: parity, races, targets
    #[arg(long, value_name = "PART,...", value_delimiter = ',')]
    skip: Vec<String>,
    /// Seconds after which a step counts as stuck
    #[arg(long, value_name = "SECONDS", default_value_t = 120.0)]
    time_limit: f64,
    /// Steps at a time [default: one for each processor]
    #[arg(long, value_name = "N")]
    jobs: Option<usize>,
}

pub(crate) fn run(arguments: &Arguments, context: &Context<'_>) -> Result<ExitCode, Failure> {
    let output = context.output;
    let runtime = Runtime::open()?;
    interrupt::before_exit(runtime.interrupter());
    let answer = shown::request(
        &runtime,
        &Request::Check(request(arguments, context)),
        output,
        |done, total| format!(": {done} of {total}"),
    );
    let response: CheckResponse = serde_json::from_value(answer?)
        .map_err(|error| RuntimeError::Protocol(error.to_string()))?;
    if output.json {
        output.json(&response)?;
    } else {
        output.data(report::render(&response, output.verbose > 0))?;
    }
    Ok(if response.passed {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn request(arguments: &Arguments, context: &Context<'_>) -> CheckRequest {
    CheckRequest {
        reference: arguments.reference.clone(),
        op: arguments.op.clone(),
        targets: arguments.target.clone(),
        shapes: arguments
            .shape
            .iter()
            .map(|shape| shape.0.clone())
            .collect(),
        model: arguments.model.clone(),
        dtypes: arguments.dtype.clone(),
        skip: arguments.skip.clone(),
        time_limit_s: arguments.time_limit,
        jobs: arguments.jobs,
        registry: context.shared.settings(),
    }
}
