//! The number types of weights and activations.

use std::borrow::Cow;

use half::bf16;
use tch::Kind;

/// A number type that models run in.
pub(super) trait Element: Copy + Send + Sync + 'static {
    /// libtorch's name for it.
    const KIND: Kind;

    /// Its value.
    fn to_f32(self) -> f32;

    /// The nearest number of this type, ties to even.
    fn from_f32(value: f32) -> Self;

    /// Values of several; borrowed where nothing has to change.
    fn widen(numbers: &[Self]) -> Cow<'_, [f32]>;

    /// Puts sixteen f32 numbers in the order in which [`Element::load16`] gives them.
    #[cfg(target_arch = "x86_64")]
    fn arrange(numbers: &mut [f32; 16]);

    /// Sixteen numbers from memory as f32, in the order that is the cheapest for the type.
    ///
    /// # Safety
    /// Sixteen numbers can be read at `from`, and the processor has AVX2.
    #[cfg(target_arch = "x86_64")]
    #[expect(unsafe_code, reason = "vector loads take addresses")]
    unsafe fn load16(from: *const Self) -> [std::arch::x86_64::__m256; 2];

    /// Eight numbers from memory as f32, in their order.
    ///
    /// # Safety
    /// Eight numbers can be read at `from`, and the processor has AVX2.
    #[cfg(target_arch = "x86_64")]
    #[expect(unsafe_code, reason = "vector loads take addresses")]
    unsafe fn load8(from: *const Self) -> std::arch::x86_64::__m256;
}

impl Element for f32 {
    const KIND: Kind = Kind::Float;

    #[inline]
    fn to_f32(self) -> f32 {
        self
    }

    #[inline]
    fn from_f32(value: f32) -> Self {
        value
    }

    #[inline]
    fn widen(numbers: &[Self]) -> Cow<'_, [f32]> {
        Cow::Borrowed(numbers)
    }

    #[cfg(target_arch = "x86_64")]
    #[inline]
    fn arrange(_: &mut [f32; 16]) {}

    #[cfg(target_arch = "x86_64")]
    #[inline]
    #[target_feature(enable = "avx2")]
    #[expect(unsafe_code, reason = "vector loads take addresses")]
    unsafe fn load16(from: *const Self) -> [std::arch::x86_64::__m256; 2] {
        // SAFETY: the caller's promise.
        unsafe { [Self::load8(from), Self::load8(from.add(8))] }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline]
    #[target_feature(enable = "avx2")]
    #[expect(unsafe_code, reason = "vector loads take addresses")]
    unsafe fn load8(from: *const Self) -> std::arch::x86_64::__m256 {
        // SAFETY: the caller's promise; the load needs no alignment.
        unsafe { std::arch::x86_64::_mm256_loadu_ps(from) }
    }
}

impl Element for bf16 {
    const KIND: Kind = Kind::BFloat16;

    #[inline]
    fn to_f32(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }

    #[inline]
    fn from_f32(value: f32) -> Self {
        // Ties to even. A NaN keeps its sign and stays one.
        let bits = value.to_bits();
        let nearest = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
        let bits = if value.is_nan() {
            bits | 1 << 22
        } else {
            nearest
        };
        bf16::from_bits((bits >> 16) as u16)
    }

    #[inline]
    fn widen(numbers: &[Self]) -> Cow<'_, [f32]> {
        numbers
            .iter()
            .map(|number| Element::to_f32(*number))
            .collect()
    }

    #[cfg(target_arch = "x86_64")]
    #[inline]
    fn arrange(numbers: &mut [f32; 16]) {
        let before = *numbers;
        for (n, number) in before.into_iter().enumerate() {
            numbers[n / 2 + n % 2 * 8] = number;
        }
    }

    /// The numbers at even places, then those at odd ones: each pair is 32 bits, and what has to become
    /// of either half is one instruction. Widening in order takes a shuffle more, which halves the speed
    /// on processors whose units are 128 bits wide.
    #[cfg(target_arch = "x86_64")]
    #[inline]
    #[target_feature(enable = "avx2")]
    #[expect(unsafe_code, reason = "vector loads take addresses")]
    unsafe fn load16(from: *const Self) -> [std::arch::x86_64::__m256; 2] {
        use std::arch::x86_64::{
            _mm256_and_si256, _mm256_castsi256_ps, _mm256_loadu_si256, _mm256_set1_epi32,
            _mm256_slli_epi32,
        };
        // SAFETY: the caller's promise; the load needs no alignment. bf16 is the upper half of f32.
        let pairs = unsafe { _mm256_loadu_si256(from.cast()) };
        let upper = _mm256_set1_epi32(-0x1_0000);
        [
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(pairs)),
            _mm256_castsi256_ps(_mm256_and_si256(pairs, upper)),
        ]
    }

    #[cfg(target_arch = "x86_64")]
    #[inline]
    #[target_feature(enable = "avx2")]
    #[expect(unsafe_code, reason = "vector loads take addresses")]
    unsafe fn load8(from: *const Self) -> std::arch::x86_64::__m256 {
        use std::arch::x86_64::{
            _mm_loadu_si128, _mm256_castsi256_ps, _mm256_cvtepu16_epi32, _mm256_slli_epi32,
        };
        // SAFETY: the caller's promise; the load needs no alignment. bf16 is the upper half of f32.
        let narrow = unsafe { _mm_loadu_si128(from.cast()) };
        _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(narrow)))
    }
}

/// A value as it would come back from a tensor of the type.
#[inline]
pub(super) fn rounded<E: Element>(value: f32) -> f32 {
    E::from_f32(value).to_f32()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn bfloat16_is_rounded_as_everywhere(bits in any::<u32>()) {
            let value = f32::from_bits(bits);
            let (ours, theirs) = (<bf16 as Element>::from_f32(value), bf16::from_f32(value));
            prop_assert_eq!(ours.to_bits(), theirs.to_bits());
        }
    }
}
