//! One function for each endpoint.
//!
//! `api` answers questions about repositories, `content` serves files. Both are plain functions from
//! a request and the store to a reply; sockets and faults are the server's business.

mod api;
mod content;

use std::collections::BTreeMap;

use bytes::Bytes;
use percent_encoding::percent_decode_str;

use crate::reply::Reply;
use crate::store::{Repository, Store};

/// A request, taken apart.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) method: String,
    /// Path as sent.
    pub(crate) path: String,
    pub(crate) query: BTreeMap<String, String>,
    /// Headers by their names in lower case.
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: Bytes,
}

/// Settings of the server that show in answers.
#[derive(Debug, Clone)]
pub(crate) struct Site {
    /// Address of the Hub, `http://127.0.0.1:<port>`.
    pub(crate) endpoint: String,
    /// Address of the storage of large files: the same server under its other name, because
    /// clients treat redirects to another origin differently.
    pub(crate) storage: String,
    /// Most entries on a page of a tree.
    pub(crate) page_size: usize,
    /// Whether files kept in git are served through a redirect, as the real Hub does.
    pub(crate) resolve_cache: bool,
}

impl Request {
    /// The token of the caller.
    pub(crate) fn token(&self) -> Option<&str> {
        self.headers.get("authorization")?.strip_prefix("Bearer ")
    }
}

pub(crate) fn decode(text: &str) -> String {
    percent_decode_str(text).decode_utf8_lossy().into_owned()
}

/// Decodes `a=b&c=d`.
pub(crate) fn decode_form(text: &str) -> Vec<(String, String)> {
    text.split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            (
                decode(&key.replace('+', " ")),
                decode(&value.replace('+', " ")),
            )
        })
        .collect()
}

/// Answers a request.
pub(crate) fn answer(request: &Request, store: &Store, site: &Site) -> Reply {
    let segments: Vec<&str> = request.path.split('/').skip(1).collect();
    if let ["cdn", owner, name, commit, sha256] = segments.as_slice() {
        return content::storage(request, store, &format!("{owner}/{name}"), commit, sha256);
    }
    if let Some(token) = request.token()
        && !store.tokens.is_empty()
        && !store.tokens.contains(token)
    {
        return Reply::error(401, None, "Invalid credentials in Authorization header");
    }
    match segments.as_slice() {
        ["api", "whoami-v2"] => api::who_am_i(request),
        ["api", "organizations", owner, "overview"] => api::organization(store, &decode(owner)),
        ["api", "users", owner, "overview"] => api::user(store, &decode(owner)),
        ["api", "kernels"] => api::list(request, store),
        [
            "api",
            "resolve-cache",
            "kernels",
            owner,
            name,
            commit,
            path @ ..,
        ] => with_repository(request, store, owner, name, |repository, _| {
            content::file(request, store, site, repository, commit, path, true)
        }),
        ["api", "kernels", owner, name, rest @ ..] => {
            with_repository(request, store, owner, name, |repository, state| {
                api::repository(request, store, site, repository, state, rest)
            })
        }
        ["kernels", owner, name, "resolve", revision, path @ ..] if !path.is_empty() => {
            with_repository(request, store, owner, name, |repository, _| {
                content::file(request, store, site, repository, revision, path, false)
            })
        }
        _ => Reply::error(
            404,
            None,
            "Sorry, we can't find the page you are looking for.",
        ),
    }
}

/// Finds a repository that the caller may see.
fn with_repository(
    request: &Request,
    store: &Store,
    owner: &str,
    name: &str,
    found: impl FnOnce(&str, &Repository) -> Reply,
) -> Reply {
    let repository = format!("{}/{}", decode(owner), decode(name));
    let known = request
        .token()
        .is_some_and(|token| store.tokens.contains(token));
    match store.repositories.get(&repository) {
        Some(state) if state.gated && !known => Reply::error(
            403,
            Some("GatedRepo"),
            &format!("Access to kernel {repository} is restricted"),
        ),
        Some(state) if !state.private || known => found(&repository, state),
        // So as not to give away which private repositories exist, a caller without a token hears
        // the same of a missing one.
        _ if request.token().is_some() => {
            Reply::error(404, Some("RepoNotFound"), "Repository not found")
        }
        _ => Reply::error(401, None, "Invalid username or password."),
    }
}
