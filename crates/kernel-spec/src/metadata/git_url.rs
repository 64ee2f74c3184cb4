//! Addresses of git repositories in metadata.

use std::fmt;
use std::str::FromStr;

use url::Url;

use crate::json::serde_as_string;

/// Schemes that metadata may use. `file` is not among them: it says nothing on another machine.
const SCHEMES: [&str; 7] = [
    "https",
    "http",
    "git",
    "ssh",
    "git+ssh",
    "git+https",
    "git+http",
];

/// Address of a git repository: a URL, or git's short form `user@host:path`, which is turned into
/// an `ssh` URL.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct GitUrl(Url);

/// An address that cannot be one of a git repository.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GitUrlError {
    /// Not a URL at all.
    #[error("invalid git address `{0}`")]
    Invalid(String),
    /// A URL of another scheme.
    #[error("unsupported scheme `{scheme}` in git address `{text}`, expected one of {}", SCHEMES.join(", "))]
    Scheme {
        /// The address as given.
        text: String,
        /// Its scheme.
        scheme: String,
    },
}

impl GitUrl {
    /// The address as a URL.
    pub const fn as_url(&self) -> &Url {
        &self.0
    }
}

impl FromStr for GitUrl {
    type Err = GitUrlError;

    fn from_str(text: &str) -> Result<Self, GitUrlError> {
        let invalid = || GitUrlError::Invalid(text.to_owned());
        match Url::parse(text) {
            Ok(url) if SCHEMES.contains(&url.scheme()) => {
                if url.has_host() {
                    Ok(Self(url))
                } else {
                    Err(invalid())
                }
            }
            Ok(url) => Err(GitUrlError::Scheme {
                text: text.to_owned(),
                scheme: url.scheme().to_owned(),
            }),
            // `git@github.com:owner/name` is no URL, as `@` cannot be in a scheme.
            Err(url::ParseError::RelativeUrlWithoutBase) => {
                let (host, path) = text.split_once(':').ok_or_else(invalid)?;
                let (user, name) = host.split_once('@').ok_or_else(invalid)?;
                if user.is_empty() || name.is_empty() || path.is_empty() || path.starts_with('/') {
                    return Err(invalid());
                }
                let url = Url::parse(&format!("ssh://{host}/{path}")).map_err(|_| invalid())?;
                if url.has_host() {
                    Ok(Self(url))
                } else {
                    Err(invalid())
                }
            }
            Err(_) => Err(invalid()),
        }
    }
}

impl fmt::Display for GitUrl {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.0.as_str())
    }
}

serde_as_string!(GitUrl);

#[cfg(test)]
mod tests {
    use super::*;

    /// Pairs of input and result, found by asking kernels 0.17.2.
    #[test]
    fn addresses_render_as_the_peer_renders_them() {
        for (text, rendered) in [
            ("http://x/y", "http://x/y"),
            ("HTTPS://X/y", "https://x/y"),
            ("user@host:a", "ssh://user@host/a"),
            ("git@github.com:a/b.git", "ssh://git@github.com/a/b.git"),
            ("git@h:~/p", "ssh://git@h/~/p"),
            ("git+https://github.com/a/b", "git+https://github.com/a/b"),
            ("ssh://host:22/p", "ssh://host:22/p"),
        ] {
            assert_eq!(text.parse::<GitUrl>().unwrap().to_string(), rendered);
        }
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for text in [
            "",
            "/srv/x",
            "not a url",
            "github:a/b",
            "file:///x",
            "ftp://x/y",
            "https://",
            "a@b",
            "host.com:a/b",
            "git@h:",
            "git@h:/abs/p",
            "https://x y/z",
            "./a:b",
            "http:",
            "@h:p",
        ] {
            assert!(text.parse::<GitUrl>().is_err(), "{text}");
        }
    }
}
