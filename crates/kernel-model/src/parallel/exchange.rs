//! What ranks tell each other after each step, so that all take the same next tokens.
//!
//! No rank has all logits. For greedy decoding and for draws from the `k` most probable tokens, the best
//! of each rank are enough: a token that is among the best of all is among the best of its rank. Each rank
//! sends those, every rank gets the candidates of all in the same order and, from the same seed, takes
//! the same one. The ids that were fed are sent along, and differing ones end the run: ranks never
//! diverge in silence.

use tch::{Kind, Tensor};

use super::Collectives;
use crate::error::{ModelError, Result};

/// Entries beyond `k` that a rank may send where logits are equal: with 16-bit weights they often are.
const TIES: usize = 32;

/// The best tokens of one row with their logits, by ascending id.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Candidates {
    /// Token ids.
    pub(crate) ids: Vec<i64>,
    /// Their logits.
    pub(crate) logits: Vec<f32>,
}

impl Candidates {
    /// The `k` largest of a slice of logits whose first one belongs to token `offset`, and the equals of
    /// the smallest; all of them where `k` is 0.
    pub(crate) fn best(logits: &[f32], offset: i64, k: usize) -> Self {
        let threshold = if k == 0 || k >= logits.len() {
            f32::NEG_INFINITY
        } else if k == 1 {
            logits.iter().copied().fold(f32::NEG_INFINITY, f32::max)
        } else {
            let mut sorted = logits.to_vec();
            let (_, threshold, _) = sorted.select_nth_unstable_by(k - 1, |a, b| b.total_cmp(a));
            *threshold
        };
        let (ids, logits) = (offset..)
            .zip(logits)
            .filter(|(_, logit)| **logit >= threshold)
            .map(|(id, logit)| (id, *logit))
            .unzip();
        Self { ids, logits }
    }

    /// With more equals than can be sent.
    fn overflows(&self, k: usize) -> bool {
        self.ids.len() > k + TIES
    }
}

/// What one rank says.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Message {
    /// Whether it wants to end.
    pub(crate) cancel: bool,
    /// The id that it fed for each row; empty after prefill.
    pub(crate) fed: Vec<i64>,
    /// For each row, whether it ended for a reason that other ranks do not know, such as a text.
    pub(crate) ended: Vec<bool>,
    /// For each row, whether its logits are numbers.
    pub(crate) finite: Vec<bool>,
    /// For each row, its best tokens.
    pub(crate) candidates: Vec<Candidates>,
}

/// Messages of all ranks.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Exchange {
    pub(crate) messages: Vec<Message>,
    /// Whether a rank had more equals than fit, so that the candidates are not all.
    pub(crate) incomplete: bool,
}

impl Exchange {
    /// Sends this rank's message and gets those of all. `k` bounds the candidates of a row and is the same
    /// on all ranks, as is the number of rows.
    pub(crate) fn run(collectives: &dyn Collectives, message: &Message, k: usize) -> Result<Self> {
        let rows = message.ended.len();
        let tensor = Tensor::f_from_slice(&encode(message, k))?;
        let mut messages = Vec::new();
        let mut incomplete = false;
        for gathered in collectives.gather(&tensor)? {
            let mut words = vec![0_i32; gathered.numel()];
            gathered.f_copy_data(&mut words, gathered.numel())?;
            let (message, overflow) = decode(&words, rows, k);
            incomplete |= overflow;
            messages.push(message);
        }
        let exchange = Self {
            messages,
            incomplete,
        };
        exchange.check_agreement()?;
        Ok(exchange)
    }

    fn check_agreement(&self) -> Result<()> {
        let Some(first) = self.messages.first() else {
            return Ok(());
        };
        match self.messages.iter().position(|m| m.fed != first.fed) {
            Some(rank) => Err(ModelError::Parallel {
                problem: format!(
                    "rank {rank} went on with the tokens {:?} and the first rank with {:?}; the ranks \
                     do not run on equal machines, or not on the same request",
                    self.messages[rank].fed, first.fed
                ),
                hint: None,
            }),
            None => Ok(()),
        }
    }

    /// Whether any rank wants to end.
    pub(crate) fn cancelled(&self) -> bool {
        self.messages.iter().any(|message| message.cancel)
    }

    /// Whether any rank knows that a row has ended.
    pub(crate) fn ended(&self, row: usize) -> bool {
        self.messages
            .iter()
            .any(|m| m.ended.get(row).copied().unwrap_or(false))
    }

    /// Whether the logits of a row are numbers on all ranks.
    pub(crate) fn finite(&self, row: usize) -> bool {
        self.messages
            .iter()
            .all(|m| m.finite.get(row).copied().unwrap_or(true))
    }

    /// The candidates of a row from all ranks, by ascending id.
    pub(crate) fn candidates(&self, row: usize) -> Candidates {
        let mut all = Candidates::default();
        for message in &self.messages {
            if let Some(part) = message.candidates.get(row) {
                all.ids.extend(&part.ids);
                all.logits.extend(&part.logits);
            }
        }
        all
    }
}

/// Words of a message: cancel, then for each row the fed id (-1 for none), ended, finite, number of
/// candidates (-1 for too many), and places for candidates as pairs of id and bits of the logit.
fn encode(message: &Message, k: usize) -> Vec<i32> {
    let places = k + TIES;
    let mut words = vec![i32::from(message.cancel)];
    for row in 0..message.ended.len() {
        words.push(message.fed.get(row).map_or(-1, |id| *id as i32));
        words.push(i32::from(message.ended[row]));
        words.push(i32::from(message.finite.get(row).copied().unwrap_or(true)));
        let empty = Candidates::default();
        let candidates = message.candidates.get(row).unwrap_or(&empty);
        let count = if candidates.overflows(k) {
            -1
        } else {
            candidates.ids.len() as i32
        };
        words.push(count);
        let sent = usize::try_from(count).unwrap_or(0);
        let pairs = candidates.ids.iter().zip(&candidates.logits).take(sent);
        words.extend(pairs.flat_map(|(id, logit)| [*id as i32, logit.to_bits().cast_signed()]));
        words.extend(std::iter::repeat_n(0, 2 * (places - sent)));
    }
    words
}

/// The message, and whether candidates are missing from it.
fn decode(words: &[i32], rows: usize, k: usize) -> (Message, bool) {
    let mut message = Message {
        cancel: words.first().is_some_and(|word| *word != 0),
        ..Message::default()
    };
    let mut overflow = false;
    let width = 4 + 2 * (k + TIES);
    for words in words
        .get(1..)
        .unwrap_or_default()
        .chunks_exact(width)
        .take(rows)
    {
        if words[0] >= 0 {
            message.fed.push(i64::from(words[0]));
        }
        message.ended.push(words[1] != 0);
        message.finite.push(words[2] != 0);
        overflow |= words[3] < 0;
        let count = usize::try_from(words[3]).unwrap_or(0);
        let (ids, logits) = words[4..]
            .chunks_exact(2)
            .take(count)
            .map(|pair| (i64::from(pair[0]), f32::from_bits(pair[1].cast_unsigned())))
            .unzip();
        message.candidates.push(Candidates { ids, logits });
    }
    (message, overflow)
}

/// The logits of all ranks, [B, V], from each rank's slice, [B, held], in f32.
pub(crate) fn gather_logits(
    collectives: &dyn Collectives,
    local: &Tensor,
    vocabulary: i64,
) -> Result<Tensor> {
    let local = local.f_to_kind(Kind::Float)?.f_contiguous()?;
    let parts = collectives.gather(&local)?;
    Ok(Tensor::f_cat(&parts, -1)?.f_narrow(-1, 0, vocabulary)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_survives_the_way_through_words() {
        let message = Message {
            cancel: true,
            fed: vec![7, 151_935],
            ended: vec![false, true],
            finite: vec![true, false],
            candidates: vec![
                Candidates {
                    ids: vec![3, 9],
                    logits: vec![-1.5, f32::MIN],
                },
                Candidates::default(),
            ],
        };
        let words = encode(&message, 2);
        assert_eq!(decode(&words, 2, 2), (message, false));
    }

    #[test]
    fn the_best_of_a_slice_keep_their_ids_and_their_equals() {
        let logits = [1.0, 5.0, 2.0, 5.0, 3.0];
        let best = Candidates::best(&logits, 100, 1);
        assert_eq!(best.ids, [101, 103]);
        assert_eq!(Candidates::best(&logits, 0, 3).ids, [1, 3, 4]);
        assert_eq!(Candidates::best(&logits, 0, 0).ids.len(), 5);
    }

    #[test]
    fn more_equals_than_fit_are_told() {
        let message = Message {
            ended: vec![false],
            finite: vec![true],
            candidates: vec![Candidates::best(&[0.0; 100], 0, 1)],
            ..Message::default()
        };
        assert!(decode(&encode(&message, 1), 1, 1).1);
    }

    #[test]
    fn ranks_that_fed_other_tokens_are_named() {
        let message = |id| Message {
            fed: vec![id],
            ..Message::default()
        };
        let exchange = Exchange {
            messages: vec![message(4), message(4), message(5)],
            incomplete: false,
        };
        let error = exchange.check_agreement().unwrap_err();
        assert!(error.to_string().contains("rank 2"), "{error}");
    }
}
