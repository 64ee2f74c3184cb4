//! Builds of a kernel: what their names say, which of them fit a machine, which is best.
//!
//! A kernel repository holds one directory per build, whose name encodes what it was built for:
//! `torch-tpu` runs on any TPU machine (*noarch*), `torch210-cxx11-cu128-x86_64-linux` on one kind of
//! machine only (*arch*). The grammar, the order of the checks and the texts of the reasons are
//! those of the Python `kernels` library, so that both choose the same build and say the same about
//! the others.
//!
//! - `parse` reads names, `accept` compares a build with a machine, `order` ranks builds.
//! - [`resolve`] does all three for the directories of a repository.

mod accept;
mod backend;
mod order;
mod parse;

use std::fmt;

use crate::system::System;
use crate::version::MajorMinor;

pub use backend::{Backend, BackendKind};

/// What one build was made for, as its directory's name says.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Variant {
    /// Compiled code: for one framework version, backend, processor and operating system.
    Arch {
        /// Framework and version the build links to.
        framework: Framework,
        /// Backend, with its version where it has one.
        backend: Backend,
        /// Processor, as `uname -m` names it.
        cpu: String,
        /// Operating system, `linux`, `darwin` or `windows`.
        os: String,
    },
    /// Python code only, for one kind of backend.
    Noarch {
        /// The backend's word, or `universal`. Not checked: an unknown word fits no machine.
        backend: String,
    },
}

/// Framework that a compiled build links to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Framework {
    /// One version of PyTorch.
    Torch {
        /// Version of PyTorch.
        version: MajorMinor,
        /// C++ ABI of the build, where the name says so (older Linux builds).
        abi: Option<CxxAbi>,
    },
    /// PyTorch's stable ABI: this version and all later ones.
    TorchStableAbi {
        /// First version of PyTorch that the build runs with.
        version: MajorMinor,
    },
    /// One version of tvm-ffi.
    TvmFfi {
        /// Version of tvm-ffi.
        version: MajorMinor,
    },
}

/// C++ ABI of the standard library that PyTorch was built with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CxxAbi {
    /// The one since GCC 5.
    Cxx11,
    /// The one before.
    Cxx98,
}

impl Variant {
    /// Whether the build holds compiled code.
    pub const fn is_arch(&self) -> bool {
        matches!(self, Self::Arch { .. })
    }
}

impl fmt::Display for Framework {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Torch { version, abi } => {
                write!(formatter, "torch{}{}", version.major, version.minor)?;
                match abi {
                    None => Ok(()),
                    Some(CxxAbi::Cxx11) => formatter.write_str("-cxx11"),
                    Some(CxxAbi::Cxx98) => formatter.write_str("-cxx98"),
                }
            }
            Self::TorchStableAbi { version } => {
                write!(
                    formatter,
                    "torch-stable-abi{}{}",
                    version.major, version.minor
                )
            }
            Self::TvmFfi { version } => {
                write!(formatter, "tvm-ffi{}{}", version.major, version.minor)
            }
        }
    }
}

/// The canonical name, made anew from the parts: numbers without leading zeros.
impl fmt::Display for Variant {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Arch {
                framework,
                backend,
                cpu,
                os,
            } => {
                write!(formatter, "{framework}-{backend}-{cpu}-{os}")
            }
            Self::Noarch { backend } => write!(formatter, "torch-{backend}"),
        }
    }
}

/// One build of a repository, and whether it fits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// Name of the directory. It can differ from the canonical name (`torch201-…`), and it is the
    /// one to make paths from.
    pub name: String,
    /// What the name says.
    pub variant: Variant,
    /// Why the build does not fit the machine; none where it does.
    pub rejection: Option<String>,
}

/// What became of every directory of a repository's `build`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Resolution {
    /// Builds that fit, the best one first.
    pub accepted: Vec<Decision>,
    /// Builds that do not fit, in the same order of preference.
    pub rejected: Vec<Decision>,
    /// Names that are no variants, each with the reason, in the order of the names.
    pub unparsable: Vec<(String, String)>,
}

impl Resolution {
    /// The build to use.
    pub fn best(&self) -> Option<&Decision> {
        self.accepted.first()
    }

    /// One line for each build, in order of preference, as the Python library prints it.
    ///
    /// ```
    /// use kernel_spec::{System, variant::{self, Backend}};
    ///
    /// let machine = System::new("x86_64", "linux", Backend::Tpu);
    /// let text = variant::resolve(&machine, ["torch-cpu", "torch-tpu"]).trace_text();
    /// assert!(text.starts_with("torch-tpu compatible, preferred ✅\ntorch-cpu: backend (cpu) "));
    /// ```
    pub fn trace_text(&self) -> String {
        let best = self.best().map(|decision| &decision.variant);
        let accepted = self.accepted.iter().map(|decision| {
            let preferred = if Some(&decision.variant) == best {
                ", preferred"
            } else {
                ""
            };
            format!("{} compatible{preferred} ✅", decision.variant)
        });
        let rejected = self.rejected.iter().map(|decision| {
            format!(
                "{}: {}",
                decision.variant,
                decision.rejection.as_deref().unwrap_or_default()
            )
        });
        accepted.chain(rejected).collect::<Vec<_>>().join("\n")
    }
}

/// Decides which builds of a repository fit a machine, and ranks them.
///
/// The result does not depend on the order of `names`: where two builds are equally good, compiled
/// ones come first, then the canonical and the given name decide.
pub fn resolve<I>(system: &System, names: I) -> Resolution
where
    I: IntoIterator,
    I::Item: AsRef<str>,
{
    let mut resolution = Resolution::default();
    for name in names {
        let name = name.as_ref();
        match name.parse::<Variant>() {
            Ok(variant) => {
                let rejection = accept::rejection(&variant, system);
                let decision = Decision {
                    name: name.to_owned(),
                    variant,
                    rejection,
                };
                if decision.rejection.is_none() {
                    resolution.accepted.push(decision);
                } else {
                    resolution.rejected.push(decision);
                }
            }
            Err(error) => resolution.unparsable.push((name.to_owned(), error.reason)),
        }
    }
    order::sort(&mut resolution.accepted);
    order::sort(&mut resolution.rejected);
    resolution.unparsable.sort();
    resolution
}

/// A directory name that is no variant.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot parse variant `{name}`: {reason}")]
pub struct VariantError {
    /// The name.
    pub name: String,
    /// Which part does not fit, and what was expected there.
    pub reason: String,
}

impl From<VariantError> for crate::Error {
    fn from(error: VariantError) -> Self {
        Self::Variant {
            name: error.name,
            reason: error.reason,
        }
    }
}
