//! From prompts to new tokens: prefill, decode steps, and the ends of rows.
//!
//! Token ids and lengths live on the host; a step sends ids and positions to the device and gets
//! one row of logits back. Rows of different length share a batch without seeing each other.

mod buckets;
mod dump;
mod ranks;
mod row;
mod stop;

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tch::Tensor;

pub use self::buckets::{Buckets, Shapes};
pub use self::dump::LogitsDump;
use self::ranks::Ranks;
use self::row::Row;
use crate::cache::KvCache;
use crate::config::ModelConfig;
use crate::error::{ModelError, Result};
use crate::generation_config::GenerationConfig;
use crate::model::Model;
use crate::sampling::{Sampling, SamplingOptions};
use crate::tokenizer::Tokenizer;

/// New tokens a row where neither the call nor generation_config.json says.
pub const DEFAULT_NEW_TOKENS: usize = 128;

/// What a generation is to do.
#[derive(Debug, Clone, Default)]
pub struct GenerateOptions {
    /// New tokens a row at most; `None` takes generation_config.json's, else
    /// [`DEFAULT_NEW_TOKENS`].
    pub max_new_tokens: Option<usize>,
    /// How tokens are chosen.
    pub sampling: SamplingOptions,
    /// Go on after an end-of-sequence token.
    pub ignore_eos: bool,
    /// Texts at which a row ends; they are not part of its text. They need a tokenizer.
    pub stop_strings: Vec<String>,
    /// Keep all logits. Rows that have ended are then fed on with padding until all have.
    pub keep_logits: bool,
    /// How shapes are rounded up; `None` takes powers of two where an op compiles for each shape.
    pub buckets: Option<Buckets>,
}

/// What goes on during a generation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Event<'a> {
    /// The prompts are through.
    Prefilled {
        /// How long it took.
        seconds: f64,
    },
    /// A row has a new token.
    Token {
        /// The row.
        row: usize,
        /// The token.
        id: i64,
    },
    /// A row has new text, never half a character, never part of a stop string.
    Text {
        /// The row.
        row: usize,
        /// The text.
        text: &'a str,
    },
}

/// Why a row ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finish {
    /// An end-of-sequence token or a stop string.
    Stop,
    /// As many tokens as were allowed, or the end of the context.
    Length,
    /// The caller stopped it.
    Cancelled,
}

impl Finish {
    /// The word for reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::Cancelled => "cancelled",
        }
    }
}

/// One row of the answer.
#[derive(Debug, Clone, PartialEq)]
pub struct RowOutput {
    /// Length of the prompt in tokens.
    pub prompt_tokens: usize,
    /// The new tokens, an end-of-sequence token included.
    pub tokens: Vec<i64>,
    /// Their text, where there is a tokenizer.
    pub text: Option<String>,
    /// Why the row ended.
    pub finish: Finish,
}

/// The answer to a generation.
#[derive(Debug)]
pub struct Generation {
    /// One entry a prompt.
    pub rows: Vec<RowOutput>,
    /// Time of the prompts.
    pub prefill: Duration,
    /// Time of all steps after them.
    pub decode: Duration,
    /// Tokens that the decode steps made, all rows together.
    pub decode_tokens: usize,
    /// The shapes that were used.
    pub shapes: Shapes,
    /// All logits, where they were asked for.
    pub logits: Option<LogitsDump>,
    /// Most collective operations of a decode step; 0 without ranks.
    pub collectives_per_step: u64,
}

/// What a generation works with beside the model.
#[derive(Debug, Clone, Copy, Default)]
pub struct Surroundings<'a> {
    /// Turns tokens into text; without it there are only tokens.
    pub tokenizer: Option<&'a Tokenizer>,
    /// Defaults of sampling, and end tokens.
    pub generation_config: Option<&'a GenerationConfig>,
    /// Set by anyone to stop at the next step.
    pub cancel: Option<&'a AtomicBool>,
}

impl Model {
    /// Continues prompts. Everything that can be wrong with the call is found before the first
    /// forward pass. `on_event` may stop the generation, which then returns what there is.
    pub fn generate(
        &mut self,
        prompts: &[Vec<i64>],
        options: &GenerateOptions,
        surroundings: Surroundings<'_>,
        on_event: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
    ) -> Result<Generation> {
        let fallback = GenerationConfig::default();
        let config = surroundings.generation_config.unwrap_or(&fallback);
        check_prompts(self, prompts)?;
        if !options.stop_strings.is_empty() && surroundings.tokenizer.is_none() {
            return Err(ModelError::NoTokenizer(self.directory().to_owned()));
        }
        let sampling = Sampling::settle(&options.sampling, config)?;
        let agreed = ranks::agree(
            self.group(),
            options.sampling.seed.unwrap_or_else(rand::random),
            self.compiles_per_shape(),
        )?;
        let eos = if options.ignore_eos {
            Vec::new()
        } else {
            config.eos_of(self.config()).to_vec()
        };
        let pad = padding(self.config(), config);
        let limit = self.config().max_positions;
        let wanted = options
            .max_new_tokens
            .or(config.max_new_tokens)
            .unwrap_or(DEFAULT_NEW_TOKENS);

        let mut rows: Vec<Row<'_>> = prompts
            .iter()
            .enumerate()
            .map(|(index, prompt)| {
                // The last new token is never fed, so it needs no place in the context.
                let room = limit as usize + 1 - prompt.len();
                let text = surroundings
                    .tokenizer
                    .map(|t| (t.stream(), &*options.stop_strings));
                Row::new(index, prompt, wanted.min(room), agreed.seed, text)
            })
            .collect();
        let longest = rows.iter().map(Row::length).max().unwrap_or(1);
        let filled = rows
            .iter()
            .map(Row::most_filled)
            .max()
            .unwrap_or(1)
            .max(longest);
        let buckets = options.buckets.unwrap_or(if agreed.compiles_per_shape {
            Buckets::PowersOfTwo
        } else {
            Buckets::Exact
        });
        let shapes = buckets.shapes(rows.len() as i64, longest, filled, limit);

        let ranks = self
            .group()
            .map(|group| Ranks::new(group.clone(), self.config(), rows.len(), &sampling));
        let mut run = Run {
            ranks,
            cache: self.take_cache(shapes.batch, shapes.capacity)?,
            model: self,
            pad,
            shapes,
            sampling,
            eos,
            surroundings,
            dump: options.keep_logits.then(LogitsDump::new),
        };
        let generation = run.all(&mut rows, on_event)?;
        // After an error the cache may hold what is not a number, and is dropped.
        let Run { model, cache, .. } = run;
        model.keep_cache(cache);
        Ok(generation)
    }
}

/// Fails where a prompt is empty, too long, or holds what is no token of the model.
fn check_prompts(model: &Model, prompts: &[Vec<i64>]) -> Result<()> {
    let config = model.config();
    let refuse = |row: usize, problem: String, hint: &str| {
        Err(ModelError::Prompt {
            row,
            problem,
            hint: hint.to_owned(),
        })
    };
    if prompts.is_empty() {
        return refuse(0, "is missing".to_owned(), "give at least one prompt");
    }
    for (row, prompt) in prompts.iter().enumerate() {
        if prompt.is_empty() {
            return refuse(
                row,
                "has no tokens".to_owned(),
                "a prompt needs at least one token",
            );
        }
        if prompt.len() as i64 > config.max_positions {
            return refuse(
                row,
                format!(
                    "has {} tokens, but the model's context is {}",
                    prompt.len(),
                    config.max_positions
                ),
                "shorten the prompt",
            );
        }
        let outside = |id: &&i64| !(0..config.vocab_size).contains(*id);
        if let Some(id) = prompt.iter().find(outside) {
            return refuse(
                row,
                format!(
                    "holds token id {id}, outside the vocabulary of {}",
                    config.vocab_size
                ),
                "the tokenizer may belong to another model",
            );
        }
    }
    Ok(())
}

/// The token that fills up rows; any token of the vocabulary would do.
fn padding(model: &ModelConfig, config: &GenerationConfig) -> i64 {
    let pad = config.pad_of(model);
    if (0..model.vocab_size).contains(&pad) {
        pad
    } else {
        0
    }
}

/// What came of choosing tokens.
enum Flow {
    /// All rows that go on have a new token.
    Go {
        /// Whether the caller wants no more.
        stop: bool,
    },
    /// The caller, or that of another rank, wants to end.
    Cancelled,
    /// A row's logits are not numbers.
    NotFinite {
        /// The row.
        row: usize,
    },
}

/// One generation on its way.
struct Run<'m, 's> {
    ranks: Option<Ranks>,
    model: &'m mut Model,
    cache: KvCache,
    shapes: Shapes,
    sampling: Sampling,
    eos: Vec<i64>,
    pad: i64,
    surroundings: Surroundings<'s>,
    dump: Option<LogitsDump>,
}

impl Run<'_, '_> {
    fn all(
        &mut self,
        rows: &mut [Row<'_>],
        on_event: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
    ) -> Result<Generation> {
        let started = Instant::now();
        let mut logits = self.prefill(rows)?;
        let prefill = started.elapsed();
        let started = Instant::now();
        let event = Event::Prefilled {
            seconds: prefill.as_secs_f64(),
        };
        let mut stopped = on_event(event).is_break();

        let mut step = 0;
        let mut decode_tokens = 0;
        let mut collectives_per_step = 0;
        let mut counted = self.collectives();
        loop {
            stopped |= self
                .surroundings
                .cancel
                .is_some_and(|flag| flag.load(Ordering::Relaxed));
            let before: usize = rows.iter().map(|row| row.tokens().len()).sum();
            let flow = match self.ranks.take() {
                Some(mut ranks) => {
                    let flow = self.choose_with(&mut ranks, rows, &logits, stopped, on_event);
                    self.ranks = Some(ranks);
                    flow
                }
                None => self.choose(rows, &logits, stopped, on_event),
            };
            match flow {
                Ok(Flow::Cancelled) => {
                    rows.iter_mut().for_each(Row::cancel);
                    break;
                }
                Ok(Flow::Go { stop }) => stopped |= stop,
                Ok(Flow::NotFinite { row }) => return Err(self.not_finite(&rows[row], step)),
                Err(error) => return Err(error),
            }
            let after: usize = rows.iter().map(|row| row.tokens().len()).sum();
            let now = self.collectives();
            if step > 0 {
                decode_tokens += after - before;
                collectives_per_step = collectives_per_step.max(now - counted);
            }
            counted = now;
            if !self.goes_on(rows) {
                break;
            }
            step += 1;
            logits = self.step(rows)?;
        }
        let decode = started.elapsed();
        if let Some(dump) = &mut self.dump {
            dump.close(rows.iter().map(Row::tokens), self.pad)?;
        }
        Ok(Generation {
            rows: rows
                .iter_mut()
                .map(|row| row.finish(on_event))
                .collect::<Result<_>>()?,
            prefill,
            decode,
            decode_tokens,
            shapes: self.shapes,
            logits: self.dump.take(),
            collectives_per_step,
        })
    }

    /// Chooses the next token of each row that goes on.
    fn choose(
        &mut self,
        rows: &mut [Row<'_>],
        logits: &Tensor,
        stopped: bool,
        on_event: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
    ) -> Result<Flow> {
        if stopped {
            return Ok(Flow::Cancelled);
        }
        let mut stop = false;
        let mut host = host_logits(logits, rows.len())?;
        let width = host.len() / rows.len();
        for (n, (row, logits)) in rows
            .iter_mut()
            .zip(host.chunks_exact_mut(width))
            .enumerate()
        {
            if !row.active() {
                continue;
            }
            if logits.iter().any(|logit| !logit.is_finite()) {
                return Ok(Flow::NotFinite { row: n });
            }
            stop |= row
                .choose(logits, &self.sampling, &self.eos, on_event)?
                .is_break();
        }
        Ok(Flow::Go { stop })
    }

    /// Collective operations so far.
    fn collectives(&self) -> u64 {
        let group = self.model.group();
        group.map_or(0, |group| group.collectives.counts().total())
    }

    /// Whether any row needs another step.
    fn goes_on(&self, rows: &[Row<'_>]) -> bool {
        match &self.ranks {
            Some(ranks) => ranks.goes_on(),
            None => rows.iter().any(Row::active),
        }
    }

    /// The logits to choose from: those of all tokens, or with ranks of this rank's part.
    fn logits(&self, hidden: &Tensor) -> Result<Tensor> {
        match &self.ranks {
            Some(_) => self.model.local_logits(hidden),
            None => self.model.logits(hidden),
        }
    }

    /// Runs the prompts; returns the logits after each row's last token, [B, V].
    fn prefill(&mut self, rows: &[Row<'_>]) -> Result<Tensor> {
        let Shapes { batch, prompt, .. } = self.shapes;
        let mut ids = vec![self.pad; (batch * prompt) as usize];
        let mut last = vec![0_i64; batch as usize];
        for (n, (row, padded)) in rows
            .iter()
            .zip(ids.chunks_exact_mut(prompt as usize))
            .enumerate()
        {
            padded[..row.history().len()].copy_from_slice(row.history());
            last[n] = n as i64 * prompt + row.length() - 1;
        }
        let ids = Tensor::f_from_slice(&ids)?.f_view([batch, prompt])?;
        let hidden = self.model.prefill(&ids, &mut self.cache, None)?;
        if let Some(dump) = &mut self.dump {
            let longest = rows.iter().map(Row::length).max().unwrap_or(prompt);
            let kept = hidden
                .f_narrow(0, 0, rows.len() as i64)?
                .f_narrow(1, 0, longest)?;
            dump.prefill(self.model.logits(&kept)?);
        }
        // Only the last position of each row goes through the head.
        let index = self
            .model
            .transfer()
            .to_device(Tensor::f_from_slice(&last)?)?;
        let width = hidden.size3()?.2;
        let last = hidden
            .f_reshape([batch * prompt, width])?
            .f_index_select(0, &index)?;
        self.logits(&last)
    }

    /// Feeds each row's newest token; returns the logits, [B, V].
    fn step(&mut self, rows: &[Row<'_>]) -> Result<Tensor> {
        let batch = self.shapes.batch as usize;
        let mut ids = vec![self.pad; batch];
        let mut positions = vec![0_i64; batch];
        for (n, row) in rows.iter().enumerate() {
            (ids[n], positions[n]) = row.next_input(self.pad);
        }
        let hidden = self.model.decode(&ids, &positions, &mut self.cache, None)?;
        let hidden = hidden.f_squeeze_dim(1)?;
        if let Some(dump) = &mut self.dump {
            let all = self.model.logits(&hidden)?;
            dump.step(all.f_narrow(0, 0, rows.len() as i64)?);
        }
        self.logits(&hidden)
    }

    /// Looks for the layer where numbers went wrong by running the row again, layer by layer.
    fn not_finite(&mut self, row: &Row<'_>, step: usize) -> ModelError {
        let mut first = None;
        let mut probe = |name: &str, tensor: &Tensor| -> Result<()> {
            if first.is_none() && tensor.f_isfinite()?.f_all()?.f_int64_value(&[])? == 0 {
                first = Some(name.to_owned());
            }
            Ok(())
        };
        let again = || -> Result<()> {
            let length = row.history().len() as i64;
            let ids = Tensor::f_from_slice(row.history())?.f_unsqueeze(0)?;
            let mut cache = self.model.new_cache(1, length)?;
            let _ = self.model.prefill(&ids, &mut cache, Some(&mut probe))?;
            Ok(())
        };
        let outcome = { again }();
        if let Err(error) = outcome {
            tracing::debug!("the search for the layer failed: {error}");
        }
        ModelError::NotFinite {
            row: row.index(),
            step,
            layer: first,
        }
    }
}

/// The first `rows` rows of logits on the host, one after the other.
fn host_logits(logits: &Tensor, rows: usize) -> Result<Vec<f32>> {
    let logits = logits.f_narrow(0, 0, rows as i64)?;
    let mut host = vec![0.0_f32; logits.numel()];
    logits.f_copy_data(&mut host, logits.numel())?;
    Ok(host)
}
