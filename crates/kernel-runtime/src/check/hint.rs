//! What the compiler's and JAX's errors mean, and what mends them.

use kernel_bridge::check::chip::Target;

/// An error in words: a stable kind, and what can be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Diagnosis {
    pub(super) kind: &'static str,
    pub(super) hint: Option<String>,
}

/// Texts of an error, all of which occur in it in any case, with its kind and what mends it.
const KNOWN: &[(&[&str], &str, &str)] = &[
    (
        &["block", "divisible by"],
        "block-shape",
        "the last two dimensions of a block are multiples of (8, 128) or those of the whole array",
    ),
    (
        &["unsupported tpu device kind"],
        "lowering",
        "`//` and `%` on traced scalars ask for the device: use `lax.div` and `lax.rem`",
    ),
    (
        &["prove", "multiple"],
        "alignment",
        "say that a dynamic start is aligned with `pl.multiple_of(start, 8)` (32 for 8-bit types)",
    ),
    (
        &["provably", "divisible"],
        "alignment",
        "say that a dynamic start is aligned with `pl.multiple_of(start, 8)` (32 for 8-bit types)",
    ),
    (
        &["meta tensors"],
        "reads-values",
        "the kernel reads a tensor's values in Python: on a TPU that waits for the device and compiles anew; \
         keep them in tensors",
    ),
    (
        &["concretization"],
        "reads-values",
        "the kernel reads a traced value in Python: use `lax.cond`, `jnp.where` or `lax.fori_loop`",
    ),
    (
        &["tracerbool"],
        "reads-values",
        "the kernel reads a traced value in Python: use `lax.cond`, `jnp.where` or `lax.fori_loop`",
    ),
    (
        &["hbm", "exceeded"],
        "hbm",
        "the program needs more HBM than the chip has at this shape",
    ),
    (
        &["unsupported", "type"],
        "dtype",
        "convert to a type that the unit takes (f32 for vector arithmetic, f32 or bf16 for products)",
    ),
    (
        &["not implemented"],
        "unsupported",
        "the compiler for TPUs has no such operation: write it with others, or outside the Pallas call",
    ),
    (
        &["unimplemented"],
        "unsupported",
        "the compiler for TPUs has no such operation: write it with others, or outside the Pallas call",
    ),
];

/// What an error of a build means.
pub(super) fn diagnose(class: &str, message: &str, target: Target) -> Diagnosis {
    let text = format!("{class}: {message}").to_lowercase();
    if text.contains("vmem")
        && ["exceed", "exhausted", "ran out"]
            .iter()
            .any(|word| text.contains(word))
    {
        let capacity = target.chip().vmem_bytes >> 20;
        return Diagnosis {
            kind: "vmem",
            hint: Some(format!(
                "take smaller blocks, or raise `vmem_limit_bytes` in `pltpu.CompilerParams` \
                 (a core of {target} has {capacity} MiB of VMEM, of which a kernel gets a part by default)"
            )),
        };
    }
    let known = KNOWN
        .iter()
        .find(|(words, ..)| words.iter().all(|word| text.contains(word)));
    match known {
        Some((_, kind, hint)) => Diagnosis {
            kind,
            hint: Some((*hint).to_owned()),
        },
        None => Diagnosis {
            kind: "compile",
            hint: None,
        },
    }
}

/// The first paragraph of a message in one line of bearable length.
pub(super) fn brief(message: &str) -> String {
    const LONGEST: usize = 400;
    let mut paragraph = message.trim().split("\n\n").next().unwrap_or_default();
    // Mosaic's dumps of the operation follow these words.
    for cut in [
        "The MLIR operation involved",
        "Traceback (most recent",
        "HLO dump",
        "Stack trace",
    ] {
        paragraph = paragraph.split(cut).next().unwrap_or(paragraph);
    }
    let line = paragraph.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{} ...", &line[..end]),
        None => line,
    }
}

/// Why the compiler ended its process, from what it said last.
pub(super) fn abort_reason(said: &str) -> String {
    let fatal = said
        .lines()
        .find(|line| line.starts_with('F') && line.contains(']'))
        .and_then(|line| line.split_once("] "));
    match fatal {
        Some((_, text)) => brief(text),
        None => "no reason given".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_the_compiler_get_a_kind_and_what_mends_them() {
        let vmem = "RESOURCE_EXHAUSTED: Ran out of memory in memory space vmem while allocating on stack for \
                    %k. Scoped allocation with size 64.00M and limit 16.00M exceeded scoped vmem limit by 48.00M";
        let diagnosis = diagnose("JaxRuntimeError", vmem, Target::V5e);
        assert_eq!(diagnosis.kind, "vmem");
        assert!(diagnosis.hint.unwrap().contains("128 MiB"));
        let blocks = "The Pallas TPU lowering currently requires that the last two dimensions of your block \
                      shape are divisible by 8 and 128 respectively";
        assert_eq!(
            diagnose("ValueError", blocks, Target::V6e).kind,
            "block-shape"
        );
        assert_eq!(
            diagnose("TypeError", "boom", Target::V6e),
            Diagnosis {
                kind: "compile",
                hint: None
            }
        );
    }

    #[test]
    fn the_reason_of_an_abort_is_the_fatal_line() {
        let said = "W0101 warn]\nF1201 17:56:12.470334    7437 llo_dumper.cc:1778] Static LLO profiling of \
                    attention.1 failed: INVALID_ARGUMENT: Unsupported DMA direction: dma-general\n=== Source";
        assert!(abort_reason(said).ends_with("dma-general"));
        assert_eq!(abort_reason(""), "no reason given");
    }

    #[test]
    fn long_messages_become_one_line() {
        let message = "Mosaic failed to compile TPU kernel: bad\n  thing\n\nThe MLIR operation involved:\n  x";
        assert_eq!(
            brief(message),
            "Mosaic failed to compile TPU kernel: bad thing"
        );
        assert!(brief(&"é".repeat(900)).ends_with("é ..."));
    }
}
