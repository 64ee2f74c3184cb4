//! A Hub for tests.
//!
//! Tests of a client that talks to the Hub need a Hub that can be asked what it was asked, that
//! fails when told to, and that is there without a network. This crate serves kernel repositories
//! over HTTP on the loopback interface, with the endpoints, headers, redirects and error codes of
//! the real one, as far as kernel clients use them. The Python `kernels` and `huggingface_hub`
//! packages work against it unchanged, which the tests of this crate check.
//!
//! | module | owns |
//! | --- | --- |
//! | [`kernel`] | [`KernelTree`] and [`Build`]: repositories and builds with metadata and digest |
//! | [`samples`] | kernel trees for the usual cases and for the odd ones |
//! | [`fault`] | what can go wrong on request |
//! | [`log`] | what was asked |
//! | [`sigstore`] | a Sigstore instance, to sign kernels with |
//! | `git` | object ids, so that the same content always has the same commit |
//! | `store` | what is served: organisations, repositories, their states over time |
//! | `routes` | one function for each endpoint |
//! | `server` | sockets, and responses with faults applied |
//!
//! ```
//! use hub_fixture::{Build, Hub, KernelTree, Trust};
//!
//! let hub = Hub::builder()
//!     .organization("kernels-test", Trust::Trusted)
//!     .kernel(
//!         KernelTree::new("kernels-test/relu")
//!             .build("v1", Build::new("torch-cpu").file("__init__.py", "def relu(x): ...\n")),
//!     )
//!     .start()?;
//! assert!(hub.endpoint().starts_with("http://127.0.0.1:"));
//! assert!(hub.commit("kernels-test/relu", "v1").is_some());
//! assert!(hub.requests().is_empty());
//! # Ok::<(), hub_fixture::Error>(())
//! ```

mod directory;
mod error;
pub mod fault;
mod git;
mod hub;
pub mod kernel;
pub mod log;
mod reply;
mod routes;
pub mod samples;
mod server;
pub mod sigstore;
mod store;

pub use error::{Error, Result};
pub use fault::Fault;
pub use hub::{Hub, HubBuilder};
pub use kernel::{Build, KernelTree};
pub use log::LoggedRequest;
pub use store::Trust;
