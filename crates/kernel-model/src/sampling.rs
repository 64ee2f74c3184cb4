//! The next token of a row, from its logits: pure functions on host numbers.
//!
//! Processors run in the order of transformers: repetition penalty, temperature, top-k, top-p,
//! min-p, then one draw from what is left. Removed tokens have a logit of minus infinity.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::error::{ModelError, Result};
use crate::generation_config::GenerationConfig;

/// Sampling options of a call; `None` leaves a value to generation_config.json.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SamplingOptions {
    /// Always the most probable token; goes before all others.
    pub greedy: bool,
    /// Divides the logits.
    pub temperature: Option<f64>,
    /// Keep the `k` most probable tokens; 0 keeps all.
    pub top_k: Option<usize>,
    /// Keep the smallest set of tokens with this probability mass.
    pub top_p: Option<f64>,
    /// Drop tokens less probable than this share of the most probable one.
    pub min_p: Option<f64>,
    /// Penalty on tokens that the row already holds.
    pub repetition_penalty: Option<f64>,
    /// Seed of the random numbers; `None` takes one from the system.
    pub seed: Option<u64>,
}

/// Settled sampling parameters, all in range.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampling {
    /// How the token is chosen from the processed logits.
    pub mode: Mode,
    /// Above 1 makes tokens that the row holds less probable; 1 does nothing.
    pub repetition_penalty: f64,
}

/// How a token is chosen.
#[derive(Debug, Clone, PartialEq)]
pub enum Mode {
    /// The most probable one.
    Greedy,
    /// A draw.
    Draw(Filters),
}

/// What narrows a draw.
#[derive(Debug, Clone, PartialEq)]
pub struct Filters {
    /// Divides the logits.
    pub temperature: f64,
    /// Keep so many; 0 keeps all.
    pub top_k: usize,
    /// Keep this probability mass.
    pub top_p: f64,
    /// Drop what is below this share of the largest probability.
    pub min_p: f64,
}

/// Draws from the 50 most probable tokens, where nobody says otherwise: transformers' default.
const DEFAULT_TOP_K: usize = 50;

impl Sampling {
    /// Takes the call's options over those of generation_config.json over the defaults. A call
    /// that states a temperature or a filter wants a draw, whatever the file says.
    pub fn settle(options: &SamplingOptions, config: &GenerationConfig) -> Result<Self> {
        let stated = options.temperature.is_some()
            || options.top_k.is_some()
            || options.top_p.is_some()
            || options.min_p.is_some();
        let draws = !options.greedy && (stated || config.do_sample.unwrap_or(false));
        let repetition_penalty = options
            .repetition_penalty
            .or(config.repetition_penalty)
            .unwrap_or(1.0);
        in_range(
            "repetition_penalty",
            repetition_penalty,
            repetition_penalty > 0.0,
            "a number above 0",
        )?;
        let temperature = options.temperature.or(config.temperature).unwrap_or(1.0);
        // A temperature of 0 is the common spelling of greedy.
        if !draws || (options.temperature == Some(0.0)) {
            return Ok(Self {
                mode: Mode::Greedy,
                repetition_penalty,
            });
        }
        let filters = Filters {
            temperature,
            top_k: options.top_k.or(config.top_k).unwrap_or(DEFAULT_TOP_K),
            top_p: options.top_p.or(config.top_p).unwrap_or(1.0),
            min_p: options.min_p.or(config.min_p).unwrap_or(0.0),
        };
        in_range(
            "temperature",
            temperature,
            temperature > 0.0,
            "a number above 0",
        )?;
        in_range(
            "top_p",
            filters.top_p,
            filters.top_p > 0.0 && filters.top_p <= 1.0,
            "above 0 and at most 1",
        )?;
        in_range(
            "min_p",
            filters.min_p,
            (0.0..=1.0).contains(&filters.min_p),
            "between 0 and 1",
        )?;
        Ok(Self {
            mode: Mode::Draw(filters),
            repetition_penalty,
        })
    }

    /// Chooses a token. `logits` is one row, [V], and is overwritten; `history` holds the row's
    /// prompt and new tokens. The row has at least one finite logit.
    pub fn choose(&self, logits: &mut [f32], history: &[i64], random: &mut ChaCha8Rng) -> usize {
        self.prepare(logits, 0, history);
        self.select(logits, random)
    }

    /// What comes before tokens are compared: penalty and temperature. `logits` are those of the tokens from
    /// `offset` on.
    pub(crate) fn prepare(&self, logits: &mut [f32], offset: i64, history: &[i64]) {
        penalize_repetition(logits, offset, history, self.repetition_penalty);
        if let Mode::Draw(filters) = &self.mode {
            scale(logits, filters.temperature);
        }
    }

    /// Index of the chosen one of prepared logits, which are those of all tokens, or of all that can be
    /// chosen, by ascending id.
    pub(crate) fn select(&self, logits: &mut [f32], random: &mut ChaCha8Rng) -> usize {
        match &self.mode {
            Mode::Greedy => largest(logits),
            Mode::Draw(filters) => {
                keep_top_k(logits, filters.top_k);
                keep_top_p(logits, filters.top_p);
                keep_min_p(logits, filters.min_p);
                draw(logits, random.random())
            }
        }
    }

    /// How many of the largest logits decide; `None` where all do.
    pub(crate) fn deciding(&self) -> Option<usize> {
        match &self.mode {
            Mode::Greedy => Some(1),
            Mode::Draw(filters) => Some(filters.top_k).filter(|k| *k > 0),
        }
    }
}

fn in_range(name: &'static str, value: f64, fits: bool, expected: &'static str) -> Result<()> {
    if fits && value.is_finite() {
        Ok(())
    } else {
        Err(ModelError::Sampling {
            name,
            value: value.to_string(),
            expected,
        })
    }
}

/// The random numbers of one row: each row has its own, so that a row's text does not depend on
/// the other rows of its batch.
pub fn random_of_row(seed: u64, row: usize) -> ChaCha8Rng {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    random.set_stream(row as u64);
    random
}

/// Index of the largest logit; the first one of equals.
pub fn largest(logits: &[f32]) -> usize {
    let mut best = 0;
    for (index, logit) in logits.iter().enumerate() {
        if *logit > logits[best] {
            best = index;
        }
    }
    best
}

/// Divides positive and multiplies negative logits of tokens in `history`, once each. `logits` are those
/// of the tokens from `offset` on.
pub fn penalize_repetition(logits: &mut [f32], offset: i64, history: &[i64], penalty: f64) {
    if (penalty - 1.0).abs() < f64::EPSILON {
        return;
    }
    let mut tokens: Vec<usize> = history
        .iter()
        .filter_map(|id| usize::try_from(*id - offset).ok())
        .collect();
    tokens.sort_unstable();
    tokens.dedup();
    for token in tokens {
        if let Some(logit) = logits.get_mut(token) {
            let penalty = penalty as f32;
            *logit = if *logit < 0.0 {
                *logit * penalty
            } else {
                *logit / penalty
            };
        }
    }
}

/// Divides all logits.
pub fn scale(logits: &mut [f32], temperature: f64) {
    for logit in logits {
        *logit /= temperature as f32;
    }
}

/// Removes all but the `k` largest logits, and keeps equals of the smallest kept one.
pub fn keep_top_k(logits: &mut [f32], k: usize) {
    if k == 0 || k >= logits.len() {
        return;
    }
    let mut sorted = logits.to_vec();
    let (_, threshold, _) = sorted.select_nth_unstable_by(k - 1, |a, b| b.total_cmp(a));
    let threshold = *threshold;
    for logit in logits {
        if *logit < threshold {
            *logit = f32::NEG_INFINITY;
        }
    }
}

/// Removes the least probable tokens that together have at most `1 - p` of the probability; the
/// most probable one stays in any case.
pub fn keep_top_p(logits: &mut [f32], p: f64) {
    if p >= 1.0 {
        return;
    }
    let mut order: Vec<usize> = (0..logits.len())
        .filter(|i| logits[*i].is_finite())
        .collect();
    order.sort_by(|a, b| logits[*a].total_cmp(&logits[*b]));
    let Some((most_probable, others)) = order.split_last() else {
        return;
    };
    let top = logits[*most_probable];
    let weight = |index: usize| f64::from((logits[index] - top).exp());
    let total: f64 = order.iter().map(|index| weight(*index)).sum();
    let mut below = 0.0;
    let removed: Vec<usize> = others
        .iter()
        .copied()
        .take_while(|index| {
            below += weight(*index) / total;
            below <= 1.0 - p
        })
        .collect();
    for index in removed {
        logits[index] = f32::NEG_INFINITY;
    }
}

/// Removes tokens less probable than `share` of the most probable one.
pub fn keep_min_p(logits: &mut [f32], share: f64) {
    if share <= 0.0 || logits.is_empty() {
        return;
    }
    let best = largest(logits);
    let threshold = logits[best] + share.ln() as f32;
    for (index, logit) in logits.iter_mut().enumerate() {
        if *logit < threshold && index != best {
            *logit = f32::NEG_INFINITY;
        }
    }
}

/// The token at `point` of the cumulated probabilities; `point` lies in [0, 1).
pub fn draw(logits: &[f32], point: f64) -> usize {
    let best = largest(logits);
    let top = logits[best];
    let weights = logits.iter().map(|logit| f64::from((logit - top).exp()));
    let total: f64 = weights.clone().sum();
    let mut passed = 0.0;
    for (index, weight) in weights.enumerate() {
        passed += weight;
        if weight > 0.0 && passed > point * total {
            return index;
        }
    }
    best
}

#[cfg(test)]
mod tests;
