//! Questions about owners and repositories.

use std::collections::BTreeMap;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};

use super::{Request, Site, decode, decode_form};
use crate::git::Snapshot;
use crate::reply::Reply;
use crate::store::{Repository, Store, Trust};

pub(super) fn who_am_i(request: &Request) -> Reply {
    if request.token().is_none() {
        return Reply::error(401, None, "Invalid username or password.");
    }
    Reply::json(&json!({
        "type": "user", "id": "0".repeat(24), "name": "fixture", "fullname": "Hub fixture",
        "orgs": [],
    }))
}

pub(super) fn organization(store: &Store, owner: &str) -> Reply {
    let trust = match store.owners.get(owner) {
        None | Some(Trust::User) => {
            return Reply::error(404, None, "This organization does not exist");
        }
        Some(trust) => *trust,
    };
    let prefix = format!("{owner}/");
    let kernels = store
        .repositories
        .keys()
        .filter(|id| id.starts_with(&prefix))
        .count();
    let mut overview = json!({
        "name": owner, "fullname": owner, "avatarUrl": "", "isVerified": false, "numUsers": 1,
        "numModels": 0, "numDatasets": 0, "numSpaces": 0, "numPapers": 0, "numFollowers": 0,
        "numKernels": kernels,
    });
    // The Hub leaves the key out where it would be false.
    if trust == Trust::Trusted {
        overview["trustedKernelPublisher"] = Value::Bool(true);
    }
    Reply::json(&overview)
}

pub(super) fn user(store: &Store, owner: &str) -> Reply {
    match store.owners.get(owner) {
        Some(Trust::User) => Reply::json(&json!({
            "user": owner, "fullname": owner, "avatarUrl": "", "isPro": false,
        })),
        _ => Reply::error(404, None, "This user does not exist"),
    }
}

/// Public repositories, by author and part of the id.
pub(super) fn list(request: &Request, store: &Store) -> Reply {
    let author = request.query.get("author");
    let search = request.query.get("search");
    let found: Vec<Value> = store
        .repositories
        .iter()
        .filter(|(_, state)| !state.private)
        .filter(|(id, _)| author.is_none_or(|author| id.split('/').next() == Some(author)))
        .filter(|(id, _)| search.is_none_or(|search| id.contains(search.as_str())))
        .map(|(id, state)| {
            json!({"id": id, "author": id.split('/').next(), "private": state.private})
        })
        .collect();
    Reply::json(&Value::from(found))
}

/// Everything below `/api/kernels/<owner>/<name>`.
pub(super) fn repository(
    request: &Request,
    store: &Store,
    site: &Site,
    repository: &str,
    state: &Repository,
    rest: &[&str],
) -> Reply {
    let snapshot = |revision: &str| {
        let revision = decode(revision);
        store
            .snapshot(repository, &revision)
            .ok_or_else(|| revision_missing(&revision))
    };
    let answer = match rest {
        ["refs"] => Ok(refs(request, state)),
        [] => snapshot("main").map(|snapshot| info(store, repository, state, &snapshot)),
        ["revision", revision] => {
            snapshot(revision).map(|snapshot| info(store, repository, state, &snapshot))
        }
        ["tree", revision, path @ ..] => snapshot(revision)
            .map(|snapshot| tree(request, site, &snapshot, &decode(&path.join("/")))),
        ["paths-info", revision] => {
            snapshot(revision).map(|snapshot| paths_info(request, &snapshot))
        }
        _ => Err(Reply::error(
            404,
            None,
            "Sorry, we can't find the page you are looking for.",
        )),
    };
    answer.unwrap_or_else(|error| error)
}

pub(super) fn revision_missing(revision: &str) -> Reply {
    Reply::error(
        404,
        Some("RevisionNotFound"),
        &format!("Invalid rev id: {revision}"),
    )
}

fn refs(request: &Request, state: &Repository) -> Reply {
    let branches = state.branches.iter().map(|(name, snapshot)| {
        json!({"name": name, "ref": format!("refs/heads/{name}"), "targetCommit": snapshot.commit})
    });
    let tags = state.tags.iter().filter_map(|(name, branch)| {
        let commit = &state.branches.get(branch)?.commit;
        Some(json!({"name": name, "ref": format!("refs/tags/{name}"), "targetCommit": commit}))
    });
    let mut answer = json!({
        "branches": branches.collect::<Vec<_>>(), "tags": tags.collect::<Vec<_>>(), "converts": [],
    });
    if request.query.contains_key("include_prs") {
        answer["pullRequests"] = json!([]);
    }
    Reply::json(&answer)
}

fn info(store: &Store, repository: &str, state: &Repository, snapshot: &Snapshot) -> Reply {
    let owner = repository.split('/').next().unwrap_or_default();
    let trusted = store.owners.get(owner) == Some(&Trust::Trusted);
    // No `siblings`: huggingface_hub 1.10 fails on those of a kernel.
    Reply::json(&json!({
        "_id": "0".repeat(24), "id": repository, "author": owner, "sha": snapshot.commit,
        "lastModified": "2026-01-01T00:00:00.000Z", "private": state.private,
        "gated": state.gated, "disabled": false, "downloads": 0, "likes": 0,
        "trustedKernelPublisher": trusted,
    }))
}

fn node(snapshot: &Snapshot, path: &str) -> Option<Value> {
    if let Some(oid) = snapshot.directories.get(path) {
        return Some(json!({"type": "directory", "oid": oid, "size": 0, "path": path}));
    }
    let file = snapshot.files.get(path)?;
    let size = file.content.len();
    let mut node = json!({"type": "file", "oid": file.oid, "size": size, "path": path});
    if let Some(pointer_size) = file.pointer_size {
        node["lfs"] = json!({"oid": file.sha256, "size": size, "pointerSize": pointer_size});
    }
    Some(node)
}

/// One page of a directory's entries, directories first.
fn tree(request: &Request, site: &Site, snapshot: &Snapshot, directory: &str) -> Reply {
    let directory = directory.trim_matches('/');
    if !directory.is_empty() && !snapshot.directories.contains_key(directory) {
        let message = format!("{directory} does not exist");
        return Reply::error(404, Some("EntryNotFound"), &message)
            .header("x-repo-commit", &snapshot.commit);
    }
    let flag = |name| {
        matches!(
            request.query.get(name).map(String::as_str),
            Some("true" | "True" | "1")
        )
    };
    let number = |name| {
        request
            .query
            .get(name)
            .and_then(|text| text.parse::<usize>().ok())
    };
    let prefix = if directory.is_empty() {
        String::new()
    } else {
        format!("{directory}/")
    };
    let recursive = flag("recursive");
    let paths: Vec<&String> = snapshot
        .directories
        .keys()
        .chain(snapshot.files.keys())
        .filter(|path| {
            path.strip_prefix(&prefix)
                .is_some_and(|rest| recursive || !rest.contains('/'))
        })
        .collect();

    let page_size = number("limit")
        .unwrap_or(site.page_size)
        .clamp(1, site.page_size);
    let start = number("cursor").unwrap_or(0).min(paths.len());
    let end = (start + page_size).min(paths.len());
    let page: Vec<Value> = paths[start..end]
        .iter()
        .filter_map(|path| node(snapshot, path))
        .collect();
    let mut reply = Reply::json(&Value::from(page)).header("x-repo-commit", &snapshot.commit);
    if end < paths.len() {
        let mut query: BTreeMap<&str, &str> = request
            .query
            .iter()
            .map(|(key, value)| (key.as_str(), value.as_str()))
            .collect();
        let cursor = end.to_string();
        query.insert("cursor", &cursor);
        let query: Vec<String> = query
            .iter()
            .map(|(key, value)| format!("{key}={}", utf8_percent_encode(value, NON_ALPHANUMERIC)))
            .collect();
        let url = format!("{}{}?{}", site.endpoint, request.path, query.join("&"));
        reply = reply.header("link", format!("<{url}>; rel=\"next\""));
    }
    reply
}

/// The entries of the asked paths that exist. The question is a form or JSON.
fn paths_info(request: &Request, snapshot: &Snapshot) -> Reply {
    let text = String::from_utf8_lossy(&request.body);
    let paths: Vec<String> = match serde_json::from_str::<Value>(&text) {
        Ok(body) => body["paths"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|path| path.as_str().map(ToOwned::to_owned))
            .collect(),
        Err(_) => decode_form(&text)
            .into_iter()
            .filter_map(|(key, value)| (key == "paths").then_some(value))
            .collect(),
    };
    Reply::json(
        &paths
            .iter()
            .filter_map(|path| node(snapshot, path))
            .collect(),
    )
}
