//! The registry against a Hub of our own: what it fetches, what it refuses, and what it leaves on
//! disk.
//!
//! | module | watches |
//! | --- | --- |
//! | `fetch` | references to files, the layout of the cache, warm calls, dependency trees |
//! | `broken_hub` | answers that are wrong, hostile, late or refused |
//! | `trust` | whose kernels may run |
//! | `on_this_machine` | folders, overrides, and the kernels inside the program |
//! | `lock` | `kernels.lock` |
//! | `looks` | builds, versions and descriptions, every build, and vendored folders |
//! | `trees` | kernels that need kernels, and large listings |
//! | `redirect` | kernels that have moved |
//! | `signatures` | bundles, signers, and kernels that were signed for something else |
//! | `python_cache` | trees of kernels in a cache that is shared with the Python library |

#![expect(clippy::unwrap_used, reason = "helpers of tests may panic")]

mod broken_hub;
mod fetch;
mod lock;
mod looks;
mod on_this_machine;
mod python_cache;
mod redirect;
mod signatures;
mod support;
mod trees;
mod trust;
