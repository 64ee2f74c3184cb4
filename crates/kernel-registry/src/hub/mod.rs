//! The Hub, as far as kernels need it.
//!
//! `hf-hub` asks for branches and commits; it gets an HTTP client of ours, so that its requests have
//! the same time-outs and follow the same redirects. What it drops or does without checks is done
//! here: publisher trust ([`Hub::publisher`]), the file tree with its content ids ([`tree`]), and
//! the transfer of files ([`transfer`]).

mod http;
mod retry;
mod transfer;
mod tree;

use std::time::Duration;

use hf_hub::{HFClient, HFError};
use kernel_spec::version::version_of_branch;
use kernel_spec::{CommitId, RepositoryId};
use url::Url;

use crate::environment::Token;
use crate::error::{Distrust, Error, RequestContext, Result};
use crate::events::Events;

pub(crate) use retry::RetryPolicy;
use retry::{Failed, retrying};
pub(crate) use transfer::Download;

/// Longest time for making a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest silence of a server, unless HF_HUB_DOWNLOAD_TIMEOUT says otherwise.
const READ_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest time for one answer of the API.
const API_TIMEOUT: Duration = Duration::from_secs(60);
/// Largest answer of the API; a page of the tree has a thousand entries.
const LARGEST_ANSWER: usize = 64 * 1024 * 1024;
/// Longest way of redirects.
const MOST_REDIRECTS: usize = 10;
/// Most requests at the same time, so that a large tree of kernels does not look like an attack.
const MOST_REQUESTS: usize = 32;

/// How a Hub is reached.
pub(crate) struct HubOptions {
    pub(crate) endpoint: Url,
    pub(crate) token: Option<Token>,
    pub(crate) read_timeout: Option<Duration>,
    pub(crate) retry: RetryPolicy,
    pub(crate) events: Events,
}

/// A Hub.
pub(crate) struct Hub {
    endpoint: Url,
    token: Option<Token>,
    /// Follows no redirects: where they lead is decided here.
    http: reqwest::Client,
    api: HFClient,
    retry: RetryPolicy,
    events: Events,
    /// Requests that may be under way at the same time.
    slots: tokio::sync::Semaphore,
}

/// Branches, tags and their commits.
#[derive(Debug, Clone, Default)]
pub(crate) struct References {
    /// Branches and tags in the Hub's order, branches first.
    names: Vec<(String, CommitId)>,
    branches: usize,
}

impl References {
    /// The versions: branches, not tags, called `v<N>`.
    pub(crate) fn versions(&self) -> std::collections::BTreeMap<u64, CommitId> {
        self.names[..self.branches]
            .iter()
            .filter_map(|(name, commit)| Some((version_of_branch(name)?, commit.clone())))
            .collect()
    }
}

impl Hub {
    pub(crate) fn new(options: HubOptions) -> Result<Self> {
        let failed = |error: String| Error::Setting {
            name: "network".to_owned(),
            reason: format!("the HTTP client cannot be set up: {error}"),
        };
        let base = || {
            reqwest::Client::builder()
                .user_agent(concat!("hub-kernels/", env!("CARGO_PKG_VERSION")))
                .connect_timeout(CONNECT_TIMEOUT)
                .read_timeout(options.read_timeout.unwrap_or(READ_TIMEOUT))
        };
        let http = base()
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .map_err(|error| failed(innermost(&error)))?;
        let api_http = base()
            .timeout(API_TIMEOUT)
            .redirect(http::same_origin_policy())
            .build()
            .map_err(|error| failed(innermost(&error)))?;
        let mut api = HFClient::builder()
            .client(api_http)
            .endpoint(options.endpoint.as_str())
            .cache_enabled(false)
            // Retries are ours, because they honour Retry-After; the number is that of further attempts.
            .retry_max_attempts(0);
        if let Some(token) = &options.token {
            api = api.token(token.secret());
        }
        Ok(Self {
            api: api.build().map_err(|error| failed(error.to_string()))?,
            endpoint: options.endpoint,
            token: options.token,
            http,
            retry: options.retry,
            events: options.events,
            slots: tokio::sync::Semaphore::new(MOST_REQUESTS),
        })
    }

    /// An address below the endpoint. Segments are encoded, so that none can hold a separator.
    fn address<'a>(&self, segments: impl IntoIterator<Item = &'a str>) -> Result<Url> {
        let mut url = self.endpoint.clone();
        url.path_segments_mut()
            .map_err(|()| Error::Setting {
                name: "HF_ENDPOINT".to_owned(),
                reason: "it cannot be extended by a path".to_owned(),
            })?
            .pop_if_empty()
            .extend(segments);
        Ok(url)
    }

    fn api_address(&self, repository: &RepositoryId, rest: &[&str]) -> Result<Url> {
        let start = ["api", "kernels", repository.owner(), repository.name()];
        self.address(start.into_iter().chain(rest.iter().copied()))
    }

    /// Branches and tags of a repository.
    pub(crate) async fn references(&self, repository: &RepositoryId) -> Result<References> {
        let url = self.api_address(repository, &["refs"])?;
        let answer = retrying(&self.retry, &self.events, || async {
            let _slot = self.slots.acquire().await;
            let repository = self.api.kernel(repository.owner(), repository.name());
            repository
                .list_refs()
                .send()
                .await
                .map_err(|error| failed_api(error, &url))
        })
        .await
        .map_err(|error| self.about(error, repository, None))?;
        let commit = |(name, text): (String, String)| {
            let commit = text.parse().map_err(|_| Error::BadAnswer {
                context: RequestContext::new(&url),
                reason: format!("the commit of `{name}` is not an id"),
            });
            Ok::<_, Error>((name, commit?))
        };
        let branches = answer.branches.len();
        let names = answer
            .branches
            .into_iter()
            .chain(answer.tags)
            .map(|reference| commit((reference.name, reference.target_commit)))
            .collect::<Result<_>>()?;
        Ok(References { names, branches })
    }

    /// The commit of a branch, tag or abbreviated commit.
    pub(crate) async fn commit(
        &self,
        repository: &RepositoryId,
        revision: &str,
    ) -> Result<CommitId> {
        let url = self.api_address(repository, &["revision", revision])?;
        let answer = retrying(&self.retry, &self.events, || async {
            let _slot = self.slots.acquire().await;
            let repository = self.api.kernel(repository.owner(), repository.name());
            repository
                .info()
                .revision(revision)
                .send()
                .await
                .map_err(|error| failed_api(error, &url))
        })
        .await
        .map_err(|error| self.about(error, repository, Some(revision)))?;
        answer
            .sha
            .as_deref()
            .and_then(|sha| sha.parse().ok())
            .ok_or_else(|| Error::BadAnswer {
                context: RequestContext::new(&url),
                reason: "it names no commit".to_owned(),
            })
    }

    /// Asks whether an organisation is a trusted publisher. None means that it is.
    pub(crate) async fn publisher(&self, owner: &str) -> Result<Option<Distrust>> {
        let url = self.address(["api", "organizations", owner, "overview"])?;
        let answer = retrying(&self.retry, &self.events, || self.get_json(&url)).await;
        match answer {
            // Truthiness as Python has it: the field may become more than a flag.
            Ok((serde_json::Value::Object(overview), _)) => {
                let trusted = match overview.get("trustedKernelPublisher") {
                    None | Some(serde_json::Value::Null) => false,
                    Some(serde_json::Value::Bool(flag)) => *flag,
                    Some(serde_json::Value::Number(number)) => number.as_f64() != Some(0.0),
                    Some(serde_json::Value::String(text)) => !text.is_empty(),
                    Some(serde_json::Value::Array(items)) => !items.is_empty(),
                    Some(serde_json::Value::Object(fields)) => !fields.is_empty(),
                };
                Ok((!trusted).then_some(Distrust::NotListed))
            }
            Ok(_) => Err(Error::BadAnswer {
                context: RequestContext::new(&url),
                reason: "the overview is not a JSON object".to_owned(),
            }),
            Err(Error::Http(context)) if context.status == Some(404) => {
                Ok(Some(Distrust::NoOrganisation))
            }
            Err(Error::Http(context) | Error::Unreachable { context, .. }) => {
                Ok(Some(Distrust::Unreachable(context)))
            }
            Err(other) => Err(other),
        }
    }

    /// Puts the repository into the error of a request that was about it.
    fn about(&self, error: Error, repository: &RepositoryId, revision: Option<&str>) -> Error {
        let Error::Http(context) = error else {
            return error;
        };
        let repository = repository.clone();
        let with_token = self.token.is_some();
        let code = context.code.as_deref();
        match (context.status, revision) {
            (Some(404), Some(revision)) if code == Some("RevisionNotFound") => {
                Error::RevisionNotFound {
                    repository,
                    revision: revision.to_owned(),
                }
            }
            (Some(401 | 403), _) if code == Some("GatedRepo") => Error::AccessRefused {
                repository,
                with_token,
                context,
            },
            // Without a token, the Hub says 401 for what is not there and for what is private.
            (Some(401), _) if !with_token => Error::RepositoryNotFound {
                repository,
                with_token,
                context,
            },
            (Some(401 | 403), _) => Error::AccessRefused {
                repository,
                with_token,
                context,
            },
            (Some(404), _) if code.is_none_or(|code| code == "RepoNotFound") => {
                Error::RepositoryNotFound {
                    repository,
                    with_token,
                    context,
                }
            }
            _ => Error::Http(context),
        }
    }
}

/// The error of a request that `hf-hub` sent.
fn failed_api(error: HFError, url: &Url) -> Failed {
    let mut context = RequestContext::new(url);
    let (answer, delay) = match error {
        HFError::RateLimited {
            retry_after,
            context,
        } => (Some(context), retry_after),
        HFError::Http { context }
        | HFError::AuthRequired { context }
        | HFError::Forbidden { context }
        | HFError::Conflict { context } => (Some(context), None),
        HFError::RepoNotFound { context, .. }
        | HFError::RevisionNotFound { context, .. }
        | HFError::EntryNotFound { context, .. } => (context, None),
        HFError::Request { source, .. } => return http::failed_request(&source, context),
        other => {
            let reason = other.to_string();
            return Failed::Fatal(Error::BadAnswer { context, reason });
        }
    };
    if let Some(answer) = answer {
        context.status = Some(answer.status.as_u16());
        context.code = answer.error_code;
        context.message = answer.server_message;
        context.request_id = answer.request_id;
    }
    http::failed_status(context, delay)
}

/// The innermost cause of an error: what the operating system or the TLS library said.
fn innermost(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}
