//! One row of a generation: its tokens, its text, and its end.

use std::ops::ControlFlow;

use rand_chacha::ChaCha8Rng;

use super::stop::StopFilter;
use super::{Event, Finish, RowOutput};
use crate::error::Result;
use crate::parallel::Candidates;
use crate::sampling::{Sampling, random_of_row};
use crate::tokenizer::TextStream;

/// A row on its way.
pub(super) struct Row<'a> {
    index: usize,
    prompt: usize,
    history: Vec<i64>,
    most_new: usize,
    random: ChaCha8Rng,
    text: Option<RowText<'a>>,
    finish: Option<Finish>,
}

struct RowText<'a> {
    stream: TextStream<'a>,
    filter: StopFilter<'a>,
    out: String,
}

type OnEvent<'e> = dyn FnMut(Event<'_>) -> ControlFlow<()> + 'e;

impl<'a> Row<'a> {
    pub(super) fn new(
        index: usize,
        prompt: &[i64],
        most_new: usize,
        seed: u64,
        text: Option<(TextStream<'a>, &'a [String])>,
    ) -> Self {
        let text = text.map(|(stream, stops)| RowText {
            stream,
            filter: StopFilter::new(stops),
            out: String::new(),
        });
        Self {
            index,
            prompt: prompt.len(),
            history: prompt.to_vec(),
            most_new,
            random: random_of_row(seed, index),
            text,
            finish: (most_new == 0).then_some(Finish::Length),
        }
    }

    pub(super) fn index(&self) -> usize {
        self.index
    }

    /// Prompt and new tokens.
    pub(super) fn history(&self) -> &[i64] {
        &self.history
    }

    /// New tokens.
    pub(super) fn tokens(&self) -> &[i64] {
        &self.history[self.prompt..]
    }

    /// Tokens so far.
    pub(super) fn length(&self) -> i64 {
        self.history.len() as i64
    }

    /// Columns of the cache that it may fill; its last token is never fed.
    pub(super) fn most_filled(&self) -> i64 {
        (self.prompt + self.most_new.max(1) - 1) as i64
    }

    pub(super) fn active(&self) -> bool {
        self.finish.is_none()
    }

    /// Whether its tokens alone end it: the last one is among `eos`, or there are as many as may be. Unlike
    /// a text, every rank knows that.
    pub(super) fn complete(&self, eos: &[i64]) -> bool {
        self.tokens().len() >= self.most_new
            || self.tokens().last().is_some_and(|id| eos.contains(id))
    }

    /// Ends it where it is not complete: its text has what it was to stop at.
    pub(super) fn stop(&mut self) {
        self.finish.get_or_insert(Finish::Stop);
    }

    /// Token and column of the next step. A row that has ended writes its last token over and over
    /// into the column after its last fed one, which nobody reads.
    pub(super) fn next_input(&self, pad: i64) -> (i64, i64) {
        let id = self.history.last().copied().unwrap_or(pad);
        (id, self.length() - 1)
    }

    pub(super) fn cancel(&mut self) {
        self.finish.get_or_insert(Finish::Cancelled);
    }

    /// Chooses the next token from the row's logits, [V].
    pub(super) fn choose(
        &mut self,
        logits: &mut [f32],
        sampling: &Sampling,
        eos: &[i64],
        on_event: &mut OnEvent<'_>,
    ) -> Result<ControlFlow<()>> {
        let id = sampling.choose(logits, &self.history, &mut self.random) as i64;
        self.accept(id, eos, on_event)
    }

    /// Chooses the next token from prepared logits of all tokens that can be chosen.
    pub(super) fn choose_among(
        &mut self,
        candidates: &mut Candidates,
        sampling: &Sampling,
        eos: &[i64],
        on_event: &mut OnEvent<'_>,
    ) -> Result<ControlFlow<()>> {
        let index = sampling.select(&mut candidates.logits, &mut self.random);
        let id = candidates.ids.get(index).copied().unwrap_or(0);
        self.accept(id, eos, on_event)
    }

    /// Appends a token, and ends the row where it is the last.
    fn accept(
        &mut self,
        id: i64,
        eos: &[i64],
        on_event: &mut OnEvent<'_>,
    ) -> Result<ControlFlow<()>> {
        self.history.push(id);
        if eos.contains(&id) {
            self.finish = Some(Finish::Stop);
        } else if self.tokens().len() >= self.most_new {
            self.finish = Some(Finish::Length);
        }
        let mut flow = on_event(Event::Token {
            row: self.index,
            id,
        });
        if let Some(text) = &mut self.text {
            let piece = text.stream.push(id)?;
            let released = text.filter.push(&piece);
            if released.stopped {
                self.finish = Some(Finish::Stop);
            }
            if let ControlFlow::Break(()) = text.let_out(self.index, &released.text, on_event) {
                flow = ControlFlow::Break(());
            }
        }
        Ok(flow)
    }

    /// Closes the row and lets out what its text held back.
    pub(super) fn finish(&mut self, on_event: &mut OnEvent<'_>) -> Result<RowOutput> {
        let finish = self.finish.unwrap_or(Finish::Cancelled);
        let index = self.index;
        let text = match &mut self.text {
            Some(text) => {
                // After a stop string there is nothing more to say; else its possible start is.
                let piece = text.stream.finish()?;
                let released = text.filter.push(&piece);
                let mut rest = released.text;
                rest.push_str(&text.filter.finish());
                let _ = text.let_out(index, &rest, on_event);
                Some(std::mem::take(&mut text.out))
            }
            None => None,
        };
        Ok(RowOutput {
            prompt_tokens: self.prompt,
            tokens: self.tokens().to_vec(),
            text,
            finish,
        })
    }
}

impl RowText<'_> {
    fn let_out(&mut self, row: usize, text: &str, on_event: &mut OnEvent<'_>) -> ControlFlow<()> {
        if text.is_empty() {
            return ControlFlow::Continue(());
        }
        self.out.push_str(text);
        on_event(Event::Text { row, text })
    }
}
