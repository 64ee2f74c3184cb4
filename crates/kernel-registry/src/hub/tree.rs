//! The file tree of a commit, with the content ids that downloads are checked against.
//!
//! Read as raw JSON: `hf-hub` drops the LFS ids and fails on entry types that it does not know.

use std::collections::HashSet;

use kernel_spec::{CommitId, RepositoryId};
use serde::Deserialize;
use url::Url;

use super::http::next_page;
use super::{Hub, retrying};
use crate::blob::BlobId;
use crate::cache::Listing;
use crate::error::{Error, RequestContext, Result};

/// Most entries of a tree. The largest kernel repositories have some thousands; without a limit, a
/// list that never ends would fill the memory.
const MOST_ENTRIES: usize = 1_000_000;

#[derive(Deserialize)]
struct Entry {
    #[serde(rename = "type")]
    kind: String,
    path: String,
    oid: Option<String>,
    size: Option<u64>,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    oid: String,
    size: u64,
}

impl Hub {
    /// The builds of a commit, and whether it says that the kernel has moved; none where it has
    /// neither.
    pub(crate) async fn builds(
        &self,
        repository: &RepositoryId,
        commit: &CommitId,
    ) -> Result<Option<Listing>> {
        let mut url = self.api_address(repository, &["tree", commit.as_str()])?;
        url.query_pairs_mut()
            .append_pair("recursive", "true")
            .append_pair("expand", "false");
        let context = RequestContext::new(&url);
        let bad = |reason: String| Error::BadAnswer {
            context: context.clone(),
            reason,
        };
        let mut files = Vec::new();
        let mut seen = HashSet::new();
        let mut next = Some(url);
        while let Some(page) = next {
            if !seen.insert(page.clone()) {
                return Err(bad("its pages lead back to an earlier one".to_owned()));
            }
            let (answer, headers) =
                match retrying(&self.retry, &self.events, || self.get_json(&page)).await {
                    Err(Error::Http(context))
                        if context.status == Some(404)
                            && context.code.as_deref() == Some("EntryNotFound") =>
                    {
                        return Ok(None);
                    }
                    other => other
                        .map_err(|error| self.about(error, repository, Some(commit.as_str())))?,
                };
            let entries: Vec<Entry> =
                serde_json::from_value(answer).map_err(|error| bad(error.to_string()))?;
            for entry in entries.into_iter().filter(|entry| entry.kind == "file") {
                files.push(file(entry).map_err(bad)?);
            }
            if files.len() > MOST_ENTRIES {
                return Err(bad(format!("the tree has more than {MOST_ENTRIES} files")));
            }
            next = next_page(&headers)
                .map(|link| self.page_address(link, &page))
                .transpose()?;
        }
        Listing::new(files)
            .map(|listing| (!listing.is_empty()).then_some(listing))
            .map_err(|reason| Error::HostileListing {
                kernel: format!("{repository}@{commit}"),
                reason,
            })
    }

    /// The address of another page, which must be on the Hub: the request carries the token.
    fn page_address(&self, link: &str, current: &Url) -> Result<Url> {
        match current.join(link) {
            Ok(url) if url.origin() == self.endpoint.origin() => Ok(url),
            _ => Err(Error::BadAnswer {
                context: RequestContext::new(current),
                reason: "the next page is on another host".to_owned(),
            }),
        }
    }
}

/// Name and content id of one file.
fn file(entry: Entry) -> Result<(String, BlobId), String> {
    let id = match (entry.lfs, entry.oid, entry.size) {
        (Some(lfs), _, _) => {
            let digits = lfs.oid.strip_prefix("sha256:").unwrap_or(&lfs.oid);
            BlobId::new(digits, lfs.size).filter(|id| id.id().len() == 64)
        }
        (None, Some(oid), Some(size)) => BlobId::new(&oid, size).filter(|id| id.id().len() == 40),
        _ => None,
    };
    match id {
        Some(id) => Ok((entry.path, id)),
        None => Err(format!(
            "`{}` has no usable content id",
            entry.path.escape_debug()
        )),
    }
}
