//! Records with known answers.
#![expect(
    unreachable_pub,
    reason = "each test file has it as a module of its own"
)]

use std::collections::BTreeMap;

use kernel_report::Correctness;
use kernel_report::record::{
    About, ArmRecord, CacheState, Comparison, Level, Limits, MachineRecord, Method, Record,
    ReplacedOp, Row, Samples, Work,
};
use kernel_report::report::Named;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

pub const AGREE: Correctness = Correctness {
    ok: true,
    max_absolute: 1e-6,
    max_relative: 1e-6,
    non_finite_mismatches: 0,
    tolerance_absolute: 1e-4,
    tolerance_relative: 1e-4,
};

/// Rounds on a machine with 2% of noise, B at `factor` times A.
pub fn samples(seconds: f64, factor: f64, seed: u64) -> Samples {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut samples = Samples {
        batch_a: 1,
        batch_b: 1,
        first_call_a: 0.1,
        first_call_b: 0.2,
        ..Samples::default()
    };
    for _ in 0..400 {
        let mut call = |time: f64| {
            let far = if random.random_bool(0.01) { 4.0 } else { 1.0 };
            time * far * (1.0 + random.random_range(0.0..0.04))
        };
        samples.a.push(call(seconds));
        samples.b.push(call(seconds * factor));
        samples.control.push(call(seconds));
    }
    samples
}

/// A record with one row for each workload, whose B takes `factor` times A.
pub fn comparison(workloads: &[(&str, f64)], seed: u64) -> Comparison {
    let rows = workloads
        .iter()
        .enumerate()
        .map(|(index, (name, factor))| {
            let seed = seed + index as u64;
            let mut row = Row::new((*name).to_owned(), AGREE);
            row.work = Some(Work {
                flops: 4e6 * (index + 1) as f64,
                bytes: 2e6,
            });
            row.timed(samples(1e-3, *factor, seed), 0, seed)
        })
        .collect();
    Comparison::new(about(), rows)
}

pub fn about() -> About {
    About {
        level: Level::Op,
        dtype: "float32".into(),
        a: ArmRecord {
            name: "default".into(),
            execution: "libtorch".into(),
            ..ArmRecord::default()
        },
        b: ArmRecord {
            name: "org/norm@v1:RMSNorm".into(),
            repo: Some("org/norm".into()),
            commit: Some("0123456789abcdef0123456789abcdef01234567".into()),
            digest: Some("ab".repeat(32)),
            variant: Some("torch-cpu".into()),
            execution: "kernel".into(),
            ops: vec![ReplacedOp {
                op: "rms_norm".into(),
                implementation: "org/norm@v1:RMSNorm".into(),
                repo: Some("org/norm".into()),
                commit: Some("0123456789abcdef0123456789abcdef01234567".into()),
                replaced: 61,
                total: 61,
                reason: "agrees with the default".into(),
            }],
        },
        method: Method {
            budget_s: 1.0,
            warm_up_s: 0.2,
            confidence: 0.95,
            seed: 0,
            cache: CacheState::Hot,
            processes: 1,
            harness_overhead_s: 5e-8,
        },
        environment: MachineRecord {
            cpu: "Test CPU".into(),
            cpus: 2,
            governor: None,
            cache_bytes: Some(1 << 20),
            load_average: Some(0.5),
            load_average_end: Some(0.75),
            os: "linux 6.1".into(),
            device: "cpu".into(),
            torch_threads: 2,
            versions: BTreeMap::from([("torch".to_owned(), "2.13.0".to_owned())]),
            limits: Some(Limits {
                flops_per_s: 1e11,
                bytes_per_s: 1e10,
                method: "measured".into(),
            }),
        },
        all_rows: true,
    }
}

#[allow(dead_code, reason = "not every test file needs it")]
pub fn named(name: &str, comparison: Comparison) -> Named {
    Named {
        name: name.to_owned(),
        record: Record::Comparison(Box::new(comparison)),
    }
}
