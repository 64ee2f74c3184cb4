//! From a kernel's name to its verified bytes.
//!
//! A kernel is Python code that will run on this machine. This crate finds it, decides whether it
//! may run, brings its files, and checks every byte; it starts no Python, links no libtorch, and
//! works in an empty container. [`Registry`] is the way in:
//!
//! ```
//! use kernel_registry::Registry;
//! use kernel_spec::{Backend, System};
//!
//! # let cache = tempfile::tempdir()?;
//! let registry = Registry::builder()
//!     .cache_dir(cache.path())
//!     .system(System::new("x86_64", "linux", Backend::Tpu))
//!     .build()?;
//! for entry in registry.index()?.repositories().take(1) {
//!     let resolved = registry.resolve(&entry.repository.to_string().parse()?)?;
//!     let installed = registry.install(&resolved)?;
//!     let verified = installed.verified()?;
//!     assert!(verified.files().contains_key("__init__.py"));
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | module | owns |
//! | --- | --- |
//! | `registry` | settings, and the public calls |
//! | `environment` | environment variables |
//! | `resolve`, `dependencies` | reference to commit and build; trees |
//! | `local`, [`embedded`] | kernels in folders, and inside the program |
//! | `trust`, `signature` | whose kernels may run: publishers with the memory of the Hub's answers, and signers |
//! | `hub` | requests, retries, the file tree, transfers |
//! | [`cache`] | the layout on disk, atomic writes, removal |
//! | `install`, `verified`, [`verify`], `tree`, `blob`, `parallel` | files to disk, and bytes checked against digests |
//! | [`lock`] | writing `kernels.lock` |
//! | [`vendor`] | folders for machines without a network |
//! | [`system`] | this machine, without Python |
//!
//! # Files
//!
//! Everything is below the cache's root, see [`cache`]; `kernels.lock` is read beside the project.

mod blob;
pub mod cache;
mod dependencies;
pub mod embedded;
mod environment;
mod error;
mod events;
mod hub;
mod install;
mod local;
pub mod lock;
mod parallel;
pub mod python_depends;
mod registry;
mod resolve;
mod resolved;
mod signature;
pub mod survey;
pub mod system;
mod tree;
mod trust;
pub mod vendor;
mod verified;
pub mod verify;

pub use blob::BlobId;
pub use cache::Cache;
pub use error::{Distrust, Error, RequestContext, Result};
pub use events::{Event, EventSink};
pub use install::InstalledKernel;
pub use registry::{Registry, RegistryBuilder, messages, read_lockfile};
pub use resolved::{Description, Origin, Resolved, Trust};
pub use signature::{AllowedSigner, GITHUB_ISSUER, Signature, SignaturePolicy, Signer};
pub use system::tpu;
pub use verified::{KernelFiles, VerifiedKernel};
