//! What can go wrong between a kernel's name and its verified bytes.
//!
//! One enum for the crate. Messages say what happened to which kernel or file; what to do about it
//! is in [`Error::hint`], and [`Error::kind`] is a word for programs. Errors that come from a
//! request carry its [`RequestContext`], so that a report can name the exact answer of the Hub.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use kernel_spec::{Dependency, RepositoryId, Violation};

/// Result of this crate's fallible functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A request to the Hub that did not bring what was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RequestContext {
    /// Address, without query.
    pub url: String,
    /// HTTP status, where there was an answer.
    pub status: Option<u16>,
    /// `X-Error-Code` of the Hub: `RevisionNotFound`, `EntryNotFound`, `GatedRepo`, `RepoNotFound`.
    pub code: Option<String>,
    /// The Hub's own words.
    pub message: Option<String>,
    /// `X-Request-Id`, by which the Hub's operators find the request.
    pub request_id: Option<String>,
    /// How often the request was sent.
    pub attempts: u32,
}

impl RequestContext {
    #[expect(clippy::unnecessary_box_returns, reason = "every error keeps it boxed")]
    pub(crate) fn new(url: &url::Url) -> Box<Self> {
        let mut shown = url.clone();
        shown.set_query(None);
        // Signed addresses carry secrets in the query, unwise ones in the user name.
        let _ = shown.set_username("");
        let _ = shown.set_password(None);
        Box::new(Self {
            url: shown.into(),
            status: None,
            code: None,
            message: None,
            request_id: None,
            attempts: 1,
        })
    }
}

impl fmt::Display for RequestContext {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "`{}`", self.url)?;
        if let Some(status) = self.status {
            write!(formatter, " answered {status}")?;
        }
        if let Some(message) = self.message.as_deref().or(self.code.as_deref()) {
            write!(formatter, " ({})", message.escape_debug())?;
        }
        if self.attempts > 1 {
            write!(formatter, " after {} attempts", self.attempts)?;
        }
        if let Some(id) = &self.request_id {
            write!(formatter, ", request id {}", id.escape_debug())?;
        }
        Ok(())
    }
}

/// Why a publisher is not trusted. The causes are kept apart, because what to do differs.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Distrust {
    /// The Hub knows the organisation and does not list it as a trusted publisher.
    NotListed,
    /// There is no organisation of this name; it may be a user's account.
    NoOrganisation,
    /// The Hub could not be asked.
    Unreachable(Box<RequestContext>),
    /// There is no network by choice, and no earlier answer of the Hub is remembered.
    NotRemembered,
}

impl Distrust {
    /// The word in machine-readable output.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::NotListed => "not-listed",
            Self::NoOrganisation => "no-organisation",
            Self::Unreachable(_) => "unreachable",
            Self::NotRemembered => "not-remembered",
        }
    }
}

/// A kernel that could not be resolved, fetched or verified.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A value breaks a rule of the kernel format.
    #[error("{}{source}", .about.as_ref().map(|about| format!("{about}: ")).unwrap_or_default())]
    Format {
        /// The kernel or file that holds the value.
        about: Option<String>,
        /// The rule.
        source: kernel_spec::Error,
    },
    /// The file system refused something.
    #[error("cannot {action} `{}`", .path.display())]
    Io {
        /// What was tried, as a verb: `read`, `write`, `create`.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The Hub answered with a status that means failure.
    #[error("request failed: {0}")]
    Http(Box<RequestContext>),
    /// The Hub could not be reached, or the connection broke each time.
    #[error("cannot reach the Hub: {context}: {reason}")]
    Unreachable {
        /// The request.
        context: Box<RequestContext>,
        /// The innermost cause.
        reason: String,
    },
    /// The Hub answered something that breaks its protocol.
    #[error("the Hub's answer cannot be used: {context}: {reason}")]
    BadAnswer {
        /// The request.
        context: Box<RequestContext>,
        /// What is wrong with the answer.
        reason: String,
    },
    /// The repository is not there, or not for this user: the Hub does not tell the two apart.
    #[error("repository `{repository}` was not found on the Hub, or is private")]
    RepositoryNotFound {
        /// The repository.
        repository: RepositoryId,
        /// Whether a token was sent.
        with_token: bool,
        /// The request.
        context: Box<RequestContext>,
    },
    /// The repository exists, but this user may not read it.
    #[error("access to `{repository}` was refused: {context}")]
    AccessRefused {
        /// The repository.
        repository: RepositoryId,
        /// Whether a token was sent.
        with_token: bool,
        /// The request.
        context: Box<RequestContext>,
    },
    /// A branch, tag or commit that the repository does not have.
    #[error("`{repository}` has no revision `{revision}`")]
    RevisionNotFound {
        /// The repository.
        repository: RepositoryId,
        /// The revision.
        revision: String,
    },
    /// A version that the repository does not have.
    #[error("`{repository}` has no version {version} ({})", listed(.available))]
    VersionNotFound {
        /// The repository.
        repository: RepositoryId,
        /// The version.
        version: u64,
        /// The versions it has, ascending.
        available: Vec<u64>,
    },
    /// The repository has no branch `v<N>`.
    #[error("`{repository}` has no versions: none of its branches is called `v1`, `v2`, ...")]
    NoVersions {
        /// The repository.
        repository: RepositoryId,
    },
    /// The revision holds no builds at all.
    #[error("`{repository}` has no `build` folder at revision `{revision}`")]
    NoBuilds {
        /// The repository.
        repository: RepositoryId,
        /// The revision.
        revision: String,
    },
    /// No build fits the machine.
    #[error("no build of `{kernel}` fits this machine ({machine}):\n{trace}")]
    NoVariant {
        /// The kernel.
        kernel: String,
        /// The machine, in words.
        machine: String,
        /// One line for each build, with the reason.
        trace: String,
        /// A version that would fit, and its build.
        suggestion: Option<String>,
    },
    /// A build without `metadata.json`.
    #[error("build `{variant}` of `{kernel}` has no `metadata.json`")]
    MetadataMissing {
        /// The kernel.
        kernel: String,
        /// The build.
        variant: String,
    },
    /// The kernel's publisher is not trusted, and it was not allowed by name.
    #[error("refusing `{repository}`: {}", distrust(.repository, .reason))]
    Untrusted {
        /// The repository.
        repository: RepositoryId,
        /// Why.
        reason: Distrust,
    },
    /// There is no network by choice, and the cache does not have it.
    #[error("`{kernel}` is not in the cache `{}`{}", .cache.display(), parenthesised(.missing.as_deref()))]
    NotCached {
        /// The kernel, with its revision.
        kernel: String,
        /// Root of the cache.
        cache: PathBuf,
        /// What is missing of a kernel that is there in part.
        missing: Option<String>,
    },
    /// `--locked` or `--frozen` without a lock.
    #[error("`{}` does not exist, and the lock is required", .path.display())]
    LockMissing {
        /// Where it was looked for.
        path: PathBuf,
    },
    /// The lock does not have a kernel that is needed.
    #[error("`{}` is stale: it does not lock `{kernel}`", .path.display())]
    LockStale {
        /// The lock.
        path: PathBuf,
        /// The kernel as it was asked for.
        kernel: String,
    },
    /// A Python package that kernels for this backend may not ask for.
    #[error("`{kernel}` needs the Python package `{package}`, which kernels for {backend} may not")]
    PythonDependency {
        /// The kernel.
        kernel: String,
        /// The package.
        package: String,
        /// The backend.
        backend: String,
        /// The packages that may be asked for.
        known: Vec<&'static str>,
    },
    /// A kernel that needs itself, perhaps through others.
    #[error("kernels need each other in a circle: {}", circle(.path))]
    DependencyCycle {
        /// The circle; the last entry is the first one again.
        path: Vec<Dependency>,
    },
    /// Repositories that say of each other that the kernel has moved there.
    #[error("repositories send from one to the other in a circle: {}", ways(.path))]
    RedirectCycle {
        /// The circle; the last entry occurs earlier.
        path: Vec<RepositoryId>,
    },
    /// Two states of one repository in one tree, which cannot both be `get_kernel_dep` of it.
    #[error("the kernel tree needs two states of `{repository}`: {first} and {second}")]
    DependencyConflict {
        /// The repository.
        repository: RepositoryId,
        /// One requirement, and who has it.
        first: String,
        /// The other.
        second: String,
    },
    /// What arrived is not what the Hub's tree promised.
    #[error("`{path}` of `{repository}` arrived damaged: {reason}")]
    Corrupt {
        /// The repository.
        repository: RepositoryId,
        /// The file.
        path: String,
        /// Which check failed.
        reason: String,
    },
    /// The Hub's listing has names that must not be written to disk.
    #[error("refusing the file listing of `{kernel}`: {reason}")]
    HostileListing {
        /// The kernel.
        kernel: String,
        /// The name and the rule that it breaks.
        reason: String,
    },
    /// Files on disk are not those that the digest was made of.
    #[error("`{kernel}` at `{}` does not match its digest:\n{}", .path.display(), lines(.violations))]
    DigestMismatch {
        /// The kernel.
        kernel: String,
        /// The build's folder.
        path: PathBuf,
        /// Every deviation.
        violations: Vec<Violation>,
    },
    /// There is nothing that the files could be compared with.
    #[error("`{kernel}` at `{}` has no digest", .path.display())]
    DigestMissing {
        /// The kernel.
        kernel: String,
        /// The build's folder.
        path: PathBuf,
    },
    /// A file on disk that a kernel must not have.
    #[error("refusing `{}`: {reason}", .path.display())]
    RefusedFile {
        /// The file.
        path: PathBuf,
        /// The rule it breaks.
        reason: String,
    },
    /// A signature is required and there is none that was checked.
    #[error("`{kernel}` is not signed, and a signature is required")]
    SignatureRequired {
        /// The kernel.
        kernel: String,
    },
    /// A signature is there and does not hold.
    #[error("the signature of `{kernel}` does not hold: {reason}")]
    BadSignature {
        /// The kernel.
        kernel: String,
        /// Why.
        reason: String,
    },
    /// A local kernel that is not there.
    #[error("`{}` is not a kernel: {reason}", .path.display())]
    LocalKernel {
        /// The folder.
        path: PathBuf,
        /// What is missing.
        reason: String,
    },
    /// An environment variable or option with a value that cannot be used.
    #[error("`{name}` cannot be used: {reason}")]
    Setting {
        /// The variable or option.
        name: String,
        /// What is wrong with the value.
        reason: String,
    },
}

impl Error {
    pub(crate) fn io(
        action: &'static str,
        path: impl AsRef<Path>,
    ) -> impl FnOnce(io::Error) -> Self {
        let path = path.as_ref().to_owned();
        move |source| Self::Io {
            action,
            path,
            source,
        }
    }

    pub(crate) fn format(about: impl Into<String>) -> impl FnOnce(kernel_spec::Error) -> Self {
        let about = about.into();
        move |source| Self::Format {
            about: Some(about),
            source,
        }
    }

    /// A short stable word for the kind of error, for machine-readable output.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Format { source, .. } => source.kind(),
            Self::Io { .. } => "io",
            Self::Http(_) => "http",
            Self::Unreachable { .. } => "unreachable",
            Self::BadAnswer { .. } => "bad-answer",
            Self::RepositoryNotFound { .. } => "repository-not-found",
            Self::AccessRefused { .. } => "access-refused",
            Self::RevisionNotFound { .. } => "revision-not-found",
            Self::VersionNotFound { .. } => "version-not-found",
            Self::NoVersions { .. } => "no-versions",
            Self::NoBuilds { .. } => "no-builds",
            Self::NoVariant { .. } => "no-variant",
            Self::MetadataMissing { .. } => "metadata-missing",
            Self::Untrusted { .. } => "untrusted",
            Self::NotCached { .. } => "not-cached",
            Self::LockMissing { .. } => "lock-missing",
            Self::LockStale { .. } => "lock-stale",
            Self::PythonDependency { .. } => "python-dependency",
            Self::DependencyCycle { .. } => "dependency-cycle",
            Self::RedirectCycle { .. } => "redirect-cycle",
            Self::DependencyConflict { .. } => "dependency-conflict",
            Self::Corrupt { .. } => "corrupt",
            Self::HostileListing { .. } => "hostile-listing",
            Self::DigestMismatch { .. } => "digest-mismatch",
            Self::DigestMissing { .. } => "digest-missing",
            Self::RefusedFile { .. } => "refused-file",
            Self::SignatureRequired { .. } => "signature-required",
            Self::BadSignature { .. } => "bad-signature",
            Self::LocalKernel { .. } => "local-kernel",
            Self::Setting { .. } => "setting",
        }
    }

    /// What the user can do about it, where there is something.
    #[expect(
        clippy::too_many_lines,
        reason = "one line of advice for each kind of error"
    )]
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Format { source, .. } => source.hint(),
            Self::Io { source, .. } => match source.kind() {
                io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => Some(
                    "set KERNELS_CACHE to a folder that you may write to".to_owned(),
                ),
                io::ErrorKind::StorageFull => Some(
                    "free some space, for example with `kernel-cli cache prune`, or set \
                     KERNELS_CACHE to a folder on another disk"
                        .to_owned(),
                ),
                _ => None,
            },
            Self::Http(context) if context.status == Some(429) => {
                Some("the Hub limits the rate of requests; wait a while, or set HF_TOKEN".to_owned())
            }
            Self::Http(context) if context.status.is_some_and(|status| status >= 500) => {
                Some("this is a fault of the Hub; try again later, or use --offline".to_owned())
            }
            Self::Unreachable { .. } => Some(
                "check the network and HF_ENDPOINT; kernels that are in the cache work with \
                 --offline"
                    .to_owned(),
            ),
            Self::RepositoryNotFound { with_token: false, .. }
            | Self::AccessRefused { with_token: false, .. } => Some(
                "check the spelling; if the repository is private or gated, set HF_TOKEN to a token \
                 that may read it"
                    .to_owned(),
            ),
            Self::RepositoryNotFound { .. } => Some(
                "check the spelling, and that the token in HF_TOKEN may read the repository"
                    .to_owned(),
            ),
            Self::AccessRefused { .. } => Some(
                "the token in HF_TOKEN may not read it; ask for access on the repository's page"
                    .to_owned(),
            ),
            Self::RevisionNotFound { repository, .. } => {
                Some(format!("see which versions there are with `kernel-cli versions {repository}`"))
            }
            Self::VersionNotFound { repository, available, .. } => available.last().map(|newest| {
                format!("ask for the newest with `{repository}@v{newest}`")
            }),
            Self::NoVersions { repository } => {
                Some(format!("name a branch, tag or commit: `{repository}@main`"))
            }
            Self::NoBuilds { repository, .. } => Some(format!(
                "builds are on version branches; see them with `kernel-cli versions {repository}`"
            )),
            Self::NoVariant { suggestion, .. } => Some(suggestion.clone().unwrap_or_else(|| {
                "if it is meant for another machine, name that one's backend with --backend".to_owned()
            })),
            Self::MetadataMissing { .. } => Some(
                "the build is older than kernels 0.17; its author has to build it again".to_owned(),
            ),
            Self::Untrusted { repository, reason } => Some(match reason {
                Distrust::Unreachable(_) => format!(
                    "try again when the Hub can be reached; if you know the code of `{repository}`, \
                     allow it with `--trust {repository}`"
                ),
                Distrust::NotRemembered => format!(
                    "fetch it once while online, or, if you know its code, allow it with `--trust \
                     {repository}`"
                ),
                Distrust::NotListed | Distrust::NoOrganisation => format!(
                    "kernels run code on this machine; if you have read that of `{repository}`, \
                     allow it with `--trust {repository}`"
                ),
            }),
            Self::NotCached { kernel, .. } => {
                Some(format!("fetch it while online: `kernel-cli fetch {kernel}`"))
            }
            Self::LockMissing { .. } | Self::LockStale { .. } => {
                Some("write the lock with `kernel-cli lock`".to_owned())
            }
            Self::PythonDependency { known, .. } => {
                Some(format!("known packages: {}", known.join(", ")))
            }
            Self::Corrupt { .. } | Self::DigestMismatch { .. } => Some(
                "nothing of it was loaded; fetch it again, and tell its publisher if that does not \
                 help"
                    .to_owned(),
            ),
            Self::DigestMissing { .. } => Some(
                "build it with kernel-builder 0.17 or newer, which writes a digest into \
                 metadata.json"
                    .to_owned(),
            ),
            Self::HostileListing { .. } => {
                Some("nothing was written; tell the Hub's operators about this repository".to_owned())
            }
            Self::SignatureRequired { .. } => {
                Some("leave out --require-signed, or use a signed kernel".to_owned())
            }
            Self::LocalKernel { .. } => Some(
                "a kernel's folder holds `build/<variant>/metadata.json`, `<variant>/metadata.json` \
                 or `metadata.json`"
                    .to_owned(),
            ),
            Self::Http(_)
            | Self::BadAnswer { .. }
            | Self::DependencyCycle { .. }
            | Self::RedirectCycle { .. }
            | Self::DependencyConflict { .. }
            | Self::RefusedFile { .. }
            | Self::BadSignature { .. }
            | Self::Setting { .. } => None,
        }
    }
}

impl From<kernel_spec::Error> for Error {
    fn from(source: kernel_spec::Error) -> Self {
        Self::Format {
            about: None,
            source,
        }
    }
}

fn listed(versions: &[u64]) -> String {
    if versions.is_empty() {
        return "it has no versions".to_owned();
    }
    let list = versions
        .iter()
        .map(u64::to_string)
        .collect::<Vec<_>>()
        .join(", ");
    format!("available: {list}")
}

fn distrust(repository: &RepositoryId, reason: &Distrust) -> String {
    let owner = repository.owner();
    match reason {
        Distrust::NotListed => format!("organisation `{owner}` is not a trusted publisher"),
        Distrust::NoOrganisation => {
            format!("`{owner}` is not an organisation, so it cannot be a trusted publisher")
        }
        Distrust::Unreachable(context) => format!(
            "the Hub could not be asked whether `{owner}` is a trusted publisher: {context}"
        ),
        Distrust::NotRemembered => format!(
            "it is not known whether `{owner}` is a trusted publisher, and the Hub is not asked"
        ),
    }
}

fn parenthesised(text: Option<&str>) -> String {
    text.map(|text| format!(" ({text})")).unwrap_or_default()
}

fn circle(path: &[Dependency]) -> String {
    ways(path)
}

fn ways(path: &[impl fmt::Display]) -> String {
    path.iter()
        .map(|step| format!("`{step}`"))
        .collect::<Vec<_>>()
        .join(" -> ")
}

fn lines(violations: &[Violation]) -> String {
    violations
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join("\n")
}
