//! Ids of repositories on the Hub.
//!
//! An id becomes part of URLs and of folder names in the cache (`kernels--owner--name`), and it is
//! what trust is given to. So it is checked once, when it is read, wherever it comes from: a
//! command line, a model's config, metadata of another kernel, or a lock.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};
use crate::json::serde_as_string;

/// The longest name the Hub gives out.
const LONGEST_PART: usize = 96;

/// A checked repository id, `owner/name`.
///
/// Ids are ordered by the bytes of their whole text, which is the order of `kernels.lock`.
///
/// ```
/// use kernel_spec::RepositoryId;
///
/// let id: RepositoryId = "kernels-test/relu".parse()?;
/// assert_eq!((id.owner(), id.name()), ("kernels-test", "relu"));
/// assert!("../relu".parse::<RepositoryId>().is_err());
/// # Ok::<(), kernel_spec::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RepositoryId {
    text: String,
    /// Position of the slash in `text`.
    slash: usize,
}

impl RepositoryId {
    /// Joins and checks an owner and a name.
    pub fn new(owner: &str, name: &str) -> Result<Self> {
        format!("{owner}/{name}").parse()
    }

    /// The user or organisation.
    pub fn owner(&self) -> &str {
        &self.text[..self.slash]
    }

    /// The name within the owner's namespace.
    pub fn name(&self) -> &str {
        &self.text[self.slash + 1..]
    }

    /// The whole id.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Name of the repository's folder in the shared cache, `kernels--owner--name`.
    pub fn cache_folder(&self) -> String {
        format!("kernels--{}--{}", self.owner(), self.name())
    }
}

impl FromStr for RepositoryId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let invalid = |reason: String| Error::RepositoryId {
            text: text.to_owned(),
            reason,
        };
        let Some((owner, name)) = text.split_once('/') else {
            return Err(invalid("expected `owner/name`".to_owned()));
        };
        for (role, part) in [("owner", owner), ("name", name)] {
            check_part(part).map_err(|reason| invalid(format!("the {role} {reason}")))?;
        }
        if name.to_ascii_lowercase().ends_with(".git") {
            return Err(invalid("the name must not end in `.git`".to_owned()));
        }
        Ok(Self {
            text: text.to_owned(),
            slash: owner.len(),
        })
    }
}

/// The Hub's rule for one part of an id, restricted to ASCII.
fn check_part(part: &str) -> std::result::Result<(), String> {
    if part.is_empty() {
        return Err("is empty".to_owned());
    }
    if part.len() > LONGEST_PART {
        return Err(format!("is longer than {LONGEST_PART} characters"));
    }
    let allowed =
        |character: char| character.is_ascii_alphanumeric() || matches!(character, '-' | '_' | '.');
    if let Some(character) = part.chars().find(|character| !allowed(*character)) {
        return Err(format!("must not contain `{}`", character.escape_debug()));
    }
    if part.starts_with(['-', '.']) || part.ends_with(['-', '.']) {
        return Err("must not start or end with `-` or `.`".to_owned());
    }
    // `--` separates owner and name in folder names of the cache.
    for forbidden in ["--", ".."] {
        if part.contains(forbidden) {
            return Err(format!("must not contain `{forbidden}`"));
        }
    }
    Ok(())
}

impl fmt::Display for RepositoryId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.text)
    }
}

impl AsRef<str> for RepositoryId {
    fn as_ref(&self) -> &str {
        &self.text
    }
}

serde_as_string!(RepositoryId);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinary_ids_are_accepted() {
        for text in ["a/b", "kernels-community/flash-attn2", "Org_1/x.y", "_a/_b"] {
            assert_eq!(text.parse::<RepositoryId>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn ids_that_would_leave_the_cache_or_a_url_are_refused() {
        for text in [
            "", "a", "/", "a/", "/b", "../x", "a/..", "a/b/c", "a/b?c", "a b/c", "a/b\n", "a--b/c",
            "a/b..c", "-a/b", "a/b.git", "a/b.", "ä/b", "a/b@v1", "a/%2e", "~/x", "a\\b/c",
        ] {
            let error = text.parse::<RepositoryId>().unwrap_err();
            assert!(
                error.to_string().contains("repository id"),
                "{text}: {error}"
            );
        }
        assert!(
            format!("a/{}", "x".repeat(97))
                .parse::<RepositoryId>()
                .is_err()
        );
    }

    #[test]
    fn order_is_that_of_the_whole_text() {
        let dash: RepositoryId = "a-x/b".parse().unwrap();
        let plain: RepositoryId = "a/b".parse().unwrap();
        assert!(dash < plain, "`-` sorts before `/`");
    }
}
