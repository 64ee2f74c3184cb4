//! What an op has to do whatever its implementation: the axes of the roofline.

use kernel_report::record::Work;
use tch::Kind;

use super::{OpKind, OpShape};

impl OpShape {
    /// Operations and bytes of one call. Products count two operations for each multiplication; cheap
    /// elementwise work of the same pass (exponentials, activations) counts one for each value. Bytes
    /// are inputs, weights and outputs once each; causal attention is half of the square.
    pub fn work(&self, kind: Kind) -> Work {
        let width = kind.elt_size_in_bytes() as f64;
        let size = |name: &str| self.size(name) as f64;
        let (batch, heads, groups) = (size("B"), size("H"), size("K"));
        let (flops, values) = match self.op {
            OpKind::Attention => {
                let (tokens, head) = (size("T"), size("D"));
                let pairs = batch * heads * tokens * (tokens + 1.0) / 2.0;
                (
                    pairs * (4.0 * head + 1.0),
                    batch * tokens * head * (2.0 * heads + 2.0 * groups),
                )
            }
            OpKind::DecodeAttention => {
                let (length, head) = (size("L"), size("D"));
                (
                    batch * heads * length * (4.0 * head + 1.0),
                    batch * head * (2.0 * heads + 2.0 * groups * length),
                )
            }
            OpKind::Mlp => {
                let (rows, hidden, inner) = (size("R"), size("H"), size("I"));
                (
                    rows * inner * (6.0 * hidden + 2.0),
                    3.0 * hidden * inner + 2.0 * rows * hidden,
                )
            }
            OpKind::RmsNorm => {
                let (rows, hidden) = (size("R"), size("H"));
                (4.0 * rows * hidden, (2.0 * rows + 1.0) * hidden)
            }
            OpKind::Rotary => {
                let (tokens, head) = (size("T"), size("D"));
                let rotated = batch * tokens * head * (heads + groups);
                (3.0 * rotated, 2.0 * rotated + 2.0 * batch * tokens * head)
            }
        };
        Work {
            flops,
            bytes: values * width,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn work(op: OpKind, sizes: &[(&str, usize)], kind: Kind) -> Work {
        let sizes: BTreeMap<String, usize> = sizes
            .iter()
            .map(|(name, value)| ((*name).to_owned(), *value))
            .collect();
        OpShape::new(op, &sizes).unwrap().work(kind)
    }

    #[test]
    fn an_mlp_reads_its_three_weights_and_multiplies_each_once() {
        let work = work(
            OpKind::Mlp,
            &[("R", 1), ("H", 8), ("I", 16)],
            Kind::BFloat16,
        );
        assert!((work.flops - (6.0 * 8.0 * 16.0 + 2.0 * 16.0)).abs() < 1e-9);
        assert!((work.bytes - 2.0 * (3.0 * 8.0 * 16.0 + 16.0)).abs() < 1e-9);
    }

    #[test]
    fn decode_reads_the_filled_part_of_the_cache_only() {
        let of = |capacity| {
            let sizes = [("H", 4), ("K", 2), ("C", capacity), ("L", 10), ("D", 8)];
            work(OpKind::DecodeAttention, &sizes, Kind::Float)
        };
        assert_eq!(of(10), of(1000));
        assert!((of(10).bytes - 4.0 * 8.0 * (8.0 + 40.0)).abs() < 1e-9);
    }

    #[test]
    fn twice_the_prompt_is_four_times_the_work_of_attention_and_twice_the_bytes() {
        let of = |tokens| {
            work(
                OpKind::Attention,
                &[("H", 4), ("K", 2), ("T", tokens), ("D", 8)],
                Kind::Float,
            )
        };
        let (one, two) = (of(1000), of(2000));
        assert!((two.flops / one.flops - 4.0).abs() < 0.01);
        assert!((two.bytes / one.bytes - 2.0).abs() < 1e-9);
    }
}
