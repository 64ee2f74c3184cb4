//! The measuring loop: warm-up, then rounds of A, B and a second A in random order.
//!
//! The second A is the control. It goes through the same rounds as B, so whatever the machine does
//! to B it does to the control, and the ratio of control to A shows what this run cannot tell
//! apart. Compile time never enters: the first call of each arm is timed by itself, and calls are
//! batched until one sample is long against the clock.

use std::time::{Duration, Instant};

use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use crate::statistics::Pair;

/// A sample shorter than this is batched: the clock's own cost (about 50 ns) is then below 0.1%.
const SHORTEST_SAMPLE: Duration = Duration::from_micros(100);
/// Rounds that are taken even when the budget is spent, so that an interval can be given.
const FEWEST_ROUNDS: usize = 5;
/// Rounds after which more samples no longer narrow anything worth the memory.
const MOST_ROUNDS: usize = 20_000;

/// How long to measure.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Budget {
    /// Time for samples of all arms together.
    pub measuring: Duration,
    /// Least time of warm-up for each arm.
    pub warm_up: Duration,
    /// Seed of the order within rounds.
    pub seed: u64,
}

/// What a measurement gave. Times are seconds a call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// First call of A: compile and set-up included.
    pub first_call_a: f64,
    /// First call of B: compile and set-up included.
    pub first_call_b: f64,
    /// Calls that one sample of A spans.
    pub batch_a: usize,
    /// Calls that one sample of B spans.
    pub batch_b: usize,
    /// One pair a round.
    pub pairs: Vec<Pair>,
    /// The control: A against A, one pair a round.
    pub control: Vec<Pair>,
    /// Whether it ended early because the caller asked for it.
    pub cut_short: bool,
}

/// Measures two arms. Each closure does one call and returns when its result is there; `stop` is
/// asked between rounds, and what was measured up to then is kept.
///
/// # Errors
/// The first error that an arm returns.
pub fn measure<E>(
    a: &mut dyn FnMut() -> Result<(), E>,
    b: &mut dyn FnMut() -> Result<(), E>,
    budget: &Budget,
    stop: &dyn Fn() -> bool,
) -> Result<Measurement, E> {
    let first_call_a = seconds_of(a, 1)?;
    let first_call_b = seconds_of(b, 1)?;
    let batch_a = warm_up(a, budget.warm_up, stop)?;
    let batch_b = warm_up(b, budget.warm_up, stop)?;
    let mut measurement = Measurement {
        first_call_a,
        first_call_b,
        batch_a,
        batch_b,
        pairs: Vec::new(),
        control: Vec::new(),
        cut_short: false,
    };
    let mut random = ChaCha8Rng::seed_from_u64(budget.seed);
    let mut order = [Arm::A, Arm::B, Arm::Control];
    let start = Instant::now();
    for round in 0..MOST_ROUNDS {
        if stop() {
            measurement.cut_short = true;
            break;
        }
        if round >= FEWEST_ROUNDS && start.elapsed() >= budget.measuring {
            break;
        }
        order.shuffle(&mut random);
        let mut times = [0.0; 3];
        for arm in order {
            times[arm as usize] = match arm {
                Arm::A | Arm::Control => seconds_of(a, batch_a)?,
                Arm::B => seconds_of(b, batch_b)?,
            };
        }
        let [a, b, control] = times;
        measurement.pairs.push(Pair { a, b });
        measurement.control.push(Pair { a, b: control });
    }
    Ok(measurement)
}

#[derive(Clone, Copy)]
enum Arm {
    A,
    B,
    Control,
}

/// Seconds a call, over `batch` calls.
fn seconds_of<E>(call: &mut dyn FnMut() -> Result<(), E>, batch: usize) -> Result<f64, E> {
    let start = Instant::now();
    for _ in 0..batch {
        call()?;
    }
    Ok(start.elapsed().as_secs_f64() / batch as f64)
}

/// Calls until the least time is over and the speed is stable (two windows of five calls within
/// 5%), for at most four times the least time. Returns how many calls make a sample.
fn warm_up<E>(
    call: &mut dyn FnMut() -> Result<(), E>,
    least: Duration,
    stop: &dyn Fn() -> bool,
) -> Result<usize, E> {
    const WINDOW: usize = 5;
    let start = Instant::now();
    let mut times = Vec::new();
    loop {
        times.push(seconds_of(call, 1)?);
        let elapsed = start.elapsed();
        let fastest_of = |times: &[f64]| times.iter().copied().fold(f64::INFINITY, f64::min);
        let stable = times.len() >= 2 * WINDOW && {
            let (before, after) = times[times.len() - 2 * WINDOW..].split_at(WINDOW);
            (fastest_of(after) / fastest_of(before) - 1.0).abs() < 0.05
        };
        if (elapsed >= least && stable) || elapsed >= least * 4 || stop() {
            let typical = fastest_of(&times[times.len().saturating_sub(WINDOW)..]).max(1e-9);
            return Ok((SHORTEST_SAMPLE.as_secs_f64() / typical).ceil().max(1.0) as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statistics::{Verdict, noise_floor, ratio_of_medians, verdict};

    fn spin(duration: Duration) -> impl FnMut() -> Result<(), ()> {
        move || {
            let start = Instant::now();
            while start.elapsed() < duration {
                std::hint::spin_loop();
            }
            Ok(())
        }
    }

    const BUDGET: Budget = Budget {
        measuring: Duration::from_millis(400),
        warm_up: Duration::from_millis(10),
        seed: 1,
    };

    #[test]
    fn an_arm_that_takes_twice_as_long_is_slower() {
        let mut a = spin(Duration::from_micros(500));
        let mut b = spin(Duration::from_millis(1));
        let measurement = measure(&mut a, &mut b, &BUDGET, &|| false).unwrap();
        let ratio = ratio_of_medians(&measurement.pairs, 0.95, 1).unwrap();
        assert!((1.8..2.2).contains(&ratio.estimate), "{ratio:?}");
        let control = ratio_of_medians(&measurement.control, 0.95, 1).unwrap();
        assert_eq!(verdict(&ratio, noise_floor(&control)), Verdict::Slower);
    }

    #[test]
    fn short_calls_are_batched_and_long_ones_are_not() {
        let mut short = spin(Duration::from_nanos(500));
        let mut long = spin(Duration::from_millis(1));
        let measurement = measure(&mut short, &mut long, &BUDGET, &|| false).unwrap();
        assert!(measurement.batch_a > 20, "{}", measurement.batch_a);
        assert_eq!(measurement.batch_b, 1);
    }

    #[test]
    fn a_stop_keeps_what_was_measured() {
        let start = Instant::now();
        let stop = || start.elapsed() > Duration::from_millis(200);
        let mut a = spin(Duration::from_micros(200));
        let mut b = spin(Duration::from_micros(200));
        let measurement = measure(&mut a, &mut b, &BUDGET, &stop).unwrap();
        assert!(measurement.cut_short && !measurement.pairs.is_empty());
    }

    #[test]
    fn an_error_of_an_arm_ends_the_measurement() {
        let mut a = || Err("broken");
        let mut b = || Ok(());
        assert_eq!(measure(&mut a, &mut b, &BUDGET, &|| false), Err("broken"));
    }
}
