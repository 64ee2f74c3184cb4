//! Rounding shapes up, so that requests of any length use few of them.
//!
//! Each new shape may cost a compile, on a TPU and in a compiled kernel. With buckets the number
//! of shapes is bounded and known before the run: prompt buckets times batch buckets for
//! prefill, batch buckets times cache buckets for decode.

/// Shapes of one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shapes {
    /// Rows, padding rows included.
    pub batch: i64,
    /// Columns of the prompt.
    pub prompt: i64,
    /// Columns of the cache.
    pub capacity: i64,
}

/// How shapes are rounded up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Buckets {
    /// Batch and prompt as they are: right where nothing compiles.
    Exact,
    /// Powers of two.
    PowersOfTwo,
}

/// Shortest prompt bucket.
const SMALLEST_PROMPT: i64 = 16;
/// Smallest cache; caches come in powers of two in any case, so that they can be used again.
const SMALLEST_CACHE: i64 = 256;

impl Buckets {
    /// Shapes for `rows` prompts of at most `longest` tokens whose rows fill at most `filled`
    /// columns of a cache; none is longer than `limit`, the model's context.
    pub fn shapes(self, rows: i64, longest: i64, filled: i64, limit: i64) -> Shapes {
        let (batch, prompt) = match self {
            Self::Exact => (rows, longest),
            Self::PowersOfTwo => (
                round_up(rows, 1),
                round_up(longest, SMALLEST_PROMPT).min(limit.max(longest)),
            ),
        };
        let capacity = round_up(filled.max(prompt), SMALLEST_CACHE)
            .min(limit)
            .max(filled)
            .max(prompt);
        Shapes {
            batch,
            prompt,
            capacity,
        }
    }

    /// All prefill shapes of requests with up to `rows` rows and `tokens` tokens, largest last.
    pub fn prompts(rows: i64, tokens: i64) -> Vec<(i64, i64)> {
        Self::products(rows, tokens, SMALLEST_PROMPT)
    }

    /// All decode shapes of such requests: rows, and columns of the cache.
    pub fn caches(rows: i64, tokens: i64) -> Vec<(i64, i64)> {
        Self::products(rows, tokens, SMALLEST_CACHE)
    }

    fn products(rows: i64, tokens: i64, smallest: i64) -> Vec<(i64, i64)> {
        let sizes = |from: i64, to: i64| {
            std::iter::successors(Some(from), |size| size.checked_mul(2))
                .take_while(move |size| *size < 2 * to)
        };
        sizes(1, rows.max(1))
            .flat_map(|batch| sizes(smallest, tokens.max(smallest)).map(move |n| (batch, n)))
            .collect()
    }
}

fn round_up(size: i64, smallest: i64) -> i64 {
    let size = u64::try_from(size.max(smallest)).unwrap_or(1);
    i64::try_from(size.next_power_of_two()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_thousand_lengths_use_few_shapes() {
        let mut prefill = BTreeSet::new();
        let mut decode = BTreeSet::new();
        for length in 1..=1000 {
            let shapes = Buckets::PowersOfTwo.shapes(1 + length % 4, length, length + 50, 2048);
            assert!(shapes.prompt >= length && shapes.capacity >= length + 50);
            prefill.insert((shapes.batch, shapes.prompt));
            decode.insert((shapes.batch, shapes.capacity));
        }
        let listed: BTreeSet<_> = Buckets::prompts(4, 1000).into_iter().collect();
        assert!(prefill.is_subset(&listed), "{prefill:?} against {listed:?}");
        assert!(listed.len() <= 21 && decode.len() <= 12);
    }

    #[test]
    fn shapes_never_outgrow_the_context() {
        let shapes = Buckets::PowersOfTwo.shapes(1, 90, 128, 128);
        assert_eq!(
            shapes,
            Shapes {
                batch: 1,
                prompt: 128,
                capacity: 128
            }
        );
        let shapes = Buckets::PowersOfTwo.shapes(3, 90, 100, 100);
        assert_eq!(
            shapes,
            Shapes {
                batch: 4,
                prompt: 100,
                capacity: 100
            }
        );
    }

    #[test]
    fn exact_shapes_still_round_the_cache() {
        let shapes = Buckets::Exact.shapes(3, 17, 40, 8192);
        assert_eq!(
            shapes,
            Shapes {
                batch: 3,
                prompt: 17,
                capacity: 256
            }
        );
    }
}
