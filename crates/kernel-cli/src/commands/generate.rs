//! `generate`: continue prompts with a model.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::{ArgGroup, Args};
use comfy_table::presets::NOTHING;
use comfy_table::{ContentArrangement, Table};
use indicatif::ProgressBar;
use kernel_registry::system::python::PythonEnvironment;
use kernel_registry::tpu;
use kernel_spec::protocol::{
    Event, GenerateRequest, GenerateResponse, KernelChoice, KernelEntry, Prompt, Request,
    SamplingChoice,
};
use serde_json::{Value, json};

use super::Context;
use crate::failure::Failure;
use crate::interrupt;
use crate::launch::environment::{self, Host};
use crate::launch::link::Link;
use crate::launch::{self, Launch, Place};
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
    #[command(flatten)]
    parallel: Parallel,
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

/// How a model is spread over ranks.
#[derive(Debug, Args)]
#[command(next_help_heading = "Several devices")]
struct Parallel {
    /// Spread the model over N ranks, a process and a device each [default: those of torchrun, else 1]
    #[arg(long, value_name = "N")]
    tp: Option<usize>,
    /// Styles by module over the model's own: JSON, or a file with it
    #[arg(long, value_name = "FILE|JSON", value_parser = parse_tp_plan)]
    tp_plan: Option<TensorParallelPlan>,
    /// How long a rank may keep the others waiting, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 300.0, value_parser = parse_seconds)]
    tp_timeout: f64,
    /// Print what has to be set for ranks that a launcher of your own starts, and do nothing
    #[arg(long)]
    print_launch_env: bool,
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

/// A tensor-parallel plan: styles by module name.
#[derive(Debug, Clone)]
pub(crate) struct TensorParallelPlan(pub(crate) serde_json::Map<String, Value>);

/// Reads a plan that is given as JSON, or the file that is named.
pub(crate) fn parse_tp_plan(text: &str) -> Result<TensorParallelPlan, String> {
    let document = if text.trim_start().starts_with('{') {
        text.to_owned()
    } else {
        std::fs::read_to_string(text).map_err(|error| format!("cannot read `{text}`: {error}"))?
    };
    serde_json::from_str(&document)
        .map(TensorParallelPlan)
        .map_err(|error| format!("it is no JSON object of styles by module name: {error}"))
}

fn parse_seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (1.0..=86_400.0).contains(&seconds) => Ok(seconds),
        _ => Err("it is no number of seconds between 1 and 86400".to_owned()),
    }
}

fn parse_override(text: &str) -> Result<(String, String), String> {
    let (op, reference) = text.split_once('=').ok_or("it is not of the form OP=REF")?;
    Ok((op.trim().to_owned(), reference.trim().to_owned()))
}

pub(crate) fn run(arguments: &Arguments, context: &Context<'_>) -> Result<ExitCode, Failure> {
    let output = context.output;
    let place = Place::of_process()?;
    let ranks = ranks(arguments.parallel.tp, place)?;
    if arguments.parallel.print_launch_env {
        return print_launch_env(arguments, ranks, output);
    }
    let request = request(arguments, ranks, context);
    match place.filter(|place| place.ranks > 1) {
        Some(place) => {
            if let Some(code) = run_as_rank(&request, place, output)? {
                return Ok(code);
            }
        }
        None if ranks > 1 => {
            let launch = launch(arguments, ranks)?;
            return show(&request, output, |on_event| launch::run(&launch, on_event));
        }
        None => {}
    }
    let runtime = Runtime::open()?;
    interrupt::before_exit(runtime.interrupter());
    show(&request, output, |on_event| {
        let request = Request::Generate(request.clone());
        Ok(runtime.request(&request, on_event)?)
    })
}

/// Number of ranks: what the call says has to be what a launcher made of it.
fn ranks(stated: Option<usize>, place: Option<Place>) -> Result<usize, Failure> {
    match (stated, place) {
        (Some(0), _) => Err(Failure::usage("`--tp 0`: no rank cannot run a model")),
        (Some(stated), Some(place)) if stated != place.ranks => Err(Failure::usage(format!(
            "`--tp {stated}`, but the launcher started {} ranks",
            place.ranks
        ))
        .with_hint("give both the same number, or leave `--tp` out")),
        (Some(stated), _) => Ok(stated),
        (None, Some(place)) => Ok(place.ranks),
        (None, None) => Ok(1),
    }
}

fn launch(arguments: &Arguments, ranks: usize) -> Result<Launch, Failure> {
    let scan = tpu::scan();
    let host = Host::choose(&arguments.device, &scan);
    let variables = environment::variables(host, ranks, arguments.threads, &scan)?;
    let python = PythonEnvironment::find().ok_or_else(|| {
        Failure::new("python-environment", "no Python environment was found").with_hint(
            "make one with `cargo xtask env`; torchrun, which starts the ranks, is in it",
        )
    })?;
    Ok(Launch {
        ranks,
        limit: Duration::from_secs_f64(arguments.parallel.tp_timeout),
        python: python.root().join("bin/python"),
        variables,
    })
}

fn print_launch_env(
    arguments: &Arguments,
    ranks: usize,
    output: &Output,
) -> Result<ExitCode, Failure> {
    let scan = tpu::scan();
    let host = Host::choose(&arguments.device, &scan);
    let variables = environment::variables(host, ranks, arguments.threads, &scan)?;
    if output.json {
        let variables: serde_json::Map<String, Value> = variables
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value.into()))
            .collect();
        output.json(&json!({ "ranks": ranks, "environment": variables }))?;
    } else {
        output.data(environment::exports(&variables))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs as one rank of several. Nothing where this rank talks to the user itself: the first one, with no
/// supervisor to do it.
fn run_as_rank(
    request: &GenerateRequest,
    place: Place,
    output: &Output,
) -> Result<Option<ExitCode>, Failure> {
    static INTERRUPT: OnceLock<Box<dyn Fn() + Send + Sync>> = OnceLock::new();
    static ASKED: AtomicBool = AtomicBool::new(false);
    let link = Link::connect(place.rank, || {
        // The library may not be open yet.
        ASKED.store(true, Ordering::Relaxed);
        if let Some(interrupt) = INTERRUPT.get() {
            interrupt();
        }
    })?;
    if link.is_none() && place.rank == 0 {
        return Ok(None);
    }
    let work = || -> Result<Value, RuntimeError> {
        let runtime = Runtime::open()?;
        let _ = INTERRUPT.set(Box::new(runtime.interrupter()));
        if link.is_none() {
            interrupt::before_exit(runtime.interrupter());
        }
        let request = Request::Generate(request.clone());
        runtime.request(&request, &mut |event| {
            if ASKED.swap(false, Ordering::Relaxed)
                && let Some(interrupt) = INTERRUPT.get()
            {
                interrupt();
            }
            if let Some(link) = &link {
                link.send(event);
            }
        })
    };
    let outcome = work();
    let Some(link) = &link else {
        // What the other ranks did, the first one says.
        outcome?;
        return Ok(Some(ExitCode::SUCCESS));
    };
    let (event, code) = match outcome {
        Ok(response) => (Event::Done { response }, ExitCode::SUCCESS),
        Err(error) => (Event::Failed(error.into_told()), ExitCode::FAILURE),
    };
    link.send(event);
    let _ = output;
    Ok(Some(code))
}

/// Shows what happens while `work` is done, and then its answer.
fn show(
    request: &GenerateRequest,
    output: &Output,
    work: impl FnOnce(&mut (dyn FnMut(Event) + Send)) -> Result<Value, Failure>,
) -> Result<ExitCode, Failure> {
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
    let answer = work(&mut |event| screen.show(event));
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

fn request(arguments: &Arguments, ranks: usize, context: &Context<'_>) -> GenerateRequest {
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
        tp_size: ranks,
        tp_plan: arguments.parallel.tp_plan.clone().map(|plan| plan.0),
        tp_timeout_s: arguments.parallel.tp_timeout,
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
        "parallel": answer.parallel,
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
            parallel: None,
        };
        assert_eq!(document(&answer)["tokens"], json!([1, 2]));
        answer.tokens.push(vec![]);
        assert_eq!(document(&answer)["tokens"], json!([[1, 2], []]));
    }
}
