//! `plan`: what would run, from a model's config and the headers of its weight files.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use kernel_spec::plan::{Plan, PlanRequest};
use kernel_spec::protocol::{Event, KernelChoice, Request};

use super::Context;
use super::generate::{TensorParallelPlan, parse_tp_plan};
use crate::failure::Failure;
use crate::output::{self, Output, table};
use crate::runtime::{Runtime, RuntimeError};

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Model directory: config.json and, where they are there, safetensors
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    /// Tensor-parallel ranks
    #[arg(long, value_name = "N", default_value_t = 1)]
    tp: usize,
    /// Styles by module over the model's own: JSON, or a file with it
    #[arg(long, value_name = "FILE|JSON", value_parser = parse_tp_plan)]
    tp_plan: Option<TensorParallelPlan>,
    /// auto, cpu or tpu; the device need not be there
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    device: String,
    /// Generation of the TPUs: v4, v5e, v5p, v6e or v7x [default: that of this machine]
    #[arg(long, value_name = "GENERATION")]
    target: Option<String>,
    /// float32 or bfloat16 [default: that of config.json]
    #[arg(long, value_name = "DTYPE")]
    dtype: Option<String>,
    /// Rows of a batch
    #[arg(long, value_name = "N", default_value_t = 1)]
    batch: usize,
    /// Tokens that a row may have [default: the model's context]
    #[arg(long, value_name = "N")]
    tokens: Option<usize>,
    /// Take the kernel config from this file, or `off` for no kernels
    #[arg(long, value_name = "FILE|off")]
    kernels: Option<PathBuf>,
    /// List every tensor
    #[arg(long)]
    tensors: bool,
}

pub(crate) fn run(arguments: &Arguments, context: &Context<'_>) -> Result<ExitCode, Failure> {
    let output = context.output;
    let off = arguments
        .kernels
        .as_ref()
        .is_some_and(|path| path.as_os_str() == "off");
    let request = PlanRequest {
        model: arguments.model.clone(),
        device: arguments.device.clone(),
        target: arguments.target.clone(),
        dtype: arguments.dtype.clone(),
        tp_size: arguments.tp,
        tp_plan: arguments.tp_plan.clone().map(|plan| plan.0),
        kernels: KernelChoice {
            off,
            config: arguments.kernels.clone().filter(|_| !off),
            ..KernelChoice::default()
        },
        registry: context.shared.settings(),
        batch: arguments.batch,
        tokens: arguments.tokens,
    };
    let runtime = Runtime::open()?;
    let answer = runtime.request(&Request::Plan(request), &mut |event| {
        if let Event::Note { message, .. } = event {
            output.note(message);
        }
    })?;
    let plan: Plan = serde_json::from_value(answer)
        .map_err(|error| RuntimeError::Protocol(error.to_string()))?;
    if output.json {
        output.json(&plan)?;
    } else {
        print(&plan, arguments.tensors, output)?;
    }
    // What stands against it is the answer no.
    Ok(ExitCode::from(u8::from(!plan.problems.is_empty())))
}

fn print(plan: &Plan, tensors: bool, output: &Output) -> Result<(), Failure> {
    output.line(format!(
        "{} in {} on {}, {}",
        plan.family,
        plan.dtype,
        plan.device,
        match plan.tp {
            1 => "1 rank".to_owned(),
            ranks => format!("{ranks} ranks"),
        }
    ))?;
    let ops = plan.ops.iter().map(|op| {
        [
            op.op.clone(),
            op.places.to_string(),
            op.shape.clone(),
            op.implementation.clone(),
            op.reason.clone(),
        ]
    });
    let heading = ["op", "places", "on each rank", "runs on", "why"];
    output.data(format!("\n{}", table(heading, ops)))?;
    let span = |range: [i64; 2]| format!("{}..{}", range[0], range[1]);
    let ranks = plan.ranks.iter().map(|rank| {
        [
            rank.rank.to_string(),
            span(rank.heads),
            span(rank.key_value_heads),
            span(rank.vocabulary),
            output::bytes(rank.read_bytes),
            output::bytes(rank.weight_bytes),
            output::bytes(rank.cache_bytes_per_token),
            output::bytes(rank.cache_bytes),
        ]
    });
    let heading = [
        "rank",
        "heads",
        "KV heads",
        "vocabulary",
        "reads",
        "weights",
        "cache per token",
        "cache",
    ];
    output.data(format!("\n{}", table(heading, ranks)))?;
    if tensors {
        let rows = plan.tensors.iter().map(|tensor| {
            [
                tensor.name.clone(),
                tensor.count.to_string(),
                format!("{:?}", tensor.shape),
                tensor.style.clone(),
                tensor.part.clone(),
                format!("{:?}", tensor.rank_shape),
                output::bytes(tensor.rank_bytes),
            ]
        });
        let heading = [
            "tensor",
            "count",
            "shape",
            "style",
            "on rank 0",
            "shape",
            "bytes",
        ];
        output.data(format!("\n{}", table(heading, rows)))?;
    }
    if plan.tp > 1 {
        let traffic = &plan.communication;
        output.line(format!(
            "\na decode step: {} sums of {} and {} gather; in a ring, each rank sends {} (an estimate)",
            traffic.sums,
            output::bytes(traffic.bytes_per_sum),
            traffic.gathers,
            output::bytes(traffic.ring_bytes)
        ))?;
    }
    output.line(format!(
        "\nshapes that compile, at most: {} for prompts, {} for decode steps",
        plan.buckets.prefill.len(),
        plan.buckets.decode.len()
    ))?;
    for note in &plan.notes {
        output.note(note);
    }
    for problem in &plan.problems {
        output.error(&problem.message);
        if let Some(hint) = &problem.hint {
            output.labelled("hint", hint);
        }
    }
    Ok(())
}
