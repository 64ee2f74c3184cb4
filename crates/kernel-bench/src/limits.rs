//! What this machine can do at most, measured in the run that it is the limit of.
//!
//! Makers' figures for processors are of little use here: threads, governor and other load decide.
//! The best of some large matrix products, and of some copies that no cache holds, is what a kernel
//! on the same threads could reach at the same time.

use std::time::{Duration, Instant};

use kernel_report::record::Limits;
use tch::{Device, Kind, TchError, Tensor};

/// Rows and columns of the product: large enough that libtorch's overhead is below 1%.
const SIDE: i64 = 1024;
/// Time for each of the two.
const TIME: Duration = Duration::from_millis(300);
/// Copied bytes where the size of the cache is not known.
const USUAL_COPY: u64 = 256 << 20;
/// Copied bytes at most.
const MOST_COPY: u64 = 512 << 20;

/// Measures products in the given dtype, and copies of four times the last-level cache.
///
/// # Errors
/// What libtorch reports, such as memory that runs out.
pub fn measure(kind: Kind, last_level_cache: Option<u64>) -> Result<Limits, TchError> {
    let _guard = tch::no_grad_guard();
    let square = Tensor::f_rand([SIDE, SIDE], (Kind::Float, Device::Cpu))?.f_to_kind(kind)?;
    let product = best(|| square.f_matmul(&square).map(drop))?;
    let bytes = last_level_cache.map_or(USUAL_COPY, |bytes| (bytes * 4).min(MOST_COPY)) as i64;
    let from = Tensor::f_zeros([bytes / 4], (Kind::Float, Device::Cpu))?;
    let mut to = Tensor::f_empty_like(&from)?;
    let copy = best(|| {
        to.f_copy_(&from)?;
        Ok(())
    })?;
    Ok(Limits {
        flops_per_s: 2.0 * (SIDE as f64).powi(3) / product,
        // Read once and written once.
        bytes_per_s: 2.0 * bytes as f64 / copy,
        method: format!(
            "best {kind:?} product of {SIDE} x {SIDE} and best copy of {} MiB in this run",
            bytes >> 20
        ),
    })
}

fn best(mut call: impl FnMut() -> Result<(), TchError>) -> Result<f64, TchError> {
    let started = Instant::now();
    let mut best = f64::INFINITY;
    while started.elapsed() < TIME || best.is_infinite() {
        let start = Instant::now();
        call()?;
        best = best.min(start.elapsed().as_secs_f64());
    }
    Ok(best)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_multiplies_and_copies_at_a_rate_that_is_plausible() {
        let limits = measure(Kind::Float, Some(1 << 20)).unwrap();
        // Any machine of this century, and none of the next.
        assert!((1e8..1e15).contains(&limits.flops_per_s), "{limits:?}");
        assert!((1e7..1e14).contains(&limits.bytes_per_s), "{limits:?}");
    }
}
