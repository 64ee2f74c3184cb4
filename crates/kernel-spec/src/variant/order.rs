//! Which of several builds is better.
//!
//! Stable ABI before exact PyTorch versions before tvm-ffi and Python builds, newest first. The
//! Python library leaves ties to the order of a set, which differs from run to run; here compiled
//! builds win, then names decide.

use std::cmp::Reverse;

use super::{Decision, Framework, Variant};

/// Smaller is better.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Preference {
    StableAbi {
        version: Reverse<(u64, u64)>,
        backend_minor: Reverse<u64>,
    },
    Torch {
        tagged: bool,
        backend_minor: Reverse<u64>,
    },
    /// tvm-ffi builds for a backend with a minor version above zero come before Python builds; the
    /// others are on a par with them.
    Other {
        backend_minor: Reverse<u64>,
        universal: bool,
        noarch: bool,
    },
}

fn preference(variant: &Variant) -> Preference {
    match variant {
        Variant::Arch {
            framework, backend, ..
        } => {
            let backend_minor = Reverse(backend.version().map_or(0, |version| version.minor));
            match framework {
                Framework::TorchStableAbi { version } => Preference::StableAbi {
                    version: Reverse((version.major, version.minor)),
                    backend_minor,
                },
                Framework::Torch { abi, .. } => Preference::Torch {
                    tagged: abi.is_some(),
                    backend_minor,
                },
                Framework::TvmFfi { .. } => Preference::Other {
                    backend_minor,
                    universal: false,
                    noarch: false,
                },
            }
        }
        Variant::Noarch { backend } => Preference::Other {
            backend_minor: Reverse(0),
            universal: backend == "universal",
            noarch: true,
        },
    }
}

/// Sorts builds, the best one first, independently of their order before.
pub(super) fn sort(decisions: &mut [Decision]) {
    decisions.sort_by_cached_key(|decision| {
        (
            preference(&decision.variant),
            decision.variant.to_string(),
            decision.name.clone(),
        )
    });
}
