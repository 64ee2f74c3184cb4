//! From a plan to what each rank holds and computes.
//!
//! Styles say how single modules are spread; what runs is decided for each block as a whole. A
//! block whose modules fit together runs in one of two ways: spread, with one sum at its end, or
//! replicated. A gather whose result is only sliced again is left out, since the same numbers come
//! out. A block whose modules do not fit together is refused with the two that do not.

use std::ops::Range;

use super::Style;
use super::rules::{EMBEDDING, HEAD, Rules};
use crate::config::ModelConfig;
use crate::error::{ModelError, Result};

/// How a block of the model runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spread {
    /// Each rank computes a part.
    Sharded,
    /// Each rank computes all of it.
    Replicated,
}

/// Who holds what, for all ranks.
#[derive(Debug, Clone, PartialEq)]
pub struct Layout {
    ranks: i64,
    attention: Spread,
    mlp: Spread,
    embedding: Spread,
    head: Spread,
    sizes: Sizes,
    notes: Vec<String>,
}

/// The sizes that are spread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Sizes {
    heads: i64,
    key_value_heads: i64,
    inner: i64,
    vocabulary: i64,
}

/// A rank's part of a size: what it takes of the whole, and how much it holds with zeros behind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// Indices of the whole.
    pub range: Range<i64>,
    /// Length with padding; the same on all ranks.
    pub held: i64,
}

/// What one rank holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Share {
    /// The rank.
    pub rank: i64,
    /// Its query heads.
    pub heads: Range<i64>,
    /// Its key/value heads; ranks share one where there are more ranks than heads.
    pub key_value_heads: Range<i64>,
    /// Its part of the MLP's inner width.
    pub inner: Part,
    /// Its rows of the embedding.
    pub embedding: Part,
    /// Its rows of the head.
    pub head: Part,
}

impl Layout {
    /// Decides how a model runs on so many ranks.
    ///
    /// # Errors
    /// [`ModelError::Parallel`] where the styles of a block contradict each other.
    pub fn new(config: &ModelConfig, ranks: usize, rules: &Rules) -> Result<Self> {
        let sizes = Sizes {
            heads: config.heads,
            key_value_heads: config.key_value_heads,
            inner: config.intermediate_size,
            vocabulary: config.vocab_size,
        };
        let mut layout = Self {
            ranks: (ranks as i64).max(1),
            attention: Spread::Replicated,
            mlp: Spread::Replicated,
            embedding: Spread::Replicated,
            head: Spread::Replicated,
            sizes,
            notes: Vec::new(),
        };
        if layout.ranks == 1 {
            return Ok(layout);
        }
        layout.place_attention(rules)?;
        layout.place_mlp(config, rules)?;
        layout.place_vocabulary(config, rules)?;
        refuse_spread_norms(rules)?;
        Ok(layout)
    }

    /// The layout of a model on one rank.
    pub fn single(config: &ModelConfig) -> Self {
        Self {
            ranks: 1,
            attention: Spread::Replicated,
            mlp: Spread::Replicated,
            embedding: Spread::Replicated,
            head: Spread::Replicated,
            sizes: Sizes {
                heads: config.heads,
                key_value_heads: config.key_value_heads,
                inner: config.intermediate_size,
                vocabulary: config.vocab_size,
            },
            notes: Vec::new(),
        }
    }

    fn place_attention(&mut self, rules: &Rules) -> Result<()> {
        let inputs = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"];
        self.attention = self.block(rules, &inputs, "self_attn.o_proj")?;
        if self.attention == Spread::Replicated {
            self.notes
                .push("attention is replicated: each rank holds and computes all heads".to_owned());
            return Ok(());
        }
        let Sizes {
            heads,
            key_value_heads,
            ..
        } = self.sizes;
        let ranks = self.ranks;
        if heads % ranks != 0 {
            self.attention = Spread::Replicated;
            self.notes.push(format!(
                "attention is replicated, because {ranks} ranks do not divide {heads} query heads: \
                 each rank holds and computes all of them"
            ));
        } else if key_value_heads % ranks != 0 && ranks % key_value_heads != 0 {
            self.attention = Spread::Replicated;
            self.notes.push(format!(
                "attention is replicated, because of {ranks} ranks and {key_value_heads} \
                 key/value heads neither number divides the other: each rank holds and computes \
                 all heads"
            ));
        } else if ranks > key_value_heads {
            self.notes.push(format!(
                "each of the {key_value_heads} key/value heads is held by {} ranks, because there \
                 are {ranks} ranks: the cache takes {} times the memory of one that is split",
                ranks / key_value_heads,
                ranks / key_value_heads
            ));
        }
        Ok(())
    }

    fn place_mlp(&mut self, config: &ModelConfig, rules: &Rules) -> Result<()> {
        let inputs: &[&str] = if config.family.fused_gate_up {
            &["mlp.gate_up_proj"]
        } else {
            &["mlp.gate_proj", "mlp.up_proj"]
        };
        if config.family.fused_gate_up && rules.layer_style("mlp.gate_up_proj") == Style::Colwise {
            return Err(ModelError::Parallel {
                problem:
                    "`mlp.gate_up_proj` fuses two projections, and style `colwise` would give \
                          some ranks the gate and others what it gates"
                        .to_owned(),
                hint: Some("use `packed_colwise`, which splits each of the two".to_owned()),
            });
        }
        self.mlp = self.block(rules, inputs, "mlp.down_proj")?;
        let (ranks, inner) = (self.ranks, self.sizes.inner);
        if self.mlp == Spread::Sharded && inner % ranks != 0 {
            let held = chunk(inner, ranks);
            self.notes.push(format!(
                "the MLP's width of {inner} is padded with zeros to {}, {held} on each rank",
                held * ranks
            ));
        }
        Ok(())
    }

    /// How a block runs whose first modules feed its last.
    fn block(&mut self, rules: &Rules, inputs: &[&str], output: &str) -> Result<Spread> {
        let mut sliced = Vec::new();
        let mut whole = Vec::new();
        let mut spreads = false;
        for module in inputs {
            let style = rules.layer_style(module);
            match style {
                Style::Colwise => sliced.push((*module, style)),
                Style::PackedColwise if module.ends_with("gate_up_proj") => {
                    sliced.push((*module, style));
                }
                Style::ColwiseGatherOutput => {
                    spreads = true;
                    whole.push((*module, style));
                }
                _ if style.is_replicated() => whole.push((*module, style)),
                _ => return Err(misplaced(module, style)),
            }
        }
        let style = rules.layer_style(output);
        match style {
            Style::Rowwise => sliced.push((output, style)),
            Style::RowwiseSplitInput | Style::ColwiseGatherOutput => {
                spreads = true;
                whole.push((output, style));
            }
            _ if style.is_replicated() => whole.push((output, style)),
            _ => return Err(misplaced(output, style)),
        }
        if let (Some((one, with)), Some((other, without))) = (sliced.first(), whole.first()) {
            return Err(ModelError::Parallel {
                problem: format!(
                    "`{one}` is `{}`, which works on a slice, and `{other}` is `{}`, which works on \
                     the whole; the modules of a block have to fit together",
                    with.name(),
                    without.name()
                ),
                hint: Some(
                    "give all of them replicated styles, or leave them to the default plan"
                        .to_owned(),
                ),
            });
        }
        if !sliced.is_empty() {
            return Ok(Spread::Sharded);
        }
        if spreads {
            let block = output.split('.').next().unwrap_or(output);
            self.notes.push(format!(
                "gathers within `{block}` are left out: slices go from module to module and are \
                 summed at its end, with the same result"
            ));
            return Ok(Spread::Sharded);
        }
        Ok(Spread::Replicated)
    }

    fn place_vocabulary(&mut self, config: &ModelConfig, rules: &Rules) -> Result<()> {
        let embedding = rules.style(EMBEDDING);
        self.embedding = match embedding {
            Style::EmbeddingRowwise => Spread::Sharded,
            Style::EmbeddingColwise => {
                self.notes.push(
                    "the embedding is split by rows instead of columns, with the same result"
                        .to_owned(),
                );
                Spread::Sharded
            }
            _ if embedding.is_replicated() => Spread::Replicated,
            _ => return Err(misplaced(EMBEDDING, embedding)),
        };
        let head = rules.style(HEAD);
        self.head = match head {
            Style::ColwiseGatherOutput => Spread::Sharded,
            Style::RowwiseSplitInput => {
                self.notes.push(
                    "the head is split by rows instead of columns, with the same result".to_owned(),
                );
                Spread::Sharded
            }
            _ if head.is_replicated() => Spread::Replicated,
            Style::Colwise => {
                return Err(ModelError::Parallel {
                    problem: format!(
                        "style `colwise` of `{HEAD}` would leave each rank with a part of the logits"
                    ),
                    hint: Some("use `colwise_gather_output`".to_owned()),
                });
            }
            _ => return Err(misplaced(HEAD, head)),
        };
        if config.tied && self.embedding != self.head {
            (self.embedding, self.head) = (Spread::Replicated, Spread::Replicated);
            self.notes.push(
                "embedding and head are one table, and one of them is to be replicated: so both are"
                    .to_owned(),
            );
        }
        let (ranks, vocabulary) = (self.ranks, self.sizes.vocabulary);
        let spread = [self.embedding, self.head].contains(&Spread::Sharded);
        if spread && vocabulary % ranks != 0 {
            let each = chunk(vocabulary, ranks);
            self.notes.push(format!(
                "the vocabulary of {vocabulary} is padded to {}, {each} on each rank",
                each * ranks
            ));
        }
        Ok(())
    }

    /// Number of ranks.
    pub fn ranks(&self) -> usize {
        self.ranks as usize
    }

    /// How attention runs.
    pub fn attention(&self) -> Spread {
        self.attention
    }

    /// How the MLP runs.
    pub fn mlp(&self) -> Spread {
        self.mlp
    }

    /// How the embedding is held.
    pub fn embedding(&self) -> Spread {
        self.embedding
    }

    /// How the head is held.
    pub fn head(&self) -> Spread {
        self.head
    }

    /// What a user should know of it, one sentence each.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Sums over all ranks in a step: of the embedding, and in each layer of attention and MLP.
    pub fn sums_per_step(&self, layers: i64) -> i64 {
        let one = |spread| i64::from(spread == Spread::Sharded);
        one(self.embedding) + layers * (one(self.attention) + one(self.mlp))
    }

    /// What a rank holds.
    pub fn share(&self, rank: usize) -> Share {
        let (rank, ranks) = (rank as i64, self.ranks);
        let Sizes {
            heads,
            key_value_heads,
            inner,
            vocabulary,
        } = self.sizes;
        let (heads, key_value_heads) = match self.attention {
            Spread::Replicated => (0..heads, 0..key_value_heads),
            Spread::Sharded => {
                let each = heads / ranks;
                let shared = if ranks > key_value_heads {
                    let head = rank * key_value_heads / ranks;
                    head..head + 1
                } else {
                    let each = key_value_heads / ranks;
                    rank * each..(rank + 1) * each
                };
                (rank * each..(rank + 1) * each, shared)
            }
        };
        let part = |size, spread| match spread {
            Spread::Sharded => Part::of(size, rank, ranks),
            Spread::Replicated => Part::whole(size),
        };
        Share {
            rank,
            heads,
            key_value_heads,
            inner: part(inner, self.mlp),
            embedding: part(vocabulary, self.embedding),
            head: part(vocabulary, self.head),
        }
    }

    /// The config of what a rank holds: its heads and its MLP's width. All else is the model's.
    pub fn local_config(&self, config: &ModelConfig, rank: usize) -> ModelConfig {
        let share = self.share(rank);
        let count = |range: &Range<i64>| range.end - range.start;
        ModelConfig {
            heads: count(&share.heads),
            key_value_heads: count(&share.key_value_heads),
            intermediate_size: share.inner.held,
            ..config.clone()
        }
    }
}

impl Part {
    /// All of a size.
    pub fn whole(size: i64) -> Self {
        Self {
            range: 0..size,
            held: size,
        }
    }

    /// A rank's part of a size: equal lengths, the last ones padded.
    pub fn of(size: i64, rank: i64, ranks: i64) -> Self {
        let held = chunk(size, ranks);
        let start = (rank * held).min(size);
        Self {
            range: start..((rank + 1) * held).min(size),
            held,
        }
    }

    /// Indices of the whole that it holds.
    pub fn len(&self) -> i64 {
        self.range.end - self.range.start
    }

    /// Whether it holds nothing but padding.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Length of a part when all are equally long.
fn chunk(size: i64, ranks: i64) -> i64 {
    (size + ranks - 1) / ranks
}

fn misplaced(module: &str, style: Style) -> ModelError {
    ModelError::Parallel {
        problem: format!("style `{}` does not fit `{module}`", style.name()),
        hint: Some(
            "projections into a block are `colwise`, those out of it `rowwise`; `replicate` fits \
             every module"
                .to_owned(),
        ),
    }
}

/// Norms work on whole hidden states, and on heads one by one: there is nothing to spread.
fn refuse_spread_norms(rules: &Rules) -> Result<()> {
    let norm = |name: &str| name.ends_with("norm");
    match rules
        .iter()
        .find(|(name, style)| norm(name) && !style.is_replicated())
    {
        Some((name, style)) => Err(ModelError::Parallel {
            problem: format!("style `{}` does not fit the norm `{name}`", style.name()),
            hint: Some("use `replicate`".to_owned()),
        }),
        None => Ok(()),
    }
}
