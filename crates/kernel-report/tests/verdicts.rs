//! The statistical core, tested by simulation: how often it is wrong, and what it finds.
//!
//! The model of a machine: a load that comes and goes over many rounds and hits all arms of a round
//! alike, noise of each call, and now and then a call that is interrupted and takes long.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use kernel_report::record::{Row, Samples};
use kernel_report::statistics::{Distribution, Verdict, judge_together, noise_floor, verdict};
use kernel_report::{Correctness, statistics};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

const AGREE: Correctness = Correctness {
    ok: true,
    max_absolute: 0.0,
    max_relative: 0.0,
    non_finite_mismatches: 0,
    tolerance_absolute: 0.0,
    tolerance_relative: 0.0,
};

/// One run: `rounds` rounds with B at `factor` times A.
fn run(rounds: usize, factor: f64, seed: u64) -> Samples {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut load = 1.0;
    let mut samples = Samples::default();
    for _ in 0..rounds {
        if random.random_bool(0.02) {
            load = if load > 1.0 {
                1.0
            } else {
                random.random_range(1.2..2.0)
            };
        }
        let mut call = |time: f64| {
            let interrupted = if random.random_bool(0.02) {
                random.random_range(1.5..10.0)
            } else {
                1.0
            };
            time * load * interrupted * (1.0 + random.random_range(-0.02..0.02))
        };
        samples.a.push(call(1e-3));
        samples.b.push(call(1e-3 * factor));
        samples.control.push(call(1e-3));
    }
    samples
}

fn judged(samples: &Samples, seed: u64) -> Verdict {
    let ratio = Distribution::of_ratios(&samples.a, &samples.b, seed).unwrap();
    let control = Distribution::of_ratios(&samples.a, &samples.control, seed + 1).unwrap();
    verdict(&ratio.interval(0.95), noise_floor(&control.interval(0.95)))
}

#[test]
fn equal_arms_are_told_apart_in_at_most_one_run_of_twenty() {
    let wrong = (0..200)
        .filter(|seed| judged(&run(200, 1.0, *seed), *seed) != Verdict::NoDifference)
        .count();
    // 5% of 200 are 10.
    assert!(wrong <= 10, "{wrong} of 200 runs told equal arms apart");
}

#[test]
fn the_interval_holds_the_true_ratio_in_nineteen_runs_of_twenty() {
    let held = (0..200)
        .filter(|seed| {
            let samples = run(200, 1.1, seed + 1000);
            let interval = Distribution::of_ratios(&samples.a, &samples.b, *seed)
                .unwrap()
                .interval(0.95);
            interval.low <= 1.1 && 1.1 <= interval.high
        })
        .count();
    // Binomial with 200 draws of 0.95: below 180 once in 500 times, and the seeds are fixed.
    assert!(held >= 180, "{held} of 200");
}

#[test]
fn a_slowdown_of_three_percent_is_found() {
    let found = (0..100)
        .filter(|seed| judged(&run(500, 1.03, seed + 2000), *seed) == Verdict::Slower)
        .count();
    assert!(found >= 95, "{found} of 100");
    let found = (0..100)
        .filter(|seed| judged(&run(500, 1.0 / 1.03, seed + 3000), *seed) == Verdict::Faster)
        .count();
    assert!(found >= 95, "{found} of 100");
}

#[test]
fn of_ten_equal_shapes_any_is_told_apart_in_at_most_one_run_of_twenty() {
    let runs = 60;
    let wrong = (0..runs)
        .filter(|run_of_ten| {
            let distributions: Vec<_> = (0..10)
                .map(|shape| {
                    let seed = 5000 + run_of_ten * 10 + shape;
                    let samples = run(100, 1.0, seed);
                    Distribution::of_ratios(&samples.a, &samples.b, seed).unwrap()
                })
                .collect();
            // Without the noise floor, so that it is the correction that is tested.
            let comparisons: Vec<_> = distributions.iter().map(|one| (one, 0.0)).collect();
            judge_together(&comparisons, 0.95)
                .iter()
                .any(|judged| judged.verdict != Verdict::NoDifference)
        })
        .count();
    // 5% of 60 are 3; at most 7 in 99 of 100 cases.
    assert!(wrong <= 7, "{wrong} of {runs}");
}

#[test]
fn the_median_of_ratios_varies_less_than_the_ratio_of_medians() {
    // Why the estimate is what it is: a load that comes and goes moves the medians of the arms, and
    // moves the ratio within a round not at all.
    let errors = |estimate: &dyn Fn(&Samples) -> f64| -> f64 {
        let squares = (0..60).map(|seed| (estimate(&run(300, 1.0, seed + 7000)) - 1.0).powi(2));
        (squares.sum::<f64>() / 60.0).sqrt()
    };
    let of_ratios = errors(&|samples| {
        let mut ratios: Vec<f64> = samples
            .a
            .iter()
            .zip(&samples.b)
            .map(|(a, b)| b / a)
            .collect();
        statistics::median(&mut ratios).unwrap()
    });
    let of_medians = errors(&|samples| {
        statistics::median(&mut samples.b.clone()).unwrap()
            / statistics::median(&mut samples.a.clone()).unwrap()
    });
    assert!(
        of_medians > 2.0 * of_ratios,
        "{of_medians} against {of_ratios}"
    );
}

#[test]
fn workloads_that_cancel_out_have_an_overall_ratio_of_one() {
    let of = |factor, seed| {
        let samples = run(300, factor, seed);
        Distribution::of_ratios(&samples.a, &samples.b, seed).unwrap()
    };
    let (slower, faster) = (of(2.0, 1), of(0.5, 2));
    let overall = Distribution::geometric_mean(&[&slower, &faster])
        .unwrap()
        .interval(0.95);
    assert!((overall.estimate - 1.0).abs() < 0.02, "{overall:?}");
    assert!(overall.low < 1.0 && 1.0 < overall.high, "{overall:?}");
}

#[test]
fn a_row_says_when_the_machine_was_not_steady() {
    let mut samples = run(300, 1.0, 1);
    for (round, time) in samples.a.iter_mut().enumerate() {
        *time *= 1.0 + round as f64 * 2e-3;
    }
    let row = Row::new("w".into(), AGREE).timed(samples, 0, 1);
    assert!(row.warnings[0].contains("slower"), "{:?}", row.warnings);
}
