//! The measuring loop: warm-up, then rounds of A, B and a second A in random order.
//!
//! The second A is the control. It goes through the same rounds as B, so whatever the machine does
//! to B it does to the control, and the ratio of control to A shows what this run cannot tell
//! apart. Compile time never enters: the first call of each arm is timed by itself, and calls are
//! batched until one sample is long against the clock.

use std::time::{Duration, Instant};

use kernel_report::record::{CacheState, Samples};
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;

use crate::cache::Flusher;

/// A sample shorter than this is batched: the clock's own cost (about 50 ns) is then below 0.1%.
const SHORTEST_SAMPLE: Duration = Duration::from_micros(100);
/// Rounds that are taken even when the budget is spent, so that an interval can be given.
const FEWEST_ROUNDS: usize = 5;
/// Rounds after which more samples no longer narrow anything worth the memory.
const MOST_ROUNDS: usize = 10_000;
/// Arms whose times differ by less than this factor are of like speed.
const LIKE: f64 = 10.0;
/// Samples are kept to a hundredth of a nanosecond: less than any clock tells.
const RESOLUTION: f64 = 1e11;

/// How long to measure, and in which state of the caches.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Budget {
    /// Time for samples of all arms together.
    pub measuring: Duration,
    /// Least time of warm-up for each arm.
    pub warm_up: Duration,
    /// Seed of the order within rounds.
    pub seed: u64,
    /// Flushed caches make every sample one call.
    pub cache: CacheState,
    /// Calls that a sample of A and one of B span; without it, warm-up tells.
    pub batches: Option<[usize; 2]>,
}

/// Something that can be called and timed, in this process or in another.
pub trait Arm {
    /// Why a call fails.
    type Error;

    /// Calls so many times one after the other, and returns the seconds that all took together. The
    /// result of the last call is there when it returns.
    ///
    /// # Errors
    /// What the call returns.
    fn sample(&mut self, calls: usize) -> Result<f64, Self::Error>;
}

/// A function of this process as an arm.
#[derive(Debug)]
pub struct Calls<'a, F> {
    call: F,
    flusher: Option<&'a std::cell::RefCell<Flusher>>,
}

impl<'a, F> Calls<'a, F> {
    /// The function does one call and returns when its result is there. With a flusher, the caches are
    /// flushed before each sample, outside its span.
    pub fn new(call: F, flusher: Option<&'a std::cell::RefCell<Flusher>>) -> Self {
        Self { call, flusher }
    }
}

impl<E, F: FnMut() -> Result<(), E>> Arm for Calls<'_, F> {
    type Error = E;

    fn sample(&mut self, calls: usize) -> Result<f64, E> {
        if let Some(flusher) = self.flusher {
            flusher.borrow_mut().flush();
        }
        let start = Instant::now();
        for _ in 0..calls {
            (self.call)()?;
        }
        Ok(start.elapsed().as_secs_f64())
    }
}

/// The arms of a measurement.
pub struct Arms<'a, E> {
    /// What B is compared with.
    pub a: &'a mut dyn Arm<Error = E>,
    /// What is judged.
    pub b: &'a mut dyn Arm<Error = E>,
    /// A once more, where each arm has a process of its own: two samples in a row of one process are
    /// not like two of different ones. Without it, A itself is the control.
    pub control: Option<&'a mut dyn Arm<Error = E>>,
}

impl<'a, E> Arms<'a, E> {
    /// Arms of one process: A is its own control.
    pub fn together(a: &'a mut dyn Arm<Error = E>, b: &'a mut dyn Arm<Error = E>) -> Self {
        Self {
            a,
            b,
            control: None,
        }
    }
}

/// Watches a measurement from outside its samples.
pub trait Watch {
    /// Warm-up is over, and the first round begins.
    fn rounds_begin(&mut self) {}

    /// Asked between rounds with what there is so far; `true` stops, and what there is is kept.
    fn stop(&mut self, so_far: &Samples) -> bool;
}

/// A plain condition is a watch.
impl<F: FnMut() -> bool> Watch for F {
    fn stop(&mut self, _: &Samples) -> bool {
        self()
    }
}

/// Measures arms. What was measured is kept when the watch stops it, also where the stop makes a
/// call fail.
///
/// # Errors
/// The first error that an arm returns, unless the watch has stopped the measurement.
pub fn measure<E>(arms: Arms<'_, E>, budget: &Budget, watch: &mut dyn Watch) -> Result<Samples, E> {
    let mut samples = Samples::default();
    match rounds(arms, budget, watch, &mut samples) {
        Ok(()) => Ok(samples),
        // An interrupt reaches a kernel in the middle of a call.
        Err(_) if watch.stop(&samples) => {
            samples.cut_short = true;
            Ok(samples)
        }
        Err(error) => Err(error),
    }
}

fn rounds<E>(
    arms: Arms<'_, E>,
    budget: &Budget,
    watch: &mut dyn Watch,
    samples: &mut Samples,
) -> Result<(), E> {
    let Arms { a, b, mut control } = arms;
    samples.first_call_a = a.sample(1)?;
    samples.first_call_b = b.sample(1)?;
    let typical = [warm_up(a, budget, watch)?, warm_up(b, budget, watch)?];
    if let Some(control) = &mut control {
        warm_up(*control, budget, watch)?;
    }
    [samples.batch_a, samples.batch_b] = match (budget.batches, budget.cache) {
        (Some(given), _) => given,
        (None, CacheState::Flushed) => [1, 1],
        (None, CacheState::Hot) => batches(typical),
    };
    let mut random = ChaCha8Rng::seed_from_u64(budget.seed);
    let mut order = [Place::A, Place::B, Place::Control];
    watch.rounds_begin();
    let start = Instant::now();
    for round in 0..MOST_ROUNDS {
        if watch.stop(samples) {
            samples.cut_short = true;
            break;
        }
        if round >= FEWEST_ROUNDS && start.elapsed() >= budget.measuring {
            break;
        }
        order.shuffle(&mut random);
        let mut times = [0.0; 3];
        for place in order {
            let (arm, calls) = match (place, &mut control) {
                (Place::B, _) => (&mut *b, samples.batch_b),
                (Place::Control, Some(control)) => (&mut **control, samples.batch_a),
                (Place::A, _) | (Place::Control, None) => (&mut *a, samples.batch_a),
            };
            let seconds = arm.sample(calls)? / calls as f64;
            times[place as usize] = (seconds * RESOLUTION).round() / RESOLUTION;
        }
        let [of_a, of_b, control] = times;
        samples.a.push(of_a);
        samples.b.push(of_b);
        samples.control.push(control);
    }
    Ok(())
}

#[derive(Clone, Copy)]
enum Place {
    A,
    B,
    Control,
}

/// Calls until the least time is over and the speed is stable (two windows of five calls within
/// 5%), for at most four times the least time. Returns the seconds of a call at the end.
fn warm_up<E>(
    arm: &mut dyn Arm<Error = E>,
    budget: &Budget,
    watch: &mut dyn Watch,
) -> Result<f64, E> {
    const WINDOW: usize = 5;
    let start = Instant::now();
    let mut times = Vec::new();
    let none = Samples::default();
    loop {
        times.push(arm.sample(1)?);
        let elapsed = start.elapsed();
        let fastest_of = |times: &[f64]| times.iter().copied().fold(f64::INFINITY, f64::min);
        let stable = times.len() >= 2 * WINDOW && {
            let (before, after) = times[times.len() - 2 * WINDOW..].split_at(WINDOW);
            (fastest_of(after) / fastest_of(before) - 1.0).abs() < 0.05
        };
        let least = budget.warm_up;
        if (elapsed >= least && stable) || elapsed >= least * 4 || watch.stop(&none) {
            return Ok(fastest_of(&times[times.len().saturating_sub(WINDOW)..]).max(1e-9));
        }
    }
}

/// Calls that make a sample of each arm. A sample has a cost of its own (the other arm's data are in the
/// caches when it begins), which more calls thin out, so arms of like speed get equal batches.
fn batches(typical: [f64; 2]) -> [usize; 2] {
    let batch = |seconds: f64| (SHORTEST_SAMPLE.as_secs_f64() / seconds).ceil().max(1.0) as usize;
    let [a, b] = typical;
    if a.max(b) < LIKE * a.min(b) {
        [batch(a.min(b)); 2]
    } else {
        typical.map(batch)
    }
}

/// Seconds that this loop adds to a call: the median over samples of one empty call each, which is
/// the worst case, since batches share the clock's cost.
pub fn overhead() -> f64 {
    let mut empty: Calls<'_, _> = Calls::new(|| std::hint::black_box(Ok::<(), ()>(())), None);
    let arm: &mut dyn Arm<Error = ()> = &mut empty;
    let mut times: Vec<f64> = (0..2_000)
        .filter_map(|_| std::hint::black_box(&mut *arm).sample(1).ok())
        .collect();
    kernel_report::statistics::median(&mut times).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use kernel_report::statistics::{Distribution, Verdict, noise_floor, verdict};

    use super::*;

    fn spin(duration: Duration) -> Calls<'static, impl FnMut() -> Result<(), ()>> {
        Calls::new(
            move || {
                let start = Instant::now();
                while start.elapsed() < duration {
                    std::hint::spin_loop();
                }
                Ok(())
            },
            None,
        )
    }

    const BUDGET: Budget = Budget {
        measuring: Duration::from_millis(400),
        warm_up: Duration::from_millis(10),
        seed: 1,
        cache: CacheState::Hot,
        batches: None,
    };

    #[test]
    fn an_arm_that_takes_twice_as_long_is_slower() {
        let mut a = spin(Duration::from_micros(500));
        let mut b = spin(Duration::from_millis(1));
        let samples = measure(Arms::together(&mut a, &mut b), &BUDGET, &mut || false).unwrap();
        let ratio = Distribution::of_ratios(&samples.a, &samples.b, 1)
            .unwrap()
            .interval(0.95);
        assert!((1.8..2.2).contains(&ratio.estimate), "{ratio:?}");
        let control = Distribution::of_ratios(&samples.a, &samples.control, 2)
            .unwrap()
            .interval(0.95);
        assert_eq!(verdict(&ratio, noise_floor(&control)), Verdict::Slower);
    }

    #[test]
    fn a_control_of_its_own_takes_the_place_of_the_second_a() {
        let mut a = spin(Duration::from_micros(500));
        let mut b = spin(Duration::from_micros(500));
        let mut control = spin(Duration::from_millis(1));
        let arms = Arms {
            control: Some(&mut control),
            ..Arms::together(&mut a, &mut b)
        };
        let samples = measure(arms, &BUDGET, &mut || false).unwrap();
        let ratio = Distribution::of_ratios(&samples.a, &samples.control, 1)
            .unwrap()
            .interval(0.95);
        assert!((1.8..2.2).contains(&ratio.estimate), "{ratio:?}");
    }

    #[test]
    fn short_calls_are_batched_and_long_ones_are_not() {
        let mut short = spin(Duration::from_nanos(500));
        let mut long = spin(Duration::from_millis(1));
        let samples = measure(Arms::together(&mut short, &mut long), &BUDGET, &mut || {
            false
        })
        .unwrap();
        assert!(samples.batch_a > 20, "{}", samples.batch_a);
        assert_eq!(samples.batch_b, 1);
    }

    #[test]
    fn arms_of_like_speed_get_equal_batches() {
        // 2.1 calls and 1.9 calls of 100 us.
        assert_eq!(batches([47e-6, 52e-6]), [3, 3]);
        assert_eq!(batches([52e-6, 47e-6]), [3, 3]);
        assert_eq!(batches([1.1e-6, 1e-3]), [91, 1]);
    }

    #[test]
    fn with_flushed_caches_a_sample_is_one_call() {
        let flusher = RefCell::new(Flusher::new(Some(1 << 16)));
        let budget = Budget {
            cache: CacheState::Flushed,
            ..BUDGET
        };
        let call = || Ok::<(), ()>(());
        let mut a = Calls::new(call, Some(&flusher));
        let mut b = Calls::new(call, Some(&flusher));
        let samples = measure(Arms::together(&mut a, &mut b), &budget, &mut || false).unwrap();
        assert_eq!((samples.batch_a, samples.batch_b), (1, 1));
        assert!(samples.a.len() >= FEWEST_ROUNDS);
    }

    #[test]
    fn a_stop_keeps_what_was_measured() {
        let start = Instant::now();
        let mut stop = || start.elapsed() > Duration::from_millis(200);
        let mut a = spin(Duration::from_micros(200));
        let mut b = spin(Duration::from_micros(200));
        let samples = measure(Arms::together(&mut a, &mut b), &BUDGET, &mut stop).unwrap();
        assert!(samples.cut_short && !samples.a.is_empty());
    }

    #[test]
    fn a_stop_that_makes_a_call_fail_keeps_what_was_measured() {
        let stopped = std::cell::Cell::new(false);
        let mut calls = 0;
        let mut a = Calls::new(
            || {
                calls += 1;
                std::thread::sleep(Duration::from_micros(200));
                if calls > 200 {
                    stopped.set(true);
                    return Err("interrupted");
                }
                Ok(())
            },
            None,
        );
        let mut b = Calls::new(|| Ok(()), None);
        let samples = measure(Arms::together(&mut a, &mut b), &BUDGET, &mut || {
            stopped.get()
        })
        .unwrap();
        assert!(samples.cut_short && !samples.a.is_empty());
    }

    #[test]
    fn an_error_of_an_arm_ends_the_measurement() {
        let mut a = Calls::new(|| Err("broken"), None);
        let mut b = Calls::new(|| Ok(()), None);
        assert_eq!(
            measure(Arms::together(&mut a, &mut b), &BUDGET, &mut || false),
            Err("broken")
        );
    }

    #[test]
    fn the_loop_itself_takes_less_than_a_microsecond() {
        let overhead = overhead();
        assert!((0.0..1e-6).contains(&overhead), "{overhead}");
    }
}
