//! tokenizer.json: text to tokens and, token by token, back.

use std::path::Path;

use tokenizers::Tokenizer as Inner;

use crate::error::{ModelError, Result};

/// The tokenizer of a model.
#[derive(Debug, Clone)]
pub struct Tokenizer {
    inner: Inner,
}

impl Tokenizer {
    /// Reads `tokenizer.json` of a model directory; `None` where there is none, since models run
    /// on token ids without it.
    pub fn from_directory(directory: &Path) -> Result<Option<Self>> {
        let path = directory.join("tokenizer.json");
        if !path.is_file() {
            return Ok(None);
        }
        let bytes = std::fs::read(&path).map_err(|source| ModelError::Read {
            path: path.clone(),
            source,
        })?;
        Self::from_bytes(&bytes)
            .map(Some)
            .map_err(|error| ModelError::InvalidFile {
                path,
                problem: error.to_string(),
            })
    }

    /// Parses the contents of a tokenizer.json.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let mut inner = Inner::from_bytes(bytes).map_err(failure)?;
        // Settings of training: a prompt is neither cut nor padded behind the caller's back.
        inner.with_padding(None);
        inner.with_truncation(None).map_err(failure)?;
        Ok(Self { inner })
    }

    /// Tokens of a text. `special` adds what the tokenizer puts around a plain text, such as a
    /// beginning-of-sequence token; a chat template has written those itself.
    pub fn encode(&self, text: &str, special: bool) -> Result<Vec<i64>> {
        let encoding = self.inner.encode_fast(text, special).map_err(failure)?;
        Ok(encoding.get_ids().iter().map(|id| i64::from(*id)).collect())
    }

    /// Text of tokens, special ones left out.
    pub fn decode(&self, ids: &[i64]) -> Result<String> {
        let ids = ids
            .iter()
            .map(|id| token_id(*id))
            .collect::<Result<Vec<_>>>()?;
        self.inner.decode(&ids, true).map_err(failure)
    }

    /// The id of a token, if it is one.
    pub fn token_to_id(&self, token: &str) -> Option<i64> {
        self.inner.token_to_id(token).map(i64::from)
    }

    /// One more than the largest id it knows.
    pub fn vocabulary_size(&self) -> i64 {
        let largest = self.inner.get_vocab(true).into_values().max();
        largest.map_or(0, |id| i64::from(id) + 1)
    }

    /// Starts turning a growing row of tokens into text.
    pub fn stream(&self) -> TextStream<'_> {
        TextStream {
            tokenizer: self,
            ids: Vec::new(),
            context: 0,
            shown: String::new(),
        }
    }
}

fn token_id(id: i64) -> Result<u32> {
    u32::try_from(id).map_err(|_| ModelError::Tokenizer(format!("{id} is not a token id")))
}

/// Text of a row that grows by tokens.
///
/// A character may be spread over several tokens, and the text of a token may depend on the one
/// before it. So a window of the last tokens is decoded as a whole, and what comes out is what
/// its text has gained, without an end that may still become a character.
#[derive(Debug)]
pub struct TextStream<'a> {
    tokenizer: &'a Tokenizer,
    /// Tokens of the window.
    ids: Vec<i64>,
    /// Tokens at the head of the window that are there as context only.
    context: usize,
    /// The window's text that is out.
    shown: String,
}

/// What a decoder puts in place of bytes that are no character (yet).
const REPLACEMENT: char = '\u{fffd}';

/// Bytes of the longest character of UTF-8 that may come before its last one: so many replacement
/// characters at the end of a text may still become something else.
const UNDECIDED: usize = 3;

/// Tokens without a whole character at their end after which nothing is held back any more.
const LONGEST_WINDOW: usize = 64;

impl TextStream<'_> {
    /// Adds a token; returns the text that it completes, often all of its own.
    pub fn push(&mut self, id: i64) -> Result<String> {
        self.ids.push(id);
        let text = self.tokenizer.decode(&self.ids)?;
        let replaced = text.chars().rev().take_while(|c| *c == REPLACEMENT).count();
        let held = replaced.min(UNDECIDED) * REPLACEMENT.len_utf8();
        if held == 0 || self.ids.len() > LONGEST_WINDOW {
            let new = self.gained(&text);
            if !new.is_empty() {
                // The tokens that were new are the context of the next ones.
                self.ids.drain(..self.context);
                self.context = self.ids.len();
                self.shown = self.tokenizer.decode(&self.ids)?;
            }
            return Ok(new);
        }
        let new = self.gained(&text[..text.len() - held]);
        self.shown.push_str(&new);
        Ok(new)
    }

    /// Ends the row; returns what was held back, with replacement characters for bytes that
    /// never became a character.
    pub fn finish(&mut self) -> Result<String> {
        let text = self.tokenizer.decode(&self.ids)?;
        let new = self.gained(&text);
        self.shown = text;
        Ok(new)
    }

    /// What a text has beyond the part that is out. That stays, even where later tokens change
    /// what it should have been.
    fn gained(&self, text: &str) -> String {
        let shared: usize = text
            .chars()
            .zip(self.shown.chars())
            .take_while(|(now, then)| now == then)
            .map(|(c, _)| c.len_utf8())
            .sum();
        text[shared..].to_owned()
    }
}

#[expect(
    clippy::needless_pass_by_value,
    reason = "the signature that map_err wants"
)]
fn failure(error: tokenizers::Error) -> ModelError {
    ModelError::Tokenizer(error.to_string())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A byte-level tokenizer with one token a byte: the worst case for splitting characters.
    fn byte_level() -> Tokenizer {
        let mut printable: Vec<u32> = (33..=126).chain(161..=172).chain(174..=255).collect();
        let mut characters: Vec<(u32, char)> = printable
            .iter()
            .filter_map(|b| Some((*b, char::from_u32(*b)?)))
            .collect();
        let mut next = 256;
        for byte in 0..256 {
            if !printable.contains(&byte) {
                characters.push((byte, char::from_u32(next).unwrap()));
                next += 1;
                printable.push(byte);
            }
        }
        let vocabulary: serde_json::Map<String, serde_json::Value> = characters
            .iter()
            .map(|(byte, c)| (c.to_string(), (*byte).into()))
            .collect();
        let document = serde_json::json!({
            "version": "1.0",
            "added_tokens": [{
                "id": 256, "content": "<end>", "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": false, "special": true
            }],
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false,
                "trim_offsets": true, "use_regex": true},
            "decoder": {"type": "ByteLevel", "add_prefix_space": false,
                "trim_offsets": true, "use_regex": true},
            "model": {"type": "BPE", "vocab": vocabulary, "merges": []}
        });
        Tokenizer::from_bytes(document.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn a_character_comes_out_whole_with_its_last_byte() {
        let tokenizer = byte_level();
        let mut stream = tokenizer.stream();
        let pieces: Vec<String> = "a€b"
            .bytes()
            .map(|byte| stream.push(byte.into()).unwrap())
            .collect();
        assert_eq!(pieces, ["a", "", "", "€", "b"]);
        assert_eq!(stream.finish().unwrap(), "");
    }

    #[test]
    fn bytes_that_never_become_a_character_do_not_hold_back_the_rest() {
        let tokenizer = byte_level();
        let mut stream = tokenizer.stream();
        let mut text = String::new();
        for byte in [0xe2, 0x82, b'x', 0xff, 0xff, 0xff, 0xff, 0xff, b'y'] {
            text += &stream.push(byte.into()).unwrap();
        }
        text += &stream.finish().unwrap();
        assert!(text.contains('x') && text.ends_with('y'), "{text:?}");
    }

    #[test]
    fn special_tokens_leave_no_text() {
        let tokenizer = byte_level();
        let mut stream = tokenizer.stream();
        assert_eq!(stream.push(256).unwrap(), "");
        assert_eq!(stream.push(b'k'.into()).unwrap(), "k");
    }

    #[test]
    fn a_negative_id_is_an_error() {
        assert!(byte_level().decode(&[-1]).is_err());
    }

    #[test]
    fn a_directory_without_a_tokenizer_is_fine() {
        let directory = tempfile::tempdir().unwrap();
        assert!(
            Tokenizer::from_directory(directory.path())
                .unwrap()
                .is_none()
        );
        std::fs::write(directory.path().join("tokenizer.json"), "{").unwrap();
        let error = Tokenizer::from_directory(directory.path()).unwrap_err();
        assert!(error.to_string().contains("tokenizer.json"), "{error}");
    }

    proptest! {
        #[test]
        fn streamed_text_is_the_text(text in "\\PC{0,40}") {
            let tokenizer = byte_level();
            let mut stream = tokenizer.stream();
            let mut streamed = String::new();
            for id in tokenizer.encode(&text, false).unwrap() {
                let piece = stream.push(id).unwrap();
                prop_assert!(!piece.contains(REPLACEMENT) || text.contains(REPLACEMENT));
                streamed += &piece;
            }
            streamed += &stream.finish().unwrap();
            prop_assert_eq!(streamed, text);
        }
    }
}
