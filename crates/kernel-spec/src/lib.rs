//! Values and rules of Hub kernels.
//!
//! Everything that can be said about a kernel without looking at a disk or a network lives here:
//! how a kernel is named, which of its builds fits a machine, what its `metadata.json` promises,
//! how its files are digested, and what a model's config asks for. Bytes come in, values go out,
//! and every error names the thing and the place it is about. This crate does no I/O and starts
//! nothing, so that each rule can be tested on its own and every other crate can depend on it.
//!
//! | module | owns |
//! | --- | --- |
//! | [`mod@reference`] | `org/name@v1:Symbol` and `./path`: what a user types |
//! | [`repository`] | ids of repositories, and why an id is refused |
//! | [`version`] | the version numbers that occur, and how branches carry them |
//! | [`variant`] | build names such as `torch-tpu`, which of them fit, and which is best |
//! | [`system`] | the machine that kernels are resolved for |
//! | [`metadata`] | `metadata.json` of a build, and the checks before it is loaded |
//! | [`dependency`] | one kernel's need of another, as metadata and locks spell it |
//! | [`object_id`] | ids of commits |
//! | [`path`] | which file names a kernel may contain |
//! | [`digest`] | hashes of a build's files, and how deviations are told |
//! | [`lockfile`] | `kernels.lock` |
//! | [`project`] | the kernels that a `pyproject.toml` declares |
//! | [`status`] | `kernel-status.toml`: a repository that has moved |
//! | [`op`] | the ops a kernel can replace, and the devices it can run on |
//! | [`config`] | the kernels that a model's `config.json` asks for |
//! | [`index`] | files of the kernel index |
//! | [`plan`] | what would run, before it does |
//! | [`protocol`] | messages between the command and the runtime library |
//!
//! ```
//! use kernel_spec::{KernelRef, variant, system::System, variant::Backend};
//!
//! let reference: KernelRef = "kernels-test/relu-tpu@v1:ReLU".parse()?;
//! assert_eq!(reference.symbol.as_deref(), Some("ReLU"));
//!
//! let machine = System::new("x86_64", "linux", Backend::Tpu);
//! let resolution = variant::resolve(&machine, ["torch-tpu", "torch-cuda"]);
//! assert_eq!(resolution.best().map(|decision| decision.name.as_str()), Some("torch-tpu"));
//! # Ok::<(), kernel_spec::Error>(())
//! ```

pub mod config;
pub mod dependency;
pub mod digest;
mod error;
pub mod index;
mod json;
pub mod lockfile;
pub mod metadata;
pub mod object_id;
pub mod op;
pub mod path;
pub mod plan;
pub mod project;
pub mod protocol;
pub mod reference;
pub mod repository;
pub mod status;
mod suggest;
pub mod system;
pub mod variant;
pub mod version;

pub use config::{Fallback, KernelConfig, OpKernel};
pub use dependency::{Dependency, Requirement};
pub use digest::{Digest, DigestAlgorithm, Violation};
pub use error::{Error, Result};
pub use index::Index;
pub use lockfile::Lockfile;
pub use metadata::Metadata;
pub use object_id::CommitId;
pub use op::{DType, DeviceType, OpName};
pub use path::check_relative_path;
pub use reference::{KernelRef, KernelSource, Selector};
pub use repository::RepositoryId;
pub use status::KernelStatus;
pub use system::System;
pub use variant::{Backend, BackendKind, Variant};
pub use version::ReleaseVersion;
