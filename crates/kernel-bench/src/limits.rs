//! What this machine can do at most, measured in the run that it is the limit of.
//!
//! Makers' figures for processors are of little use here: threads, governor and other load decide.
//! The best of some large matrix products, and of some copies, is what a kernel on the same threads
//! could reach at the same time. Copies are as large as what a call reads and writes where the caches
//! are hot, because then a call may go beyond what memory gives; else no cache holds them.

use std::time::{Duration, Instant};

use kernel_report::record::Limits;
use tch::{Device, Kind, TchError, Tensor};

/// Rows and columns of the product: large enough that libtorch's overhead is below 1%.
const SIDE: i64 = 1024;
/// Time for each of the two.
const TIME: Duration = Duration::from_millis(200);
/// Copied bytes where nothing is known of the caches.
const USUAL_COPY: u64 = 256 << 20;
/// Copied bytes at most.
const MOST_COPY: u64 = 256 << 20;
/// Copied bytes at least: below that, a copy measures the cost of the call.
const LEAST_COPY: u64 = 64 << 10;

/// Bytes of a copy that no cache holds, for a machine with a last-level cache of this size.
pub fn beyond_caches(last_level_cache: Option<u64>) -> u64 {
    last_level_cache.map_or(USUAL_COPY, |bytes| bytes.saturating_mul(2))
}

/// Operations a second in the given dtype.
///
/// # Errors
/// What libtorch reports, such as memory that runs out.
pub fn flops_per_s(kind: Kind) -> Result<f64, TchError> {
    let _guard = tch::no_grad_guard();
    let square = Tensor::f_rand([SIDE, SIDE], (Kind::Float, Device::Cpu))?.f_to_kind(kind)?;
    let product = best(|| square.f_matmul(&square).map(drop))?;
    Ok(2.0 * (SIDE as f64).powi(3) / product)
}

/// Limits for calls that read and write `bytes`; `flops_per_s` is that of [`flops_per_s`].
///
/// # Errors
/// What libtorch reports, such as memory that runs out.
pub fn measure(flops_per_s: f64, bytes: u64) -> Result<Limits, TchError> {
    let _guard = tch::no_grad_guard();
    // Half is read, half is written.
    let bytes = (bytes.clamp(LEAST_COPY, MOST_COPY) / 8 * 8) as i64;
    let from = Tensor::f_zeros([bytes / 8], (Kind::Float, Device::Cpu))?;
    let mut to = Tensor::f_empty_like(&from)?;
    let copy = best(|| {
        to.f_copy_(&from)?;
        Ok(())
    })?;
    Ok(Limits {
        flops_per_s,
        bytes_per_s: bytes as f64 / copy,
        method: format!(
            "best product of {SIDE} x {SIDE} and best copy that reads and writes {} KiB, in this run",
            bytes >> 10
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
        let limits = measure(
            flops_per_s(Kind::Float).unwrap(),
            beyond_caches(Some(1 << 20)),
        )
        .unwrap();
        // Any machine of this century, and none of the next.
        assert!((1e8..1e15).contains(&limits.flops_per_s), "{limits:?}");
        assert!((1e7..1e14).contains(&limits.bytes_per_s), "{limits:?}");
    }
}
