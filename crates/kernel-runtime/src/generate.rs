//! `generate`: load a model, put kernels into it, continue prompts.

use std::fs;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use kernel_model::chat::{ChatOptions, ChatTemplate, Message};
use kernel_model::generate::{Event as Generated, Surroundings};
use kernel_model::parallel::Group;
use kernel_model::placement::Transfer;
use kernel_model::sampling::SamplingOptions;
use kernel_model::{
    Device, DeviceRequest, Dtype, GenerateOptions, Generation, GenerationConfig, KernelReport,
    KernelizeOptions, LoadOptions, Model, ModelError, Placement, Tokenizer, kernelize,
};
use kernel_spec::KernelConfig;
use kernel_spec::protocol::{
    Event, GenerateRequest, GenerateResponse, KernelChoice, KernelEntry, ParallelReport, Prompt,
    RankReport, RegistrySettings, SamplingChoice, Timings,
};
use serde_json::Value;

use crate::Events;
use crate::failure::RuntimeError;
use crate::interface::interrupted;
use crate::ranks::{self, Ranks};
use crate::session::{self, TpuTransfer};

/// Runs the request; text goes out as it is made.
///
/// # Errors
/// Whatever is wrong with options, model, kernels under `--fallback error`, or prompts. A kernel that
/// cannot be used under the other policies is a line of the report.
pub fn run(request: &GenerateRequest, events: &Events) -> Result<GenerateResponse, RuntimeError> {
    set_threads(request.threads)?;
    let started = Instant::now();
    let device: DeviceRequest = request.device.parse()?;
    let placement = Placement::detect(device)?;
    let ranks = join(request, placement.device, events)?;
    let first = ranks.as_ref().is_none_or(Ranks::is_first);
    let dump_logits = request.dump_logits.as_ref().filter(|_| first);
    if let Some(path) = dump_logits {
        check_writable(path)?;
    }
    // Only the first rank turns text into tokens and tokens into text.
    let tokenizer = if first {
        Tokenizer::from_directory(&request.model)?
    } else {
        None
    };
    let own_prompts = || prompts(&request.prompt, tokenizer.as_ref(), &request.model);
    let prompts = match &ranks {
        Some(ranks) => ranks::from_first(&ranks.group, own_prompts)?,
        None => own_prompts()?,
    };
    let loaded = load(
        &Wanted {
            model: &request.model,
            dtype: request.dtype.as_deref(),
            device: placement.device,
            kernels: &request.kernels,
            registry: &request.registry,
            group: ranks.as_ref().map(|ranks| ranks.group.clone()),
        },
        events,
    )?;
    let Loaded {
        mut model,
        report,
        weights,
    } = loaded;
    let generation_config = GenerationConfig::from_directory(&request.model)?;
    let load = started.elapsed();

    let (entries, mut parallel) = match &ranks {
        Some(ranks) => {
            let (entries, parallel) = reports(ranks, &model, &report, [load, weights])?;
            (entries, Some(parallel))
        }
        None => (report.entries.clone(), None),
    };
    events.send(&Event::Kernels {
        device: place(&placement, parallel.as_ref()),
        entries,
    });
    let options = GenerateOptions {
        max_new_tokens: request.max_new_tokens,
        sampling: sampling(&request.sampling),
        ignore_eos: request.ignore_eos,
        stop_strings: if first {
            request.stop_strings.clone()
        } else {
            Vec::new()
        },
        keep_logits: request.dump_logits.is_some(),
        buckets: None,
    };
    let surroundings = Surroundings {
        tokenizer: tokenizer.as_ref(),
        generation_config: Some(&generation_config),
        cancel: Some(interrupted()),
    };
    let compiled_before = compile_time()?;
    let counted = model.group().map(|group| group.collectives.counts());
    let generation = model.generate(&prompts, &options, surroundings, &mut |event| {
        if let Generated::Text { row, text } = event {
            events.send(&Event::Text {
                row,
                text: text.to_owned(),
            });
        }
        ControlFlow::Continue(())
    })?;
    for incident in report.incidents.all() {
        events.warning(incident);
    }
    if let (Some(path), Some(logits)) = (dump_logits, &generation.logits) {
        logits.write(path)?;
    }
    if let (Some(parallel), Some(group), Some(before)) = (&mut parallel, model.group(), counted) {
        parallel.collectives = group.collectives.counts().since(before).total();
        parallel.collectives_per_step = generation.collectives_per_step;
    }
    let compile = compile_time()?.saturating_sub(compiled_before);
    let mut response = response(&generation, &model, &report, load, compile)?;
    if let Some(ranks) = &ranks {
        response.kernels = ranks::merge_reports(ranks::from_all(&ranks.group, &response.kernels)?);
    }
    response.parallel = parallel;
    Ok(response)
}

/// Where it runs, and why there.
fn place(placement: &Placement, parallel: Option<&ParallelReport>) -> String {
    let Placement { device, reason } = placement;
    match parallel {
        Some(parallel) => format!("{device} on {} ranks ({reason})", parallel.ranks.len()),
        None => format!("{device} ({reason})"),
    }
}

/// Joins the other ranks where there are any. What can be wrong with the call as a whole is found on every
/// rank before.
fn join(
    request: &GenerateRequest,
    device: Device,
    events: &Events,
) -> Result<Option<Ranks>, RuntimeError> {
    if request.tp_size == 0 {
        return Err(RuntimeError::Option {
            option: "--tp",
            problem: "0 ranks cannot run a model".to_owned(),
            hint: None,
        });
    }
    if request.tp_size == 1 {
        return Ok(None);
    }
    let config = kernel_model::ModelConfig::from_directory(&request.model)?;
    let layout = ranks::layout(&config, request.tp_size, request.tp_plan.as_ref())?;
    let limit = Duration::try_from_secs_f64(request.tp_timeout_s).unwrap_or(Duration::from_secs(1));
    events.progress("waiting for the other ranks", 0, 0);
    let ranks = Ranks::join(layout, device, limit, events)?;
    if ranks.is_first() {
        for note in ranks.group.layout.notes() {
            events.info(note.clone());
        }
    }
    Ok(Some(ranks))
}

/// One report of all ranks: what runs on what, and what each of them did so far.
fn reports(
    ranks: &Ranks,
    model: &Model,
    report: &KernelReport,
    [load, weights]: [Duration; 2],
) -> Result<(Vec<KernelEntry>, ParallelReport), RuntimeError> {
    ranks::check_cancelled(&ranks.group, interrupted().load(Ordering::Relaxed))?;
    let own = RankReport {
        rank: ranks.group.rank(),
        bytes_read: model.bytes_read(),
        load_s: load.as_secs_f64(),
        weights_s: weights.as_secs_f64(),
    };
    let entries = ranks::from_all(&ranks.group, &report.entries)?;
    let parallel = ParallelReport {
        ranks: ranks::from_all(&ranks.group, &own)?,
        notes: ranks.group.layout.notes().to_vec(),
        ..ParallelReport::default()
    };
    Ok((ranks::merge_reports(entries), parallel))
}

/// Fails where a file cannot be written, before minutes of work end in nothing.
fn check_writable(path: &Path) -> Result<(), RuntimeError> {
    match fs::OpenOptions::new().append(true).create(true).open(path) {
        Ok(_) => Ok(()),
        Err(error) => Err(RuntimeError::Option {
            option: "--dump-logits",
            problem: format!("cannot write `{}`: {error}", path.display()),
            hint: None,
        }),
    }
}

fn response(
    generation: &Generation,
    model: &Model,
    report: &KernelReport,
    load: Duration,
    compile: Duration,
) -> Result<GenerateResponse, RuntimeError> {
    let rows = &generation.rows;
    let decode = generation.decode.as_secs_f64();
    let compiles = match session::running_bridge() {
        Some(bridge) => bridge.compile_count()?,
        None => 0,
    };
    Ok(GenerateResponse {
        texts: rows.iter().map(|row| row.text.clone()).collect(),
        prompt_tokens: rows.iter().map(|row| row.prompt_tokens).collect(),
        tokens: rows.iter().map(|row| row.tokens.clone()).collect(),
        finish: rows
            .iter()
            .map(|row| row.finish.name().to_owned())
            .collect(),
        device: model.device().to_string(),
        dtype: model.dtype().name().to_owned(),
        kernels: report.current(),
        timings: Timings {
            load_s: load.as_secs_f64(),
            compile_s: compile.as_secs_f64(),
            prefill_s: generation.prefill.as_secs_f64(),
            decode_s: decode,
            decode_tokens_per_s: if decode > 0.0 {
                generation.decode_tokens as f64 / decode
            } else {
                0.0
            },
        },
        compiles,
        parallel: None,
    })
}

/// Time that kernels have spent in compiles so far.
fn compile_time() -> Result<Duration, RuntimeError> {
    let Some(bridge) = session::running_bridge() else {
        return Ok(Duration::ZERO);
    };
    let compiles = bridge.compiles()?;
    let seconds: f64 = compiles
        .iter()
        .map(|compile| compile.trace_seconds + compile.compile_seconds)
        .sum();
    Ok(Duration::try_from_secs_f64(seconds).unwrap_or_default())
}

pub(crate) fn set_threads(threads: Option<usize>) -> Result<(), RuntimeError> {
    let Some(threads) = threads else {
        return Ok(());
    };
    match i32::try_from(threads) {
        Ok(threads) if (1..=4096).contains(&threads) => {
            tch::set_num_threads(threads);
            Ok(())
        }
        _ => Err(RuntimeError::Option {
            option: "--threads",
            problem: format!("{threads} is not between 1 and 4096"),
            hint: None,
        }),
    }
}

/// A model to load.
pub(crate) struct Wanted<'a> {
    pub(crate) model: &'a Path,
    pub(crate) dtype: Option<&'a str>,
    pub(crate) device: Device,
    pub(crate) kernels: &'a KernelChoice,
    pub(crate) registry: &'a RegistrySettings,
    pub(crate) group: Option<Group>,
}

/// A model with its kernels in place.
pub(crate) struct Loaded {
    pub(crate) model: Model,
    pub(crate) report: KernelReport,
    /// How long the weights took.
    pub(crate) weights: Duration,
}

/// Loads a model and puts kernels into it. The kernel config is read first: a mistake in it should
/// not wait for gigabytes of weights.
pub(crate) fn load(wanted: &Wanted<'_>, events: &Events) -> Result<Loaded, RuntimeError> {
    let config = kernel_model::ModelConfig::from_directory(wanted.model)?;
    let kernels = kernel_config(wanted.model, wanted.kernels, &config.raw)?;
    let options = kernelize_options(wanted.kernels)?;
    let transfer: Option<Arc<dyn Transfer>> = match wanted.device {
        Device::Cpu => None,
        Device::Tpu => Some(Arc::new(TpuTransfer {
            bridge: session::bridge(wanted.device)?,
        })),
    };
    events.progress("loading the weights", 0, 0);
    let load = LoadOptions {
        dtype: wanted.dtype.map(Dtype::by_name).transpose()?,
        device: wanted.device,
        transfer,
        group: wanted.group.clone(),
    };
    let started = Instant::now();
    let mut model = Model::load_with_config(wanted.model, config, &load)?;
    let weights = started.elapsed();
    for warning in model.warnings() {
        events.warning(warning.clone());
    }
    if options.off.is_none() {
        events.progress("putting kernels in place", 0, 0);
    }
    let registry = session::registry(wanted.registry, events)?;
    let mut bridge = || session::bridge(wanted.device);
    let report = kernelize(&mut model, &kernels, &registry, &mut bridge, &options)?;
    // Ranks have to agree on it first.
    if wanted.group.is_none() && interrupted().load(Ordering::Relaxed) {
        return Err(ModelError::Cancelled.into());
    }
    for warning in &report.warnings {
        events.warning(warning.clone());
    }
    Ok(Loaded {
        model,
        report,
        weights,
    })
}

/// The config of the call's file, else of the model's config.json.
pub(crate) fn kernel_config(
    directory: &Path,
    choice: &KernelChoice,
    model: &Value,
) -> Result<KernelConfig, RuntimeError> {
    let invalid = |path: &Path| {
        let path = path.to_owned();
        move |source| RuntimeError::KernelConfig { path, source }
    };
    let Some(path) = &choice.config else {
        let path = directory.join("config.json");
        return KernelConfig::from_model_config(model).map_err(invalid(&path));
    };
    let bytes = fs::read(path).map_err(|source| RuntimeError::Read {
        path: path.clone(),
        source,
    })?;
    let value: Value = serde_json::from_slice(&bytes).map_err(|error| RuntimeError::Option {
        option: "--kernels",
        problem: format!("`{}` is not JSON: {error}", path.display()),
        hint: Some("give a file with a `kernel_config`, or `off`".to_owned()),
    })?;
    let config =
        if value.get("kernel_config").is_some() || value.get("attn_implementation").is_some() {
            KernelConfig::from_model_config(&value)
        } else {
            KernelConfig::from_kernel_config(&value)
        };
    config.map_err(invalid(path))
}

pub(crate) fn kernelize_options(choice: &KernelChoice) -> Result<KernelizeOptions, RuntimeError> {
    let mut options = KernelizeOptions::from_environment()?;
    if choice.off {
        options.off = Some("the call says so".to_owned());
    }
    for (op, reference) in &choice.overrides {
        options.add_override(op, reference)?;
    }
    options.fallback = match &choice.fallback {
        None => None,
        Some(name) => {
            Some(
                name.parse()
                    .map_err(|error: kernel_spec::Error| RuntimeError::Option {
                        option: "--fallback",
                        problem: error.to_string(),
                        hint: error.hint(),
                    })?,
            )
        }
    };
    options.interpret = choice.interpret;
    Ok(options)
}

fn sampling(choice: &SamplingChoice) -> SamplingOptions {
    SamplingOptions {
        greedy: choice.greedy,
        temperature: choice.temperature,
        top_k: choice.top_k,
        top_p: choice.top_p,
        min_p: choice.min_p,
        repetition_penalty: choice.repetition_penalty,
        seed: choice.seed,
    }
}

fn prompts(
    prompt: &Prompt,
    tokenizer: Option<&Tokenizer>,
    model: &Path,
) -> Result<Vec<Vec<i64>>, RuntimeError> {
    let tokenizer = || tokenizer.ok_or_else(|| ModelError::NoTokenizer(model.to_owned()));
    Ok(match prompt {
        Prompt::Ids(rows) => rows.clone(),
        Prompt::Texts(texts) => {
            let tokenizer = tokenizer()?;
            texts
                .iter()
                .map(|text| tokenizer.encode(text, true))
                .collect::<Result<_, _>>()?
        }
        Prompt::Chat { user, system } => {
            let tokenizer = tokenizer()?;
            let mut messages = Vec::new();
            messages.extend(system.as_ref().map(Message::system));
            messages.push(Message::user(user));
            let template = ChatTemplate::from_directory(model)?;
            let text = template.render(&messages, &ChatOptions::default())?;
            vec![tokenizer.encode(&text, false)?]
        }
    })
}
