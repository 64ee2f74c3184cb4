//! Dot products and weighted sums over rows of numbers, in f32.
//!
//! One row at a time: a single stream through memory is what the processor's prefetching follows
//! best. Four rows at once, the usual shape of such loops, reached half the bandwidth here. The
//! processor's own prefetching ends at each page of 4 KiB, so the loop asks for what lies ahead.

use std::borrow::Cow;
use std::marker::PhantomData;

use super::element::Element;

/// Vectors to multiply with rows of `E`, in the order in which such rows are read.
pub(super) struct Vectors<'a, E> {
    numbers: Cow<'a, [f32]>,
    width: usize,
    rows: PhantomData<E>,
}

impl<'a, E: Element> Vectors<'a, E> {
    /// Vectors of `width` numbers, one after the other.
    pub(super) fn new(numbers: Cow<'a, [f32]>, width: usize) -> Self {
        Self {
            numbers: arranged::<E>(numbers, width),
            width,
            rows: PhantomData,
        }
    }

    /// Numbers in each of them.
    pub(super) fn width(&self) -> usize {
        self.width
    }

    /// How many they are.
    pub(super) fn count(&self) -> usize {
        self.numbers.len() / self.width
    }
}

#[cfg(target_arch = "x86_64")]
fn arranged<E: Element>(numbers: Cow<'_, [f32]>, width: usize) -> Cow<'_, [f32]> {
    // Numbers that are f32 already come in their own order.
    if E::KIND == tch::Kind::Float || !avx2::available() {
        return numbers;
    }
    let mut numbers = numbers.into_owned();
    for vector in numbers.chunks_exact_mut(width) {
        let (groups, _) = vector.as_chunks_mut();
        groups.iter_mut().for_each(E::arrange);
    }
    numbers.into()
}

#[cfg(not(target_arch = "x86_64"))]
fn arranged<E: Element>(numbers: Cow<'_, [f32]>, _: usize) -> Cow<'_, [f32]> {
    numbers
}

/// Products of every row with every vector: `out[r * count + n]` is that of row `r` with the n-th
/// of `count` vectors.
pub(super) fn products<E: Element>(rows: &[E], vectors: &Vectors<'_, E>, out: &mut [f32]) {
    let (xs, width) = (&*vectors.numbers, vectors.width);
    #[cfg(target_arch = "x86_64")]
    if avx2::available() {
        // SAFETY: the processor has the instructions.
        #[expect(unsafe_code, reason = "a function for certain processors")]
        unsafe {
            avx2::products(rows, xs, width, out);
        }
        return;
    }
    let count = xs.len() / width;
    for (row, out) in rows.chunks_exact(width).zip(out.chunks_exact_mut(count)) {
        for (x, out) in xs.chunks_exact(width).zip(out) {
            *out = plain_dot(row, x);
        }
    }
}

/// Adds `weights[r] * rows[r]` for all rows to `sum`, whose length is a row's.
pub(super) fn add_weighted<E: Element>(rows: &[E], weights: &[f32], sum: &mut [f32]) {
    #[cfg(target_arch = "x86_64")]
    if avx2::available() {
        // SAFETY: the processor has the instructions.
        #[expect(unsafe_code, reason = "a function for certain processors")]
        unsafe {
            avx2::add_weighted(rows, weights, sum);
        }
        return;
    }
    for (row, weight) in rows.chunks_exact(sum.len()).zip(weights) {
        for (sum, number) in sum.iter_mut().zip(row) {
            *sum += weight * number.to_f32();
        }
    }
}

/// Eight sums side by side, which any compiler turns into vector instructions.
fn plain_dot<E: Element>(row: &[E], x: &[f32]) -> f32 {
    const LANES: usize = 8;
    let mut sums = [0.0_f32; LANES];
    let (rows, xs) = (row.chunks_exact(LANES), x.chunks_exact(LANES));
    let rest: f32 = rows
        .remainder()
        .iter()
        .zip(xs.remainder())
        .map(|(number, x)| number.to_f32() * x)
        .sum();
    for (row, x) in rows.zip(xs) {
        for lane in 0..LANES {
            sums[lane] += row[lane].to_f32() * x[lane];
        }
    }
    sums.iter().sum::<f32>() + rest
}

#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "vector loads and stores take addresses")]
mod avx2 {
    use std::arch::x86_64::{
        __m256, _MM_HINT_T0, _mm_add_ps, _mm_add_ss, _mm_cvtss_f32, _mm_movehdup_ps, _mm_movehl_ps,
        _mm_prefetch, _mm256_add_ps, _mm256_castps256_ps128, _mm256_extractf128_ps,
        _mm256_fmadd_ps, _mm256_loadu_ps, _mm256_set1_ps, _mm256_setzero_ps, _mm256_storeu_ps,
    };

    use super::super::element::Element;

    /// Numbers in a vector.
    const LANES: usize = 8;
    /// Numbers of a pass of the loop: its four sums hide the latency of an addition.
    const STEP: usize = 32;
    /// How far ahead memory is asked for, in bytes: what arrives within the time of one access to it.
    const AHEAD: usize = 2048;
    const CACHE_LINE: usize = 64;

    pub(super) fn available() -> bool {
        is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma")
    }

    #[target_feature(enable = "avx2,fma")]
    pub(super) fn products<E: Element>(rows: &[E], xs: &[f32], width: usize, out: &mut [f32]) {
        let count = xs.len() / width;
        for (row, out) in rows.chunks_exact(width).zip(out.chunks_exact_mut(count)) {
            for (x, out) in xs.chunks_exact(width).zip(out) {
                *out = dot(row, x);
            }
        }
    }

    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn dot<E: Element>(row: &[E], x: &[f32]) -> f32 {
        let length = row.len().min(x.len());
        let mut sums = [_mm256_setzero_ps(); 4];
        let mut at = 0;
        while at + STEP <= length {
            let here = row[at..].as_ptr();
            for line in 0..STEP * size_of::<E>() / CACHE_LINE {
                let ahead = here.wrapping_byte_add(AHEAD + line * CACHE_LINE);
                // Any address may be asked for.
                _mm_prefetch::<_MM_HINT_T0>(ahead.cast());
            }
            for half in 0..2 {
                let at = at + half * 2 * LANES;
                // SAFETY: `at + 2 * LANES` is at most the length of both.
                let ([first, second], x, y) = unsafe {
                    let x = x.as_ptr().add(at);
                    (
                        E::load16(row.as_ptr().add(at)),
                        _mm256_loadu_ps(x),
                        _mm256_loadu_ps(x.add(LANES)),
                    )
                };
                sums[2 * half] = _mm256_fmadd_ps(first, x, sums[2 * half]);
                sums[2 * half + 1] = _mm256_fmadd_ps(second, y, sums[2 * half + 1]);
            }
            at += STEP;
        }
        if at + 2 * LANES <= length {
            // SAFETY: sixteen numbers of both lie at `at`.
            let ([first, second], x, y) = unsafe {
                let x = x.as_ptr().add(at);
                (
                    E::load16(row.as_ptr().add(at)),
                    _mm256_loadu_ps(x),
                    _mm256_loadu_ps(x.add(LANES)),
                )
            };
            sums[0] = _mm256_fmadd_ps(first, x, sums[0]);
            sums[1] = _mm256_fmadd_ps(second, y, sums[1]);
            at += 2 * LANES;
        }
        // Fewer than sixteen: these lie in their own order.
        let rest: f32 = row[at..length]
            .iter()
            .zip(&x[at..length])
            .map(|(number, x)| number.to_f32() * x)
            .sum();
        total(_mm256_add_ps(
            _mm256_add_ps(sums[0], sums[1]),
            _mm256_add_ps(sums[2], sums[3]),
        )) + rest
    }

    #[target_feature(enable = "avx2,fma")]
    pub(super) fn add_weighted<E: Element>(rows: &[E], weights: &[f32], sum: &mut [f32]) {
        let width = sum.len();
        for (row, weight) in rows.chunks_exact(width).zip(weights) {
            let factor = _mm256_set1_ps(*weight);
            let mut at = 0;
            while at + LANES <= width {
                // SAFETY: `at + LANES` is at most the length of both.
                unsafe {
                    let sum = sum.as_mut_ptr().add(at);
                    let added = _mm256_fmadd_ps(
                        factor,
                        E::load8(row.as_ptr().add(at)),
                        _mm256_loadu_ps(sum),
                    );
                    _mm256_storeu_ps(sum, added);
                }
                at += LANES;
            }
            for (sum, number) in sum[at..].iter_mut().zip(&row[at..]) {
                *sum += weight * number.to_f32();
            }
        }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn total(lanes: __m256) -> f32 {
        let four = _mm_add_ps(
            _mm256_castps256_ps128(lanes),
            _mm256_extractf128_ps::<1>(lanes),
        );
        let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
        _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
    }
}

#[cfg(test)]
mod tests {
    use half::bf16;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn products_are_those_of_long_arithmetic(width in 1_usize..70, count in 1_usize..4, seed in 0_u32..50) {
            let number = |n: usize| ((n as u32 * 7 + seed) % 23) as f32 / 8.0 - 1.0;
            let rows: Vec<bf16> = (0..5 * width).map(|n| bf16::from_f32(number(n))).collect();
            let xs: Vec<f32> = (0..count * width).map(|n| number(n * 3 + 1)).collect();
            let mut out = vec![f32::NAN; 5 * count];
            products(&rows, &Vectors::new(xs.as_slice().into(), width), &mut out);
            for (row, out) in rows.chunks(width).zip(out.chunks(count)) {
                for (x, out) in xs.chunks(width).zip(out) {
                    let exact: f64 = row.iter().zip(x).map(|(a, b)| a.to_f64() * f64::from(*b)).sum();
                    prop_assert!((f64::from(*out) - exact).abs() < 1e-4);
                    prop_assert!((f64::from(plain_dot(row, x)) - exact).abs() < 1e-4);
                }
            }
        }

        #[test]
        fn weighted_sums_are_those_of_long_arithmetic(width in 1_usize..40, rows in 0_usize..9) {
            let numbers: Vec<f32> = (0..rows * width).map(|n| (n % 11) as f32 - 5.0).collect();
            let weights: Vec<f32> = (0..rows).map(|n| n as f32 / 4.0 - 1.0).collect();
            let mut sum = vec![1.0_f32; width];
            add_weighted(&numbers, &weights, &mut sum);
            for (column, sum) in sum.iter().enumerate() {
                let exact: f32 = (0..rows).map(|row| weights[row] * numbers[row * width + column]).sum();
                prop_assert!((sum - exact - 1.0).abs() < 1e-4);
            }
        }
    }
}
