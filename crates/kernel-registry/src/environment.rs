//! Settings from environment variables, with the meaning that the Python libraries give them.
//!
//! Read once, through a function instead of `std::env`, so that the rules can be tested without
//! touching the process.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use kernel_spec::RepositoryId;
use url::Url;

use crate::error::{Error, Result};

/// The public Hub.
const DEFAULT_ENDPOINT: &str = "https://huggingface.co";
/// Name of the variable with overrides, for messages.
pub(crate) const LOCAL_KERNELS: &str = "LOCAL_KERNELS";

/// What the environment says.
#[derive(Debug, Clone)]
pub(crate) struct Environment {
    pub(crate) cache: PathBuf,
    pub(crate) endpoint: Url,
    pub(crate) token: Option<Token>,
    pub(crate) offline: bool,
    pub(crate) local_kernels: BTreeMap<RepositoryId, PathBuf>,
    /// Whether the cache is to hold copies instead of links.
    pub(crate) copies: bool,
    /// Longest silence of a server before a request counts as failed.
    pub(crate) read_timeout: Option<Duration>,
}

/// A token of the Hub. Its text is never shown.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Token(String);

impl Token {
    /// Takes a token from a variable or file. Blanks around it are dropped; nothing is left of a
    /// text that is empty.
    pub(crate) fn new(text: &str, source: &str) -> Result<Option<Self>> {
        let text = text.trim();
        if text.is_empty() {
            return Ok(None);
        }
        if text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Ok(Some(Self(text.to_owned())));
        }
        Err(Error::Setting {
            name: source.to_owned(),
            reason: "it holds characters that a token cannot have".to_owned(),
        })
    }

    pub(crate) fn secret(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Token(..)")
    }
}

impl Environment {
    /// Reads the variables of this process.
    pub(crate) fn of_process() -> Result<Self> {
        Self::read(&|name| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned()))
    }

    /// Reads variables through a function.
    pub(crate) fn read(variable: &dyn Fn(&str) -> Option<String>) -> Result<Self> {
        let set = |name: &str| variable(name).filter(|value| !value.trim().is_empty());
        let home = hub_home(&set)?;
        let cache = match set("KERNELS_CACHE")
            .or_else(|| set("HF_HUB_CACHE"))
            .or_else(|| set("HUGGINGFACE_HUB_CACHE"))
        {
            Some(path) => expand_home(&path)?,
            None => home.join("hub"),
        };
        let endpoint = set("HF_ENDPOINT");
        Ok(Self {
            cache,
            endpoint: parse_endpoint(
                endpoint.as_deref().unwrap_or(DEFAULT_ENDPOINT),
                "HF_ENDPOINT",
            )?,
            token: find_token(&set, &home)?,
            offline: is_true(set("HF_HUB_OFFLINE").as_deref()),
            local_kernels: parse_local_kernels(&set(LOCAL_KERNELS).unwrap_or_default())?,
            copies: is_true(set("HF_HUB_DISABLE_SYMLINKS").as_deref()),
            read_timeout: set("HF_HUB_DOWNLOAD_TIMEOUT")
                .map(|text| parse_seconds("HF_HUB_DOWNLOAD_TIMEOUT", &text))
                .transpose()?,
        })
    }
}

fn hub_home(set: &dyn Fn(&str) -> Option<String>) -> Result<PathBuf> {
    if let Some(path) = set("HF_HOME") {
        return expand_home(&path);
    }
    if let Some(path) = set("XDG_CACHE_HOME") {
        return Ok(expand_home(&path)?.join("huggingface"));
    }
    expand_home("~/.cache/huggingface")
}

fn expand_home(text: &str) -> Result<PathBuf> {
    let Some(rest) = text
        .strip_prefix('~')
        .filter(|rest| rest.is_empty() || rest.starts_with('/'))
    else {
        return Ok(PathBuf::from(text));
    };
    let home = dirs::home_dir().ok_or_else(|| Error::Setting {
        name: "HOME".to_owned(),
        reason: "the home folder is not known; set KERNELS_CACHE to a folder for kernels"
            .to_owned(),
    })?;
    Ok(home.join(rest.trim_start_matches('/')))
}

/// Checks the address of a Hub.
pub(crate) fn parse_endpoint(text: &str, name: &str) -> Result<Url> {
    let invalid = |reason: String| Error::Setting {
        name: name.to_owned(),
        reason,
    };
    let url = Url::parse(text.trim_end_matches('/'))
        .map_err(|error| invalid(format!("`{text}` is not an address: {error}")))?;
    if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() {
        return Err(invalid(format!("`{text}` is not an http or https address")));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(invalid(
            "an address must not contain a user name or password".to_owned(),
        ));
    }
    Ok(url)
}

fn find_token(set: &dyn Fn(&str) -> Option<String>, home: &Path) -> Result<Option<Token>> {
    if is_true(set("HF_HUB_DISABLE_IMPLICIT_TOKEN").as_deref()) {
        return Ok(None);
    }
    for name in ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"] {
        if let Some(text) = set(name) {
            return Token::new(&text, name);
        }
    }
    let path = match set("HF_TOKEN_PATH") {
        Some(path) => expand_home(&path)?,
        None => home.join("token"),
    };
    match std::fs::read_to_string(&path) {
        Ok(text) => Token::new(&text, &path.display().to_string()),
        // No file is the usual case; one that cannot be read leaves the user without a token, which
        // the Hub's answer will show.
        Err(_) => Ok(None),
    }
}

/// The words that `huggingface_hub` takes for true.
fn is_true(text: Option<&str>) -> bool {
    text.is_some_and(|text| {
        ["1", "on", "yes", "true"]
            .iter()
            .any(|word| text.trim().eq_ignore_ascii_case(word))
    })
}

fn parse_seconds(name: &str, text: &str) -> Result<Duration> {
    match text.trim().parse::<u64>() {
        Ok(seconds) if seconds > 0 => Ok(Duration::from_secs(seconds)),
        _ => Err(Error::Setting {
            name: name.to_owned(),
            reason: format!("`{text}` is not a number of seconds"),
        }),
    }
}

/// Reads `repository=path[:repository=path...]`. Empty items, such as after a last colon, say
/// nothing and are skipped.
fn parse_local_kernels(text: &str) -> Result<BTreeMap<RepositoryId, PathBuf>> {
    let invalid = |reason: String| Error::Setting {
        name: LOCAL_KERNELS.to_owned(),
        reason,
    };
    let mut kernels = BTreeMap::new();
    for item in text
        .split(':')
        .map(str::trim)
        .filter(|item| !item.is_empty())
    {
        let (repository, path) = item
            .split_once('=')
            .ok_or_else(|| invalid(format!("`{item}` is not of the form `org/name=path`")))?;
        let repository: RepositoryId = repository
            .trim()
            .parse()
            .map_err(|error: kernel_spec::Error| invalid(error.to_string()))?;
        if path.trim().is_empty() {
            return Err(invalid(format!("the path of `{repository}` is empty")));
        }
        let path = expand_home(path.trim())?;
        if let Some(earlier) = kernels.insert(repository.clone(), path) {
            return Err(invalid(format!(
                "`{repository}` is given twice, first with `{}`",
                earlier.display()
            )));
        }
    }
    Ok(kernels)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Environment> {
        let variables: BTreeMap<String, String> = variables
            .iter()
            .chain(&[("HF_TOKEN_PATH", "/nonexistent/token")])
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        Environment::read(&|name| variables.get(name).cloned())
    }

    #[test]
    fn the_cache_follows_the_rules_of_the_python_libraries() {
        let cache = |variables: &[(&str, &str)]| read(variables).unwrap().cache;
        let home = [("HF_HOME", "/h")];
        assert_eq!(cache(&home), Path::new("/h/hub"));
        assert_eq!(cache(&[home[0], ("HF_HUB_CACHE", "/c")]), Path::new("/c"));
        assert_eq!(
            cache(&[("HF_HUB_CACHE", "/c"), ("KERNELS_CACHE", "/k")]),
            Path::new("/k")
        );
    }

    #[test]
    fn peer_fault_48_an_empty_kernels_cache_counts_as_unset() {
        assert_eq!(
            read(&[("HF_HOME", "/h"), ("KERNELS_CACHE", "")])
                .unwrap()
                .cache,
            Path::new("/h/hub")
        );
    }

    #[test]
    fn a_tilde_is_expanded() {
        let cache = read(&[("KERNELS_CACHE", "~/k")]).unwrap().cache;
        assert_eq!(cache, dirs::home_dir().unwrap().join("k"));
    }

    #[test]
    fn hf_hub_133_the_token_is_taken_from_the_variable_and_never_shown() {
        let environment = read(&[("HF_TOKEN", " hf_secret\n")]).unwrap();
        assert_eq!(environment.token.as_ref().unwrap().secret(), "hf_secret");
        assert!(!format!("{environment:?}").contains("secret"));
        let disabled = [
            ("HF_TOKEN", "hf_secret"),
            ("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1"),
        ];
        assert_eq!(read(&disabled).unwrap().token, None);
        let error = read(&[("HF_TOKEN", "hf_se cret")]).unwrap_err().to_string();
        assert!(
            error.contains("HF_TOKEN") && !error.contains("cret"),
            "{error}"
        );
    }

    #[test]
    fn peer_fault_35_empty_items_of_local_kernels_are_skipped() {
        assert!(
            read(&[("LOCAL_KERNELS", "")])
                .unwrap()
                .local_kernels
                .is_empty()
        );
        let environment = read(&[("LOCAL_KERNELS", "a/b=/x::c/d=/y:")]).unwrap();
        assert_eq!(environment.local_kernels.len(), 2);
        for text in ["a/b", "a=/x", "a/b=", "a/b=/x:a/b=/y"] {
            let error = read(&[("LOCAL_KERNELS", text)]).unwrap_err().to_string();
            assert!(error.starts_with("`LOCAL_KERNELS`"), "{error}");
        }
    }

    #[test]
    fn the_endpoint_must_be_an_http_address_without_a_password() {
        assert_eq!(
            read(&[("HF_ENDPOINT", "http://h:8/")])
                .unwrap()
                .endpoint
                .as_str(),
            "http://h:8/"
        );
        for text in ["h:8", "ftp://h", "http://user:password@h", "/x"] {
            assert!(read(&[("HF_ENDPOINT", text)]).is_err(), "{text}");
        }
    }

    #[test]
    fn offline_is_read_as_by_huggingface_hub() {
        for (text, expected) in [
            ("1", true),
            ("yes", true),
            ("0", false),
            ("", false),
            ("no", false),
        ] {
            assert_eq!(
                read(&[("HF_HUB_OFFLINE", text)]).unwrap().offline,
                expected,
                "{text}"
            );
        }
    }
}
