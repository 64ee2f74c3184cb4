#![expect(clippy::float_cmp, reason = "the results are exact")]

use proptest::prelude::*;

use rand::Rng as _;

use super::*;

fn probabilities(logits: &[f32]) -> Vec<f64> {
    let top = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weights: Vec<f64> = logits.iter().map(|l| f64::from((l - top).exp())).collect();
    let total: f64 = weights.iter().sum();
    weights.into_iter().map(|weight| weight / total).collect()
}

fn kept(logits: &[f32]) -> Vec<usize> {
    (0..logits.len())
        .filter(|i| logits[*i].is_finite())
        .collect()
}

#[test]
fn the_first_of_equal_logits_wins() {
    assert_eq!(largest(&[1.0, 3.0, 3.0, 2.0]), 1);
}

#[test]
fn repetition_penalty_counts_a_token_once_and_pushes_both_signs_down() {
    let mut logits = [2.0, -2.0, 1.0];
    penalize_repetition(&mut logits, 0, &[0, 0, 1, 99, -5], 2.0);
    assert_eq!(logits, [1.0, -4.0, 1.0]);
}

#[test]
fn top_k_keeps_ties_of_the_last_kept() {
    let mut logits = [1.0, 3.0, 2.0, 2.0, 0.0];
    keep_top_k(&mut logits, 2);
    assert_eq!(kept(&logits), [1, 2, 3]);
}

#[test]
fn top_p_keeps_the_token_that_crosses_the_mass() {
    // Probabilities 0.5, 0.3, 0.2.
    let mut logits = [0.5_f32.ln(), 0.3_f32.ln(), 0.2_f32.ln()];
    keep_top_p(&mut logits, 0.6);
    assert_eq!(kept(&logits), [0, 1]);
    keep_top_p(&mut logits, 0.01);
    assert_eq!(kept(&logits), [0]);
}

#[test]
fn min_p_is_relative_to_the_most_probable() {
    let mut logits = [0.5_f32.ln(), 0.3_f32.ln(), 0.2_f32.ln()];
    keep_min_p(&mut logits, 0.5);
    assert_eq!(kept(&logits), [0, 1]);
    let mut logits = [1.0, 1.0, 0.0];
    keep_min_p(&mut logits, 1.0);
    assert_eq!(kept(&logits), [0, 1]);
}

#[test]
fn filters_run_in_the_order_of_transformers() {
    // Temperature 2 flattens first: then 0.6 of the mass needs two tokens, not one.
    let logits = [
        2.0_f32 * 0.5_f32.ln(),
        2.0 * 0.3_f32.ln(),
        2.0 * 0.2_f32.ln(),
    ];
    let sampling = Sampling {
        mode: Mode::Draw(Filters {
            temperature: 2.0,
            top_k: 0,
            top_p: 0.6,
            min_p: 0.0,
        }),
        repetition_penalty: 1.0,
    };
    let mut seen = [false; 3];
    let mut random = random_of_row(1, 0);
    for _ in 0..200 {
        seen[sampling.choose(&mut logits.clone(), &[], &mut random)] = true;
    }
    assert_eq!(seen, [true, true, false]);
}

#[test]
fn a_seed_repeats_a_row_and_rows_differ() {
    let sequence = |seed, row| -> Vec<u64> {
        let mut random = random_of_row(seed, row);
        (0..8).map(|_| random.random()).collect()
    };
    assert_eq!(sequence(7, 0), sequence(7, 0));
    assert_ne!(sequence(7, 0), sequence(7, 1));
    assert_ne!(sequence(7, 0), sequence(8, 0));
}

#[test]
fn the_call_goes_before_the_file_and_the_file_before_the_defaults() {
    let file = GenerationConfig {
        do_sample: Some(true),
        temperature: Some(0.6),
        top_p: Some(0.95),
        ..GenerationConfig::default()
    };
    let call = SamplingOptions {
        top_p: Some(0.5),
        ..SamplingOptions::default()
    };
    let settled = Sampling::settle(&call, &file).unwrap();
    let expected = Filters {
        temperature: 0.6,
        top_k: 50,
        top_p: 0.5,
        min_p: 0.0,
    };
    assert_eq!(settled.mode, Mode::Draw(expected));

    let greedy = SamplingOptions {
        greedy: true,
        ..SamplingOptions::default()
    };
    assert_eq!(Sampling::settle(&greedy, &file).unwrap().mode, Mode::Greedy);
    let nothing = Sampling::settle(&SamplingOptions::default(), &GenerationConfig::default());
    assert_eq!(nothing.unwrap().mode, Mode::Greedy);
}

#[test]
fn values_out_of_range_are_named() {
    for (options, name) in [
        (
            SamplingOptions {
                top_p: Some(0.0),
                ..SamplingOptions::default()
            },
            "top_p",
        ),
        (
            SamplingOptions {
                top_p: Some(1.5),
                ..SamplingOptions::default()
            },
            "top_p",
        ),
        (
            SamplingOptions {
                min_p: Some(-0.1),
                ..SamplingOptions::default()
            },
            "min_p",
        ),
        (
            SamplingOptions {
                temperature: Some(-1.0),
                ..SamplingOptions::default()
            },
            "temperature",
        ),
        (
            SamplingOptions {
                temperature: Some(f64::NAN),
                ..SamplingOptions::default()
            },
            "temperature",
        ),
        (
            SamplingOptions {
                repetition_penalty: Some(0.0),
                ..SamplingOptions::default()
            },
            "repetition_penalty",
        ),
    ] {
        let error = Sampling::settle(&options, &GenerationConfig::default()).unwrap_err();
        assert!(error.to_string().contains(name), "{error}");
    }
}

proptest! {
    #[test]
    fn top_p_keeps_the_smallest_set_with_the_mass(
        mut logits in prop::collection::vec(-8.0_f32..8.0, 1..60),
        p in 0.01_f64..0.999,
    ) {
        let before = probabilities(&logits);
        keep_top_p(&mut logits, p);
        let kept = kept(&logits);
        let mass: f64 = kept.iter().map(|i| before[*i]).sum();
        prop_assert!(mass >= p - 1e-6);
        let smallest = kept.iter().map(|i| before[*i]).fold(f64::INFINITY, f64::min);
        prop_assert!(kept.len() == 1 || mass - smallest < p + 1e-6);
    }

    #[test]
    fn filters_never_remove_the_most_probable_token(
        mut logits in prop::collection::vec(-20.0_f32..20.0, 1..60),
        k in 1_usize..80,
        p in 0.001_f64..1.0,
        share in 0.0_f64..1.0,
    ) {
        let best = largest(&logits);
        keep_top_k(&mut logits, k);
        keep_top_p(&mut logits, p);
        keep_min_p(&mut logits, share);
        prop_assert!(logits[best].is_finite());
        prop_assert_eq!(largest(&logits), best);
    }

    #[test]
    fn a_draw_never_lands_on_a_removed_token(
        mut logits in prop::collection::vec(-5.0_f32..5.0, 2..40),
        k in 1_usize..10,
        point in 0.0_f64..1.0,
    ) {
        keep_top_k(&mut logits, k);
        let token = draw(&logits, point);
        prop_assert!(logits[token].is_finite());
    }

    #[test]
    fn draws_follow_the_probabilities(logits in prop::collection::vec(-2.0_f32..2.0, 2..6)) {
        const DRAWS: usize = 4000;
        let expected = probabilities(&logits);
        let mut counts = vec![0_usize; logits.len()];
        for n in 0..DRAWS {
            counts[draw(&logits, (n as f64 + 0.5) / DRAWS as f64)] += 1;
        }
        for (count, probability) in counts.iter().zip(&expected) {
            prop_assert!((*count as f64 / DRAWS as f64 - probability).abs() < 2e-3);
        }
    }
}
