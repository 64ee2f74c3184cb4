//! One measurement with progress, a live estimate, and a guard against compiles in its span.

use std::time::Instant;

use kernel_bench::measure::{Arms, Budget, Watch, measure};
use kernel_report::record::Samples;
use kernel_report::report::format_ratio;
use kernel_report::statistics::Summary;

use super::Run;
use crate::Events;
use crate::failure::RuntimeError;
use crate::interface::interrupted;

/// Measures arms within a budget. `stage` says what for people, `compiles` counts those of the arms so far.
/// Returns the samples and the compiles that fell into their span.
///
/// # Errors
/// What an arm returns.
pub(super) fn watched<E>(
    run: &Run<'_>,
    stage: String,
    budget: &Budget,
    arms: Arms<'_, E>,
    compiles: &dyn Fn() -> Result<usize, RuntimeError>,
) -> Result<(Samples, usize), RuntimeError>
where
    RuntimeError: From<E>,
{
    let mut watch = Live {
        events: run.events,
        stage,
        total: budget.measuring.as_millis() as u64,
        began: None,
        told: u64::MAX,
        compiles,
        compiles_before: 0,
    };
    let samples = measure(arms, budget, &mut watch)?;
    let compiles = match watch.began {
        Some(_) => match compiles() {
            Ok(compiles) => compiles.saturating_sub(watch.compiles_before),
            // A process that was stopped in the middle of a call cannot be asked.
            Err(_) if samples.cut_short => 0,
            Err(error) => return Err(error),
        },
        None => 0,
    };
    Ok((samples, compiles))
}

struct Live<'a> {
    events: &'a Events,
    stage: String,
    total: u64,
    began: Option<Instant>,
    told: u64,
    compiles: &'a dyn Fn() -> Result<usize, RuntimeError>,
    compiles_before: usize,
}

impl Watch for Live<'_> {
    fn rounds_begin(&mut self) {
        // An arm that cannot tell now will say so when it is asked at the end.
        self.compiles_before = (self.compiles)().unwrap_or_default();
        self.began = Some(Instant::now());
    }

    fn stop(&mut self, so_far: &Samples) -> bool {
        match self.began {
            None if self.told == u64::MAX => {
                self.told = 0;
                self.events
                    .progress(&format!("warming up {}", self.stage), 0, 0);
            }
            None => {}
            Some(began) => {
                // Five times a second: telling more often would be part of what is measured.
                let done = began.elapsed().as_millis() as u64;
                if self.told != done / 200 {
                    self.told = done / 200;
                    let stage = format!("{}{}", self.stage, estimate(so_far));
                    self.events
                        .progress(&stage, done.min(self.total), self.total);
                }
            }
        }
        interrupted().load(std::sync::atomic::Ordering::Relaxed)
    }
}

/// The ratio so far, for somebody who waits: the median with 1.57 interquartile ranges over the root of
/// the number (McGill, Tukey and Larsen 1978). The record's interval is made with more care.
fn estimate(samples: &Samples) -> String {
    let ratios: Vec<f64> = samples
        .a
        .iter()
        .zip(&samples.b)
        .map(|(a, b)| b / a)
        .collect();
    match Summary::of(&ratios) {
        Some(summary) if summary.samples >= 5 => {
            let half = 1.57 * (summary.p75 - summary.p25) / (summary.samples as f64).sqrt();
            format!(
                ": B / A {} ± {}",
                format_ratio(summary.median),
                format_ratio(half)
            )
        }
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_live_estimate_waits_for_five_rounds() {
        let samples = |rounds: usize| Samples {
            a: vec![1.0; rounds],
            b: vec![2.0; rounds],
            ..Samples::default()
        };
        assert_eq!(estimate(&samples(4)), "");
        assert_eq!(estimate(&samples(5)), ": B / A 2.000 ± 0.0000");
    }
}
