//! Kernel references: what a user types to name a kernel.
//!
//! `org/name@v1`, `org/name@<branch, tag or commit>`, `org/name`, each with `:Symbol` behind it
//! where one layer or function is meant; and `./path` or `/path`, also with `:Symbol`, for a kernel
//! on this machine. Neither repository ids nor git revisions can contain a colon, so that the first
//! one always starts the symbol; in a path it is the last one after the last slash.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::error::{Error, Result};
use crate::json::serde_as_string;
use crate::repository::RepositoryId;
use crate::version::{branch_of_version, version_of_branch};

/// A kernel, and where one part of it is meant, that part.
///
/// ```
/// use kernel_spec::{KernelRef, KernelSource, Selector};
///
/// let reference: KernelRef = "kernels-test/relu@v2:ReLU".parse()?;
/// let KernelSource::Hub { repository, selector } = &reference.source else { panic!() };
/// assert_eq!(repository.as_str(), "kernels-test/relu");
/// assert_eq!(selector, &Selector::Version(2));
/// assert_eq!(reference.symbol.as_deref(), Some("ReLU"));
///
/// let local: KernelRef = "./kernels/relu".parse()?;
/// assert!(matches!(local.source, KernelSource::Path(_)));
/// # Ok::<(), kernel_spec::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KernelRef {
    /// Where the kernel is.
    pub source: KernelSource,
    /// The layer class or function within it, dotted where it is in a sub-module.
    pub symbol: Option<String>,
}

/// Where a kernel is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum KernelSource {
    /// A repository of the Hub.
    Hub {
        /// Its id.
        repository: RepositoryId,
        /// Which state of it.
        selector: Selector,
    },
    /// A directory on this machine, which holds `build/<variant>`, variants, or one build.
    Path(PathBuf),
}

/// Which state of a repository is meant.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Selector {
    /// Major version `N`, the branch `vN`.
    Version(u64),
    /// A branch, tag or commit.
    Revision(String),
    /// The newest version with a build for the machine.
    Newest,
}

impl Selector {
    /// Reads what stands behind the `@`: `v<N>` is a version, anything else a revision.
    pub fn from_revision(text: &str) -> Result<Self> {
        if let Some(version) = version_of_branch(text) {
            return Ok(Self::Version(version));
        }
        check_revision(text)?;
        Ok(Self::Revision(text.to_owned()))
    }

    /// The revision to ask the Hub for; none where the newest version has to be looked up first.
    pub fn revision(&self) -> Option<String> {
        match self {
            Self::Version(version) => Some(branch_of_version(*version)),
            Self::Revision(revision) => Some(revision.clone()),
            Self::Newest => None,
        }
    }
}

impl KernelRef {
    /// A whole kernel of the Hub.
    pub const fn hub(repository: RepositoryId, selector: Selector) -> Self {
        Self {
            source: KernelSource::Hub {
                repository,
                selector,
            },
            symbol: None,
        }
    }

    /// A whole kernel on this machine.
    pub fn path(path: impl Into<PathBuf>) -> Self {
        Self {
            source: KernelSource::Path(path.into()),
            symbol: None,
        }
    }

    /// The same kernel, with one part of it meant.
    #[must_use]
    pub fn with_symbol(mut self, symbol: impl Into<String>) -> Self {
        self.symbol = Some(symbol.into());
        self
    }

    /// The repository, where the kernel is on the Hub.
    pub const fn repository(&self) -> Option<&RepositoryId> {
        match &self.source {
            KernelSource::Hub { repository, .. } => Some(repository),
            KernelSource::Path(_) => None,
        }
    }

    /// Whether a text names a kernel on this machine rather than on the Hub.
    pub fn is_path(text: &str) -> bool {
        matches!(text, "." | "..")
            || ["/", "./", "../"]
                .iter()
                .any(|prefix| text.starts_with(prefix))
    }

    fn parse_hub(text: &str) -> Result<Self> {
        if text.contains("://") {
            return Err(Error::Reference {
                text: text.to_owned(),
                reason: "it is an address".to_owned(),
                hint: Some(address_hint(text)),
            });
        }
        let (kernel, symbol) = match text.split_once(':') {
            Some((kernel, symbol)) => (kernel, Some(check_symbol(text, symbol)?)),
            None => (text, None),
        };
        let (repository, selector) = match kernel.split_once('@') {
            Some((repository, revision)) => (repository, Selector::from_revision(revision)),
            None => (kernel, Ok(Selector::Newest)),
        };
        let repository = repository
            .parse::<RepositoryId>()
            .map_err(|error| Error::Reference {
                text: text.to_owned(),
                reason: error.to_string(),
                hint: Some(repository_hint(repository)),
            })?;
        let selector = selector.map_err(|error| Error::Reference {
            text: text.to_owned(),
            reason: error.to_string(),
            hint: Some(format!(
                "write `{repository}@v1` for version 1, or name a branch, tag or commit"
            )),
        })?;
        Ok(Self {
            source: KernelSource::Hub {
                repository,
                selector,
            },
            symbol,
        })
    }

    fn parse_path(text: &str) -> Result<Self> {
        if text.contains('\0') {
            return Err(Error::Reference {
                text: text.replace('\0', "\\0"),
                reason: "a path cannot contain a NUL character".to_owned(),
                hint: None,
            });
        }
        let name_start = text.rfind('/').map_or(0, |slash| slash + 1);
        let (path, symbol) = match text[name_start..].rfind(':') {
            Some(colon) => {
                let colon = name_start + colon;
                (
                    &text[..colon],
                    Some(check_symbol(text, &text[colon + 1..])?),
                )
            }
            None => (text, None),
        };
        Ok(Self {
            source: KernelSource::Path(PathBuf::from(path)),
            symbol,
        })
    }
}

impl FromStr for KernelRef {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        if Self::is_path(text) {
            Self::parse_path(text)
        } else {
            Self::parse_hub(text)
        }
    }
}

/// What is probably meant by something that is no repository id.
fn repository_hint(text: &str) -> String {
    if text.starts_with('~') {
        "`~` is not expanded here; write the whole path, starting with `/`".to_owned()
    } else {
        format!(
            "a kernel reads `org/name@v1`; for a directory on this machine write `./{}`",
            text.trim_start_matches('/')
        )
    }
}

/// The id inside an address that was copied from a browser.
fn address_hint(text: &str) -> String {
    let (_, address) = text.split_once("://").unwrap_or_default();
    let id = address
        .split('/')
        .skip(1)
        .filter(|part| *part != "kernels")
        .take(2);
    match id.collect::<Vec<_>>().as_slice() {
        [owner, name] => format!("leave out all but the repository's id, `{owner}/{name}`"),
        _ => "leave out all but the repository's id, `org/name`".to_owned(),
    }
}

/// A symbol is a Python name, or several joined by dots.
fn check_symbol(reference: &str, symbol: &str) -> Result<String> {
    let is_name = |part: &str| {
        !part.is_empty()
            && !part.starts_with(|first: char| first.is_ascii_digit())
            && part
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    };
    if symbol.split('.').all(is_name) {
        return Ok(symbol.to_owned());
    }
    Err(Error::Reference {
        text: reference.to_owned(),
        reason: format!("`{symbol}` behind the colon is not the name of a layer or function"),
        hint: KernelRef::is_path(reference)
            .then(|| "if the colon belongs to the path, end the path with `/`".to_owned()),
    })
}

/// Checks a branch, tag or commit against git's rules for reference names, so that what is put into
/// a URL is something a repository can have.
pub fn check_revision(text: &str) -> Result<()> {
    let invalid = |reason| {
        Err(Error::Revision {
            text: text.escape_debug().to_string(),
            reason,
        })
    };
    if text.is_empty() {
        return invalid("it is empty");
    }
    if text
        .chars()
        .any(|character| character.is_control() || character.is_whitespace())
    {
        return invalid("it must not contain blanks or control characters");
    }
    if text.contains(['~', '^', ':', '?', '*', '[', '\\']) {
        return invalid("it must not contain any of `~ ^ : ? * [ \\`");
    }
    if text.contains("..") || text.contains("@{") || text.contains("//") || text == "@" {
        return invalid("it must not contain `..`, `@{` or `//`, nor be `@`");
    }
    if text.starts_with(['-', '/', '.']) || text.ends_with(['/', '.']) {
        return invalid("it must not start with `-`, `/` or `.`, nor end with `/` or `.`");
    }
    let bad_part = |part: &str| {
        part.starts_with('.')
            || Path::new(part)
                .extension()
                .is_some_and(|extension| extension == "lock")
    };
    if text.split('/').any(bad_part) {
        return invalid("no part of it may start with `.` or end with `.lock`");
    }
    Ok(())
}

impl fmt::Display for KernelRef {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.source {
            KernelSource::Hub {
                repository,
                selector,
            } => {
                write!(formatter, "{repository}")?;
                if let Some(revision) = selector.revision() {
                    write!(formatter, "@{revision}")?;
                }
            }
            KernelSource::Path(path) => write_path(formatter, path, self.symbol.is_some())?,
        }
        match &self.symbol {
            Some(symbol) => write!(formatter, ":{symbol}"),
            None => Ok(()),
        }
    }
}

/// Writes a path such that it reads back as a path, and its own colons as part of it.
fn write_path(formatter: &mut fmt::Formatter<'_>, path: &Path, symbol: bool) -> fmt::Result {
    let text = path.to_string_lossy();
    if !KernelRef::is_path(&text) {
        formatter.write_str("./")?;
    }
    formatter.write_str(&text)?;
    let name_start = text.rfind('/').map_or(0, |slash| slash + 1);
    if !symbol && text[name_start..].contains(':') {
        formatter.write_str("/")?;
    }
    Ok(())
}

serde_as_string!(KernelRef);

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> KernelRef {
        text.parse()
            .unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn selectors_are_told_apart() {
        let selector = |text: &str| match parse(text).source {
            KernelSource::Hub { selector, .. } => selector,
            KernelSource::Path(path) => panic!("{text} is the path {}", path.display()),
        };
        assert_eq!(selector("a/b"), Selector::Newest);
        assert_eq!(selector("a/b@v1"), Selector::Version(1));
        for revision in [
            "main",
            "v01",
            "V1",
            "refs/pr/1",
            "1",
            "feature/x",
            "release-1.0",
        ] {
            let expected = Selector::Revision(revision.to_owned());
            assert_eq!(selector(&format!("a/b@{revision}")), expected);
        }
    }

    #[test]
    fn symbols_may_be_dotted() {
        assert_eq!(
            parse("a/b:layers.RMSNorm").symbol.as_deref(),
            Some("layers.RMSNorm")
        );
        assert_eq!(parse("a/b@feature/x:f").symbol.as_deref(), Some("f"));
    }

    #[test]
    fn paths_keep_colons_of_folders() {
        let reference = parse("/a:b/c:Layer");
        assert_eq!(reference.source, KernelSource::Path("/a:b/c".into()));
        assert_eq!(reference.symbol.as_deref(), Some("Layer"));
        let reference = parse("./a:b/");
        assert_eq!(reference.source, KernelSource::Path("./a:b/".into()));
        assert_eq!(reference.symbol, None);
        for text in [".", "..", "../k"] {
            assert_eq!(parse(text).source, KernelSource::Path(text.into()));
        }
    }

    #[test]
    fn what_is_wrong_is_said_with_a_hint() {
        for (text, hint) in [
            ("relu", "`./relu`"),
            ("~/relu", "not expanded"),
            ("https://huggingface.co/kernels/a/b", "`a/b`"),
            ("a/b@", "a/b@v1"),
            ("a/b@x y", "a/b@v1"),
            ("a/b@-x", "a/b@v1"),
            ("a/b@x..y", "a/b@v1"),
            ("./a:1b", "end the path"),
        ] {
            let error = text.parse::<KernelRef>().unwrap_err();
            let given = error.hint().unwrap_or_default();
            assert!(given.contains(hint), "{text}: {given}");
        }
        for text in ["", "a/b:", "a/b:1x", "a/b:f()", "a/b@x@{1}", "/x\0"] {
            assert!(text.parse::<KernelRef>().is_err(), "{text}");
        }
    }
}
