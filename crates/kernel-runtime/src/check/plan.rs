//! Which shapes and cases a check looks at.

use std::collections::BTreeMap;

use kernel_bench::workload::{OpKind, OpShape};
use kernel_bridge::check::Case;
use kernel_model::ModelConfig;
use kernel_spec::OpName;

use crate::failure::RuntimeError;

/// Sizes by their letters, as the child process takes them.
pub(crate) type Sizes = BTreeMap<String, i64>;

/// Prompt length, or entries of the cache, at which a model's ops are compiled.
pub(crate) const MODEL_TOKENS: i64 = 1024;
/// Lengths at and around the edges of tiles of 8, 16 and 128 rows.
const LENGTHS: [i64; 6] = [1, 7, 17, 33, 128, 130];
/// Widest rows and inner widths that are compared: the interpreter of Pallas is slow.
const WIDEST: i64 = 512;

/// The shapes at which an op is compiled: those given, those of the model, or the usual ones.
pub(crate) fn shapes(
    op: OpName,
    given: &[BTreeMap<String, usize>],
    model: Option<&ModelConfig>,
) -> Result<Vec<OpShape>, RuntimeError> {
    let kind = OpKind::of(op);
    Ok(match (given, model) {
        ([], Some(config)) => OpShape::of_model(kind, config, MODEL_TOKENS)?,
        ([], None) => vec![OpShape::new(kind, &BTreeMap::new())?],
        (given, _) => given
            .iter()
            .map(|sizes| OpShape::new(kind, sizes))
            .collect::<Result<_, _>>()?,
    })
}

/// The sizes of a shape.
pub(crate) fn sizes(shape: &OpShape) -> Sizes {
    let own = |(name, value): (&&'static str, &i64)| ((*name).to_owned(), *value);
    shape.sizes().iter().map(own).collect()
}

/// Sizes in a row, such as `B=1 H=32 K=8 T=512 D=128`.
pub(crate) fn describe(op: OpName, sizes: &Sizes) -> String {
    letters(op)
        .iter()
        .filter_map(|name| Some(format!("{name}={}", sizes.get(*name)?)))
        .collect::<Vec<_>>()
        .join(" ")
}

fn letters(op: OpName) -> &'static [&'static str] {
    match op {
        OpName::Attention | OpName::RotaryPosEmb => &["B", "H", "K", "T", "D"],
        OpName::DecodeAttention => &["B", "H", "K", "C", "L", "D"],
        OpName::RmsNorm => &["R", "H"],
        OpName::SwiGluMlp | OpName::GeGluMlp => &["R", "H", "I"],
        OpName::SiluAndMul | OpName::Silu => &["R", "I"],
    }
}

/// The cases that a kernel is compared on: ragged lengths with the heads and widths of the shapes, the
/// dtypes taking turns, and inputs that are not finite.
pub(crate) fn cases(
    op: OpName,
    shapes: &[OpShape],
    dtypes: &[String],
    takes_window: bool,
) -> Vec<Case> {
    let mut bases: Vec<Sizes> = shapes
        .iter()
        .map(|shape| small(op, &sizes(shape)))
        .collect();
    bases.dedup();
    let mut cases = Vec::new();
    for (number, base) in bases.iter().enumerate() {
        for (index, length) in LENGTHS.iter().enumerate() {
            let at = with_length(op, base, *length, 1 + (index as i64 % 2));
            for (turn, dtype) in dtypes.iter().enumerate() {
                // Every dtype on the first and the last length, else they take turns.
                let every = (index == 1 || index + 1 == LENGTHS.len()) && number == 0;
                if every || index % dtypes.len() == turn {
                    cases.push(case(&at, dtype));
                }
            }
        }
    }
    let (Some(base), Some(dtype)) = (bases.first(), dtypes.first()) else {
        return cases;
    };
    if takes_window {
        let windowed = with_length(op, base, 40, 1);
        cases.push(Case {
            window: Some(9),
            ..case(&windowed, dtype)
        });
    }
    cases.push(Case {
        poison: true,
        ..case(&with_length(op, base, 33, 1), dtype)
    });
    cases
}

fn case(sizes: &Sizes, dtype: &str) -> Case {
    Case {
        sizes: sizes.clone(),
        dtype: dtype.to_owned(),
        window: None,
        poison: false,
    }
}

/// The sizes for the simulation of a TPU's memory, which takes seconds for a block.
pub(crate) fn race_sizes(op: OpName, shape: &OpShape) -> Sizes {
    with_length(op, &small(op, &sizes(shape)), 130, 1)
}

/// The shape with two key/value heads at most and narrow rows; groups and head dimension stay.
fn small(op: OpName, sizes: &Sizes) -> Sizes {
    let mut small = sizes.clone();
    let get = |name: &str| sizes.get(name).copied().unwrap_or(1);
    match op {
        OpName::Attention | OpName::DecodeAttention | OpName::RotaryPosEmb => {
            let groups = get("K").min(2);
            small.insert("K".to_owned(), groups);
            small.insert("H".to_owned(), groups * (get("H") / get("K").max(1)));
        }
        _ => {
            for name in ["H", "I"] {
                small.insert(name.to_owned(), get(name).min(WIDEST));
            }
        }
    }
    small
}

fn with_length(op: OpName, base: &Sizes, length: i64, batch: i64) -> Sizes {
    let mut sizes = base.clone();
    let mut set = |name: &str, value: i64| {
        sizes.insert(name.to_owned(), value);
    };
    match op {
        OpName::Attention | OpName::RotaryPosEmb => {
            set("T", length);
            set("B", batch);
        }
        OpName::DecodeAttention => {
            // A cache that is not full, whatever the length.
            set("L", length);
            set("C", (length + 8 + 31) / 32 * 32);
            set("B", batch);
        }
        _ => set("R", length),
    }
    sizes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usual(op: OpName) -> Vec<OpShape> {
        shapes(op, &[], None).unwrap()
    }

    #[test]
    fn every_op_gets_ragged_cases_in_every_dtype_and_a_poisoned_one() {
        let dtypes = ["float32".to_owned(), "bfloat16".to_owned()];
        for op in OpName::ALL {
            let cases = cases(*op, &usual(*op), &dtypes, false);
            for dtype in &dtypes {
                assert!(
                    cases.iter().filter(|c| c.dtype == *dtype).count() >= 3,
                    "{op} in {dtype}"
                );
            }
            assert_eq!(cases.iter().filter(|case| case.poison).count(), 1);
        }
    }

    #[test]
    fn heads_are_made_few_and_their_group_stays() {
        let cases = cases(
            OpName::Attention,
            &usual(OpName::Attention),
            &["float32".into()],
            true,
        );
        assert!(
            cases
                .iter()
                .all(|c| c.sizes["K"] == 2 && c.sizes["H"] == 8 && c.sizes["D"] == 128)
        );
        assert!(cases.iter().any(|case| case.window.is_some()));
        assert_eq!(
            describe(OpName::Attention, &cases[0].sizes),
            "B=1 H=8 K=2 T=1 D=128"
        );
    }

    #[test]
    fn a_cache_is_never_full_in_the_cases() {
        let op = OpName::DecodeAttention;
        let cases = cases(op, &usual(op), &["float32".into()], false);
        assert!(cases.iter().all(|case| case.sizes["L"] < case.sizes["C"]));
    }
}
