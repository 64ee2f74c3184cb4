//! Puts the method to the test on this machine: how often it is wrong about equal arms, and how often it
//! finds a slowdown that was put in. `cargo xtask bench-method` runs it; it takes about a quarter of an
//! hour.
//!
//! ```text
//! cargo run --release --package kernel-bench --example method -- [A/A RUNS] [SLOWDOWN RUNS]
//! ```
#![expect(clippy::print_stdout, reason = "a program whose output is a table")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use kernel_bench::measure::{Arms, Budget, Calls, measure, overhead};
use kernel_bench::workload::{OpCase, OpKind, OpShape, Subject, WorkloadError};
use kernel_report::record::{CacheState, MachineRecord, Samples};
use kernel_report::report::{format_ratio, format_seconds};
use kernel_report::statistics::{Distribution, Summary, Verdict, noise_floor, verdict};
use tch::Kind;

/// Seconds of measuring for each run.
const BUDGET: Duration = Duration::from_secs(1);
/// The slowdown that is put in.
const SLOWDOWN: f64 = 0.03;
/// The sleep that is put in.
const SLEEP: Duration = Duration::from_millis(5);

type Error = Box<dyn std::error::Error>;

fn main() -> Result<(), Error> {
    let mut counts = std::env::args().skip(1).map(|text| text.parse::<u64>());
    let equal_runs = counts.next().unwrap_or(Ok(200))?;
    let slow_runs = counts.next().unwrap_or(Ok(100))?;
    tch::set_num_threads(1);
    let bench = Bench::new()?;
    let machine = MachineRecord::read("cpu", 1, BTreeMap::new());
    println!(
        "Machine: {}, {} logical processors, load {} when it began. Op: {}, float32, one thread. {} s a run.\n",
        machine.cpu,
        machine.cpus,
        machine
            .load_average
            .map_or_else(|| "unknown".to_owned(), |load| format!("{load:.1}")),
        bench.shape,
        BUDGET.as_secs()
    );
    println!("| what | load beside it | runs | result |");
    println!("| --- | --- | --- | --- |");
    equal(&bench, "as it was", equal_runs)?;
    slower(&bench, "as it was", slow_runs)?;
    let stop = Arc::new(AtomicBool::new(false));
    let busy = {
        let stop = Arc::clone(&stop);
        std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        })
    };
    equal(&bench, "one more busy thread", equal_runs / 4)?;
    slower(&bench, "one more busy thread", slow_runs / 4)?;
    stop.store(true, Ordering::Relaxed);
    let _ = busy.join();
    sleep(&bench)?;
    println!(
        "| what the loop adds to a call | as it was | 2,000 samples | {} |",
        format_seconds(overhead())
    );
    Ok(())
}

struct Bench {
    shape: OpShape,
    case: OpCase,
    subject: Subject,
}

impl Bench {
    fn new() -> Result<Self, Error> {
        let sizes = BTreeMap::from([("R".to_owned(), 128), ("H".to_owned(), 1024)]);
        let shape = OpShape::new(OpKind::RmsNorm, &sizes)?;
        Ok(Self {
            case: OpCase::random(&shape, Kind::Float, 1)?,
            subject: Subject::default_of(OpKind::RmsNorm),
            shape,
        })
    }

    fn call(&self) -> Result<(), WorkloadError> {
        self.case.run(&self.subject).map(drop)
    }

    /// A against A with so much more work in B.
    fn run(&self, seed: u64, more: Duration) -> Result<Samples, Error> {
        let budget = Budget {
            measuring: BUDGET,
            warm_up: Duration::from_millis(50),
            seed,
            cache: CacheState::Hot,
            batches: None,
        };
        let mut a = Calls::new(|| self.call(), None);
        let mut b = Calls::new(
            || {
                self.call()?;
                // Equal arms are equal to the last clock read.
                if more.is_zero() {
                    return Ok(());
                }
                let start = Instant::now();
                while start.elapsed() < more {
                    std::hint::spin_loop();
                }
                Ok(())
            },
            None,
        );
        Ok(measure(
            Arms::together(&mut a, &mut b),
            &budget,
            &mut || false,
        )?)
    }

    /// The least time of a call: what the slowdown is a share of.
    fn least(&self) -> Result<Duration, Error> {
        let mut least = Duration::MAX;
        for _ in 0..2_000 {
            let start = Instant::now();
            self.call()?;
            least = least.min(start.elapsed());
        }
        Ok(least)
    }
}

struct Judged {
    verdict: Verdict,
    estimate: f64,
    width: f64,
}

fn judge(samples: &Samples, seed: u64) -> Result<Judged, Error> {
    let few = || Error::from("too few rounds");
    let ratio = Distribution::of_ratios(&samples.a, &samples.b, seed).ok_or_else(few)?;
    let control = Distribution::of_ratios(&samples.a, &samples.control, !seed).ok_or_else(few)?;
    let ratio = ratio.interval(0.95);
    Ok(Judged {
        verdict: verdict(&ratio, noise_floor(&control.interval(0.95))),
        estimate: ratio.estimate,
        width: ratio.high - ratio.low,
    })
}

fn equal(bench: &Bench, load: &str, runs: u64) -> Result<(), Error> {
    let mut wrong = 0;
    let (mut worst, mut widths) = (0.0_f64, Vec::new());
    for seed in 0..runs {
        let judged = judge(&bench.run(seed, Duration::ZERO)?, seed)?;
        wrong += u64::from(judged.verdict != Verdict::NoDifference);
        worst = worst.max((judged.estimate - 1.0).abs());
        widths.push(judged.width);
    }
    println!(
        "| A against A: wrong verdicts (at most 5%) | {load} | {runs} | {wrong} wrong ({:.1}%); farthest estimate off by {:.2}%; middle interval {:.2}% wide |",
        wrong as f64 / runs.max(1) as f64 * 100.0,
        worst * 100.0,
        middle(&widths) * 100.0
    );
    Ok(())
}

fn slower(bench: &Bench, load: &str, runs: u64) -> Result<(), Error> {
    let more = bench.least()?.mul_f64(SLOWDOWN);
    let (mut found, mut not_told, mut estimates) = (0, 0, Vec::new());
    for seed in 0..runs {
        let judged = judge(&bench.run(seed + 1_000, more)?, seed)?;
        found += u64::from(judged.verdict == Verdict::Slower);
        not_told += u64::from(judged.verdict == Verdict::NoDifference);
        estimates.push(judged.estimate);
    }
    println!(
        "| B slowed down by {:.0}% of the least time ({}): found (at least 95%) | {load} | {runs} | {found} found ({:.0}%), {not_told} not told apart; middle estimate {} |",
        SLOWDOWN * 100.0,
        format_seconds(more.as_secs_f64()),
        found as f64 / runs.max(1) as f64 * 100.0,
        format_ratio(middle(&estimates))
    );
    Ok(())
}

fn sleep(bench: &Bench) -> Result<(), Error> {
    let budget = Budget {
        measuring: Duration::from_secs(10),
        warm_up: Duration::from_millis(50),
        seed: 1,
        cache: CacheState::Hot,
        batches: None,
    };
    let mut a = Calls::new(|| bench.call(), None);
    // On a busy machine a sleep takes longer than asked for; its own clock says how long.
    let mut slept = Vec::new();
    let mut b = Calls::new(
        || {
            bench.call()?;
            let start = Instant::now();
            std::thread::sleep(SLEEP);
            slept.push(start.elapsed().as_secs_f64());
            Ok(())
        },
        None,
    );
    let samples = measure(Arms::together(&mut a, &mut b), &budget, &mut || false)?;
    let median = |times: &[f64]| Summary::of(times).map_or(f64::NAN, |summary| summary.median);
    let found = median(&samples.b) - median(&samples.a);
    println!(
        "| a sleep of {} put into B, which took {} by its own clock: median of B less median of A (within 2%) | as it was | {} rounds | {} ({:+.1}%) |",
        format_seconds(SLEEP.as_secs_f64()),
        format_seconds(middle(&slept)),
        samples.a.len(),
        format_seconds(found),
        (found / middle(&slept) - 1.0) * 100.0
    );
    Ok(())
}

fn middle(values: &[f64]) -> f64 {
    Summary::of(values).map_or(f64::NAN, |summary| summary.median)
}
