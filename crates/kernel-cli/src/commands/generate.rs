//! `generate`: continue prompts with a model.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{ArgGroup, Args};
use comfy_table::presets::NOTHING;
use comfy_table::{ContentArrangement, Table};
use indicatif::ProgressBar;
use kernel_spec::protocol::{
    Event, GenerateRequest, GenerateResponse, KernelChoice, KernelEntry, Prompt, Request,
    SamplingChoice,
};
use serde_json::{Value, json};

use super::Context;
use crate::failure::Failure;
use crate::interrupt;
use crate::output::Output;
use crate::runtime::{Runtime, RuntimeError};

#[derive(Debug, Args)]
#[command(group(ArgGroup::new("input").required(true).args(["prompt", "prompt_ids", "chat"])))]
pub(crate) struct Arguments {
    /// Model directory: config.json, safetensors, tokenizer.json
    #[arg(long, value_name = "DIR")]
    model: PathBuf,

    /// A text to continue; repeat it for a batch
    #[arg(long, value_name = "TEXT", help_heading = "Prompt")]
    prompt: Vec<String>,
    /// Token ids to continue; repeat it for a batch, rows may differ in length
    #[arg(long, value_name = "1,2,3", value_parser = parse_ids, help_heading = "Prompt")]
    prompt_ids: Vec<Ids>,
    /// A message for the model's chat template
    #[arg(long, value_name = "TEXT", help_heading = "Prompt")]
    chat: Option<String>,
    /// The system's message before it
    #[arg(long, value_name = "TEXT", requires = "chat", help_heading = "Prompt")]
    system_prompt: Option<String>,

    /// New tokens at most [default: that of generation_config.json, else 128]
    #[arg(long, value_name = "N", help_heading = "Generation")]
    max_new_tokens: Option<usize>,
    /// Always take the most probable token
    #[arg(long, conflicts_with_all = ["temperature", "top_k", "top_p", "min_p"], help_heading = "Generation")]
    greedy: bool,
    /// Divide the logits by this
    #[arg(long, value_name = "X", help_heading = "Generation")]
    temperature: Option<f64>,
    /// Draw from so many of the most probable tokens
    #[arg(long, value_name = "K", help_heading = "Generation")]
    top_k: Option<usize>,
    /// Draw from the smallest set with this probability
    #[arg(long, value_name = "P", help_heading = "Generation")]
    top_p: Option<f64>,
    /// Leave out tokens below this share of the largest probability
    #[arg(long, value_name = "P", help_heading = "Generation")]
    min_p: Option<f64>,
    /// Make tokens that the row holds less probable
    #[arg(long, value_name = "X", help_heading = "Generation")]
    repetition_penalty: Option<f64>,
    /// Seed of the random numbers
    #[arg(long, value_name = "N", help_heading = "Generation")]
    seed: Option<u64>,
    /// Go on after an end-of-sequence token
    #[arg(long, help_heading = "Generation")]
    ignore_eos: bool,
    /// End a row at this text; repeatable
    #[arg(long, value_name = "TEXT", help_heading = "Generation")]
    stop: Vec<String>,
    /// Write all logits to a safetensors file
    #[arg(long, value_name = "FILE", help_heading = "Generation")]
    dump_logits: Option<PathBuf>,

    /// float32 or bfloat16 [default: that of config.json]
    #[arg(long, value_name = "DTYPE", help_heading = "Where it runs")]
    dtype: Option<String>,
    /// auto, cpu or tpu
    #[arg(
        long,
        value_name = "DEVICE",
        default_value = "auto",
        help_heading = "Where it runs"
    )]
    device: String,
    /// Tensor-parallel ranks
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        help_heading = "Where it runs"
    )]
    tp: usize,
    /// Threads for libtorch and XLA
    #[arg(long, value_name = "N", help_heading = "Where it runs")]
    threads: Option<usize>,

    /// Take the kernel config from this file, or `off` for no kernels
    #[arg(long = "kernels", value_name = "FILE|off", help_heading = "Kernels")]
    kernels: Option<PathBuf>,
    /// Take this kernel for an op; without a reference, the default op; repeatable
    #[arg(long = "kernel", value_name = "OP=REF", value_parser = parse_override, help_heading = "Kernels")]
    overrides: Vec<(String, String)>,
    /// What happens when a kernel cannot be used: warn, error or silent
    #[arg(long, value_name = "POLICY", value_parser = ["warn", "error", "silent"], help_heading = "Kernels")]
    fallback: Option<String>,
    /// On a CPU, run kernels that have only a TPU build, in interpret mode: right, and slow
    #[arg(long, help_heading = "Kernels")]
    interpret: bool,
}

#[derive(Debug, Clone)]
struct Ids(Vec<i64>);

fn parse_ids(text: &str) -> Result<Ids, String> {
    let id = |word: &str| {
        word.trim()
            .parse::<i64>()
            .map_err(|_| format!("`{}` is not a token id", word.trim()))
    };
    text.split(',').map(id).collect::<Result<_, _>>().map(Ids)
}

fn parse_override(text: &str) -> Result<(String, String), String> {
    let (op, reference) = text.split_once('=').ok_or("it is not of the form OP=REF")?;
    Ok((op.trim().to_owned(), reference.trim().to_owned()))
}

pub(crate) fn run(arguments: &Arguments, context: &Context<'_>) -> Result<ExitCode, Failure> {
    let output = context.output;
    let runtime = Runtime::open()?;
    interrupt::before_exit(runtime.interrupter());
    let request = request(arguments, context);
    let rows = match &request.prompt {
        Prompt::Texts(texts) => texts.len(),
        Prompt::Chat { .. } => 1,
        Prompt::Ids(rows) => rows.len(),
    };
    let mut screen = Screen {
        output,
        streams: rows == 1 && !output.json,
        bar: None,
        mid_line: false,
        failure: None,
    };
    let answer = runtime.request(&Request::Generate(request), &mut |event| screen.show(event));
    let Screen {
        streams,
        mid_line,
        failure,
        bar,
        ..
    } = screen;
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    if let Some(failure) = failure {
        return Err(failure);
    }
    let answer: GenerateResponse = serde_json::from_value(answer?)
        .map_err(|error| RuntimeError::Protocol(error.to_string()))?;
    if output.json {
        output.json(&document(&answer))?;
    } else {
        print_rows(&answer, streams, mid_line, output)?;
        output.note(summary(&answer));
    }
    if answer.finish.iter().any(|finish| finish == "cancelled") {
        return Ok(ExitCode::from(interrupt::EXIT_CODE));
    }
    Ok(ExitCode::SUCCESS)
}

fn request(arguments: &Arguments, context: &Context<'_>) -> GenerateRequest {
    let prompt = if let Some(user) = &arguments.chat {
        Prompt::Chat {
            user: user.clone(),
            system: arguments.system_prompt.clone(),
        }
    } else if arguments.prompt_ids.is_empty() {
        Prompt::Texts(arguments.prompt.clone())
    } else {
        Prompt::Ids(
            arguments
                .prompt_ids
                .iter()
                .map(|row| row.0.clone())
                .collect(),
        )
    };
    let off = arguments
        .kernels
        .as_ref()
        .is_some_and(|path| path.as_os_str() == "off");
    GenerateRequest {
        model: arguments.model.clone(),
        prompt,
        max_new_tokens: arguments.max_new_tokens,
        sampling: SamplingChoice {
            greedy: arguments.greedy,
            temperature: arguments.temperature,
            top_k: arguments.top_k,
            top_p: arguments.top_p,
            min_p: arguments.min_p,
            repetition_penalty: arguments.repetition_penalty,
            seed: arguments.seed,
        },
        dtype: arguments.dtype.clone(),
        device: arguments.device.clone(),
        tp_size: arguments.tp,
        kernels: KernelChoice {
            off,
            config: arguments.kernels.clone().filter(|_| !off),
            overrides: arguments.overrides.clone(),
            fallback: arguments.fallback.clone(),
            interpret: arguments.interpret,
        },
        ignore_eos: arguments.ignore_eos,
        stop_strings: arguments.stop.clone(),
        dump_logits: arguments.dump_logits.clone(),
        registry: context.shared.settings(),
        threads: arguments.threads,
    }
}

/// Shows events as they come.
struct Screen<'a> {
    output: &'a Output,
    /// Whether text goes to standard output as it is made.
    streams: bool,
    bar: Option<ProgressBar>,
    /// Whether the last text did not end a line.
    mid_line: bool,
    failure: Option<Failure>,
}

impl Screen<'_> {
    fn show(&mut self, event: Event) {
        if !matches!(event, Event::Progress { .. })
            && let Some(bar) = self.bar.take()
        {
            bar.finish_and_clear();
        }
        // What is said after the text begins a line of its own.
        if self.mid_line && matches!(event, Event::Note { .. }) && self.failure.is_none() {
            self.mid_line = false;
            self.failure = self.output.line("").err();
        }
        match event {
            Event::Progress { stage, done, total } => {
                let bar = self.bar.get_or_insert_with(|| self.output.step_bar("", 0));
                bar.set_message(match total {
                    0 => stage,
                    _ => format!("{stage}: {}%", done * 100 / total),
                });
            }
            Event::Note { level, message } if level == "warning" => self.output.warning(message),
            Event::Note { message, .. } => self.output.note(message),
            Event::Kernels { device, entries } if !self.output.quiet => {
                self.output.message(&report(&device, &entries));
            }
            Event::Text { text, .. } if self.streams && self.failure.is_none() => {
                self.mid_line = !text.ends_with('\n');
                self.failure = self.output.data(text).err();
            }
            _ => {}
        }
    }
}

/// What runs on what, as a table.
fn report(device: &str, entries: &[KernelEntry]) -> String {
    let mut table = Table::new();
    table
        .load_preset(NOTHING)
        .set_content_arrangement(ContentArrangement::Dynamic);
    table.set_header(["op", "replaced", "runs on", "why"]);
    for entry in entries {
        table.add_row([
            entry.op.clone(),
            format!("{} of {}", entry.replaced, entry.total),
            entry.implementation.clone(),
            entry.reason.clone(),
        ]);
    }
    format!("device: {device}\n{}\n", table.trim_fmt())
}

fn print_rows(
    answer: &GenerateResponse,
    streamed: bool,
    mid_line: bool,
    output: &Output,
) -> Result<(), Failure> {
    for (row, (text, tokens)) in answer.texts.iter().zip(&answer.tokens).enumerate() {
        match text {
            Some(_) if streamed && mid_line => output.line("")?,
            Some(_) if streamed => {}
            Some(text) => output.line(format!("[{row}] {text}"))?,
            None => {
                let ids: Vec<String> = tokens.iter().map(ToString::to_string).collect();
                output.line(ids.join(","))?;
            }
        }
    }
    Ok(())
}

fn summary(answer: &GenerateResponse) -> String {
    let timings = &answer.timings;
    let prompt: usize = answer.prompt_tokens.iter().sum();
    let tokens: usize = answer.tokens.iter().map(Vec::len).sum();
    format!(
        "{prompt} prompt tokens in {:.2} s, {tokens} new tokens at {:.1} tokens/s, loaded in {:.2} s, \
         {} compiles, {} on {}",
        timings.prefill_s,
        timings.decode_tokens_per_s,
        timings.load_s,
        answer.compiles,
        answer.dtype,
        answer.device
    )
}

/// The document of `--json`. One row is not wrapped in lists; several are.
fn document(answer: &GenerateResponse) -> Value {
    fn one_or_all<T: serde::Serialize>(rows: &[T]) -> Value {
        match rows {
            [row] => json!(row),
            rows => json!(rows),
        }
    }
    json!({
        "text": one_or_all(&answer.texts),
        "prompt_tokens": one_or_all(&answer.prompt_tokens),
        "tokens": one_or_all(&answer.tokens),
        "finish": one_or_all(&answer.finish),
        "device": answer.device,
        "dtype": answer.dtype,
        "kernels": answer.kernels,
        "timings": answer.timings,
        "compiles": answer.compiles,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_and_overrides_are_read_or_named() {
        assert_eq!(parse_ids("1, 2,3").unwrap().0, [1, 2, 3]);
        assert!(parse_ids("1,,3").unwrap_err().contains("``"));
        assert_eq!(
            parse_override("RMSNorm=").unwrap(),
            ("RMSNorm".into(), String::new())
        );
        assert!(parse_override("RMSNorm").is_err());
    }

    #[test]
    fn one_row_is_not_wrapped_in_lists() {
        let mut answer = GenerateResponse {
            texts: vec![Some("a".into())],
            prompt_tokens: vec![3],
            tokens: vec![vec![1, 2]],
            finish: vec!["stop".into()],
            device: "cpu".into(),
            dtype: "float32".into(),
            kernels: Vec::new(),
            timings: kernel_spec::protocol::Timings::default(),
            compiles: 0,
        };
        assert_eq!(document(&answer)["tokens"], json!([1, 2]));
        answer.tokens.push(vec![]);
        assert_eq!(document(&answer)["tokens"], json!([[1, 2], []]));
    }
}
