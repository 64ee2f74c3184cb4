//! Attention of one new token a row over the cache, and the cache's step.

use tch::Tensor;

use super::by_kind;
use super::element::Element;
use super::threads::for_chunks;
use super::vector::{Vectors, add_weighted, products};
use super::view::{filled, integers, numbers, numbers_mut};
use crate::error::Result;
use crate::ops::{AttentionParameters, RowLengths};

/// Work, in numbers read from the cache, below which threads cost more than they save.
const WORTH_THREADS: usize = 16 * 1024;

/// Query [B, H, 1, D], caches [B, K, C, D], to [B, H, 1, D].
pub(crate) fn decode_attention(
    query: &Tensor,
    key_cache: &Tensor,
    value_cache: &Tensor,
    lengths: &RowLengths,
    parameters: &AttentionParameters,
) -> Result<Option<Tensor>> {
    by_kind!(
        query.f_kind()?,
        decode_attention_of(query, key_cache, value_cache, lengths, parameters)
    )
}

fn decode_attention_of<E: Element>(
    query: &Tensor,
    key_cache: &Tensor,
    value_cache: &Tensor,
    lengths: &RowLengths,
    parameters: &AttentionParameters,
) -> Result<Option<Tensor>> {
    let (Some(queries), Some(keys), Some(values)) = (
        numbers::<E>(query),
        numbers::<E>(key_cache),
        numbers::<E>(value_cache),
    ) else {
        return Ok(None);
    };
    let size = query.size();
    let (batch, shared, capacity, width) = key_cache.size4()?;
    let fits = value_cache.size() == key_cache.size()
        && lengths.host().len() as i64 == batch
        && matches!(*size, [b, h, 1, d] if b == batch && d == width && h % shared == 0);
    if !fits || queries.is_empty() {
        return Ok(None);
    }
    let (shared, capacity, width) = (shared as usize, capacity as usize, width as usize);
    // Query heads that read the same key/value head, in numbers.
    let group = queries.len() / (batch as usize * shared);
    let ends = lengths.host();
    let read: i64 = ends.iter().sum();
    let chunk = if read as usize * shared * width < WORTH_THREADS {
        queries.len()
    } else {
        group
    };
    let mut attended = vec![0.0_f32; queries.len()];
    for_chunks(&mut attended, chunk, &|part, attended| {
        for (n, attended) in attended.chunks_exact_mut(group).enumerate() {
            let place = part * (chunk / group) + n;
            let end = ends[place / shared] as usize;
            let start = match parameters.window {
                Some(window) => end.saturating_sub(window as usize),
                None => 0,
            };
            let seen = (place * capacity + start) * width..(place * capacity + end) * width;
            let heads = E::widen(&queries[place * group..(place + 1) * group]);
            for (head, attended) in heads
                .chunks_exact(width)
                .zip(attended.chunks_exact_mut(width))
            {
                attend(
                    head,
                    &keys[seen.clone()],
                    &values[seen.clone()],
                    parameters.scale,
                    attended,
                );
            }
        }
    });
    filled::<E>(&size, |out| {
        for (out, number) in out.iter_mut().zip(&attended) {
            *out = E::from_f32(*number);
        }
    })
    .map(Some)
}

/// One head over its keys and values.
fn attend<E: Element>(query: &[f32], keys: &[E], values: &[E], scale: f64, out: &mut [f32]) {
    let mut scores = vec![0.0_f32; keys.len() / query.len()];
    let vectors = Vectors::new(query.into(), query.len());
    products(keys, &vectors, &mut scores);
    let largest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut total = 0.0;
    for score in &mut scores {
        *score = ((*score - largest) * scale as f32).exp();
        total += *score;
    }
    add_weighted(values, &scores, out);
    for number in out {
        *number /= total;
    }
}

/// Stores one token a row, [B, K, 1, D], in caches that are seen as [B * K * C, D]; `false` where
/// libtorch has to do it.
pub(crate) fn write_step(
    places: &Tensor,
    key: &Tensor,
    value: &Tensor,
    key_cache: &mut Tensor,
    value_cache: &mut Tensor,
) -> Result<bool> {
    let kind = key.f_kind()?;
    let written = by_kind!(
        kind,
        write_step_of(places, key, value, key_cache, value_cache)
    )?;
    Ok(written.is_some())
}

fn write_step_of<E: Element>(
    places: &Tensor,
    key: &Tensor,
    value: &Tensor,
    key_cache: &mut Tensor,
    value_cache: &mut Tensor,
) -> Result<Option<()>> {
    let (rows, width) = key_cache.size2()?;
    let (Some(places), Some(key), Some(value)) =
        (integers(places), numbers::<E>(key), numbers::<E>(value))
    else {
        return Ok(None);
    };
    let inside = places.iter().all(|place| (0..rows).contains(place));
    let width = width as usize;
    if !inside || key.len() != places.len() * width || value.len() != key.len() {
        return Ok(None);
    }
    let (Some(keys), Some(values)) = (numbers_mut::<E>(key_cache), numbers_mut::<E>(value_cache))
    else {
        return Ok(None);
    };
    if keys.len() != values.len() {
        return Ok(None);
    }
    for (n, place) in places.iter().enumerate() {
        let (from, to) = (n * width..(n + 1) * width, *place as usize * width);
        keys[to..to + width].copy_from_slice(&key[from.clone()]);
        values[to..to + width].copy_from_slice(&value[from]);
    }
    Ok(Some(()))
}
