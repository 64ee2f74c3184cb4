//! Whether two arms compute the same: no time is shown for a kernel that is wrong.
//!
//! Deviations are measured in f64. NaN and infinity are counted apart from finite deviations,
//! because one NaN would otherwise hide, or be hidden by, every other number.

pub use kernel_report::Correctness;
use tch::{Kind, TchError, Tensor};

/// Absolute and relative tolerance for results of a dtype, as `allclose` uses them.
///
/// f32: sums over some thousand terms in another order differ by about 1e-5 of their size; ten
/// times that is left. bf16 and f16: two units in the last place (2^-8 and 2^-11) for the result's
/// rounding and the rounding of one intermediate.
pub fn tolerance(kind: Kind) -> (f64, f64) {
    match kind {
        Kind::Double => (1e-10, 1e-10),
        Kind::BFloat16 => (1.6e-2, 1.6e-2),
        Kind::Half => (2e-3, 2e-3),
        _ => (1e-4, 1e-4),
    }
}

/// Compares a result with its reference; shapes that differ are a complete mismatch.
///
/// # Errors
/// What libtorch reports, such as memory that runs out.
pub fn compare(reference: &Tensor, result: &Tensor) -> Result<Correctness, TchError> {
    compare_within(reference, result, tolerance(result.kind()))
}

/// As [`compare`], with an absolute and a relative tolerance of the caller's.
///
/// # Errors
/// What libtorch reports, such as memory that runs out.
pub fn compare_within(
    reference: &Tensor,
    result: &Tensor,
    (tolerance_absolute, tolerance_relative): (f64, f64),
) -> Result<Correctness, TchError> {
    if reference.size() != result.size() {
        return Ok(Correctness {
            ok: false,
            max_absolute: f64::MAX,
            max_relative: f64::MAX,
            non_finite_mismatches: reference.numel() as i64,
            tolerance_absolute,
            tolerance_relative,
        });
    }
    let reference = reference.f_to_kind(Kind::Double)?;
    let result = result.f_to_kind(Kind::Double)?;
    let finite = reference
        .f_isfinite()?
        .f_logical_and(&result.f_isfinite()?)?;
    // Equal infinities and NaN on both sides count as the same.
    let same_kind = reference
        .f_eq_tensor(&result)?
        .f_logical_or(&reference.f_isnan()?.f_logical_and(&result.f_isnan()?)?)?;
    let mismatches = finite.f_logical_or(&same_kind)?.f_logical_not()?;
    let non_finite_mismatches = mismatches.f_sum(Kind::Int64)?.f_int64_value(&[])?;
    let zero = Tensor::zeros_like(&reference);
    let reference = reference.f_where_self(&finite, &zero)?;
    let result = result.f_where_self(&finite, &zero)?;
    let deviation = (&result - &reference).f_abs()?;
    let allowed = reference.f_abs()?.f_mul_scalar(tolerance_relative)? + tolerance_absolute;
    let within = deviation
        .f_le_tensor(&allowed)?
        .f_all()?
        .f_int64_value(&[])?
        != 0;
    let largest = |tensor: &Tensor| -> Result<f64, TchError> {
        if tensor.numel() == 0 {
            Ok(0.0)
        } else {
            tensor.f_max()?.f_double_value(&[])
        }
    };
    let max_absolute = largest(&deviation)?;
    let magnitude = largest(&reference.f_abs()?)?;
    Ok(Correctness {
        ok: within && non_finite_mismatches == 0,
        max_absolute,
        max_relative: if magnitude > 0.0 {
            max_absolute / magnitude
        } else {
            max_absolute
        },
        non_finite_mismatches,
        tolerance_absolute,
        tolerance_relative,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(values: &[f32]) -> Tensor {
        Tensor::from_slice(values)
    }

    #[test]
    fn equal_results_agree_and_report_no_deviation() {
        let c = compare(&tensor(&[1.0, -2.0]), &tensor(&[1.0, -2.0])).unwrap();
        assert!(c.ok);
        assert_eq!((c.max_absolute, c.non_finite_mismatches), (0.0, 0));
    }

    #[test]
    fn a_deviation_beyond_the_tolerance_is_reported_with_its_size() {
        let c = compare(&tensor(&[1.0, 2.0]), &tensor(&[1.0, 2.5])).unwrap();
        assert!(!c.ok);
        assert_eq!((c.max_absolute, c.max_relative), (0.5, 0.25));
    }

    #[test]
    fn nan_and_infinity_are_counted_apart_and_do_not_hide_deviations() {
        let nan = f32::NAN;
        let inf = f32::INFINITY;
        let c = compare(
            &tensor(&[nan, inf, inf, 1.0, 1.0]),
            &tensor(&[nan, inf, -inf, nan, 1.25]),
        )
        .unwrap();
        assert!(!c.ok);
        assert_eq!((c.non_finite_mismatches, c.max_absolute), (2, 0.25));
    }

    #[test]
    fn another_shape_is_a_complete_mismatch() {
        let c = compare(&tensor(&[1.0]), &tensor(&[1.0, 1.0])).unwrap();
        assert!(!c.ok && c.max_absolute > 1e300);
    }
}
