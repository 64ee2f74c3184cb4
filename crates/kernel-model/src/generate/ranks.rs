//! Choosing tokens when no rank has all logits.

use std::ops::ControlFlow;

use tch::Tensor;

use super::row::Row;
use super::{Event, Flow, Run, host_logits};
use crate::config::ModelConfig;
use crate::error::Result;
use crate::parallel::{Candidates, Exchange, Group, Message, Part, gather_logits};
use crate::sampling::Sampling;

/// What all ranks have to do in the same way.
pub(super) struct Agreed {
    /// The first rank's seed.
    pub(super) seed: u64,
    /// Whether an op of any rank compiles for each new shape.
    pub(super) compiles_per_shape: bool,
}

/// Settles it, in one exchange before a generation.
pub(super) fn agree(group: Option<&Group>, seed: u64, compiles_per_shape: bool) -> Result<Agreed> {
    let own = Agreed {
        seed,
        compiles_per_shape,
    };
    let Some(group) = group else {
        return Ok(own);
    };
    let words = [seed.cast_signed(), i64::from(compiles_per_shape)];
    let all = group.collectives.gather(&Tensor::f_from_slice(&words)?)?;
    let mut agreed = own;
    for (rank, words) in all.iter().enumerate() {
        if rank == 0 {
            agreed.seed = words.f_int64_value(&[0])?.cast_unsigned();
        }
        agreed.compiles_per_shape |= words.f_int64_value(&[1])? != 0;
    }
    Ok(agreed)
}

/// The ranks of one generation.
pub(super) struct Ranks {
    group: Group,
    vocabulary: i64,
    part: Part,
    /// How many of each rank's tokens decide; `None` where all do.
    deciding: Option<usize>,
    /// What was fed for each row; empty before the first step.
    fed: Vec<i64>,
    /// Rows that go on, as far as all ranks know.
    open: Vec<bool>,
}

impl Ranks {
    pub(super) fn new(
        group: Group,
        config: &ModelConfig,
        rows: usize,
        sampling: &Sampling,
    ) -> Self {
        Self {
            vocabulary: config.vocab_size,
            part: group.layout.share(group.rank()).head,
            deciding: sampling.deciding(),
            fed: Vec::new(),
            open: vec![true; rows],
            group,
        }
    }

    /// Whether any row needs another step.
    pub(super) fn goes_on(&self) -> bool {
        self.open.iter().any(|open| *open)
    }

    /// This rank's logits of a row, without padding.
    fn own<'l>(&self, logits: &'l mut [f32]) -> &'l mut [f32] {
        let length = (self.part.len() as usize).min(logits.len());
        &mut logits[..length]
    }

    /// All logits on the host, one row after the other.
    fn everything(&self, local: &Tensor, rows: usize) -> Result<Vec<f32>> {
        let all = if self.part.held == self.vocabulary {
            local.shallow_clone()
        } else {
            gather_logits(&*self.group.collectives, local, self.vocabulary)?
        };
        host_logits(&all, rows)
    }
}

impl Run<'_, '_> {
    /// Chooses the next token of each row that goes on, the same one on every rank. There is one exchange
    /// a step; where all tokens decide, or more of them are equal than are sent, all logits are gathered
    /// in a second one.
    pub(super) fn choose_with(
        &mut self,
        ranks: &mut Ranks,
        rows: &mut [Row<'_>],
        logits: &Tensor,
        stopped: bool,
        on_event: &mut dyn FnMut(Event<'_>) -> ControlFlow<()>,
    ) -> Result<Flow> {
        let mut host = host_logits(logits, rows.len())?;
        let width = host.len() / rows.len();
        let mut message = Message {
            cancel: stopped,
            fed: std::mem::take(&mut ranks.fed),
            ..Message::default()
        };
        for (n, (row, logits)) in rows.iter().zip(host.chunks_exact_mut(width)).enumerate() {
            let own = ranks.own(logits);
            message.ended.push(ranks.open[n] && !row.active());
            message
                .finite
                .push(!ranks.open[n] || own.iter().all(|logit| logit.is_finite()));
            message.candidates.push(match ranks.deciding {
                Some(k) if ranks.open[n] && ranks.is_sharded_or_first() => {
                    self.sampling
                        .prepare(own, ranks.part.range.start, row.history());
                    Candidates::best(own, ranks.part.range.start, k)
                }
                _ => Candidates::default(),
            });
        }
        let places = ranks.deciding.unwrap_or(0);
        let exchange = Exchange::run(&*ranks.group.collectives, &message, places)?;
        if exchange.cancelled() {
            return Ok(Flow::Cancelled);
        }
        for (n, row) in rows.iter_mut().enumerate() {
            if ranks.open[n] && exchange.ended(n) {
                row.stop();
                ranks.open[n] = false;
            }
            if ranks.open[n] && !exchange.finite(n) {
                return Ok(Flow::NotFinite { row: n });
            }
        }
        let whole = if ranks.deciding.is_none() || exchange.incomplete {
            Some(ranks.everything(logits, rows.len())?)
        } else {
            None
        };
        let mut stop = false;
        for (n, row) in rows.iter_mut().enumerate() {
            if !ranks.open[n] {
                continue;
            }
            let mut candidates = match &whole {
                Some(whole) => {
                    let width = whole.len() / ranks.open.len();
                    let mut logits = whole[n * width..(n + 1) * width].to_vec();
                    self.sampling.prepare(&mut logits, 0, row.history());
                    Candidates {
                        ids: (0..logits.len() as i64).collect(),
                        logits,
                    }
                }
                None => exchange.candidates(n),
            };
            stop |= row
                .choose_among(&mut candidates, &self.sampling, &self.eos, on_event)?
                .is_break();
            ranks.open[n] = !row.complete(&self.eos);
        }
        ranks.fed = rows.iter().map(|row| row.next_input(self.pad).0).collect();
        Ok(Flow::Go { stop })
    }
}

impl Ranks {
    /// Whether this rank's candidates count: where the head is replicated, all have the same.
    fn is_sharded_or_first(&self) -> bool {
        self.part.held != self.vocabulary || self.group.rank() == 0
    }
}
