//! Files: their headers, redirects to storage, and ranges.

use percent_encoding::{AsciiSet, CONTROLS, NON_ALPHANUMERIC, utf8_percent_encode};

use super::api::revision_missing;
use super::{Request, Site, decode};
use crate::git::File;
use crate::reply::Reply;
use crate::store::Store;

/// What is encoded in a path besides control characters; the slash is not.
const PATH: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'#')
    .add(b'%')
    .add(b'<')
    .add(b'>')
    .add(b'?')
    .add(b'[')
    .add(b'\\')
    .add(b']')
    .add(b'^')
    .add(b'`')
    .add(b'{')
    .add(b'|')
    .add(b'}');

const BINARY: &str = "application/octet-stream";

/// A file of a repository, or the redirect to where it is.
pub(super) fn file(
    request: &Request,
    store: &Store,
    site: &Site,
    repository: &str,
    revision: &str,
    path: &[&str],
    redirected: bool,
) -> Reply {
    let revision = decode(revision);
    let Some(snapshot) = store.snapshot(repository, &revision) else {
        return revision_missing(&revision);
    };
    let path = decode(&path.join("/"));
    let commit = &snapshot.commit;
    let Some(file) = snapshot.files.get(&path) else {
        return Reply::error(404, Some("EntryNotFound"), "Entry not found")
            .header("x-repo-commit", commit);
    };
    let linked = |reply: Reply| {
        reply
            .header("x-repo-commit", commit)
            .header("x-linked-size", file.content.len().to_string())
            .header("x-linked-etag", format!("\"{}\"", file.etag()))
            .header("accept-ranges", "bytes")
    };
    if file.is_lfs() {
        let location = format!("{}/cdn/{repository}/{commit}/{}", site.storage, file.sha256);
        // The tag of the redirect itself; clients must not take it for the file's.
        return linked(Reply::new(302, "text/plain", "Found"))
            .header("etag", format!("\"{}-redirect\"", &file.sha256[..32]))
            .header("location", location);
    }
    if site.resolve_cache && !redirected {
        let location = format!(
            "/api/resolve-cache/kernels/{repository}/{commit}/{}?{}=&etag=%22{}%22",
            utf8_percent_encode(&path, PATH),
            utf8_percent_encode(&format!("/kernels/{repository}"), NON_ALPHANUMERIC),
            file.oid
        );
        return linked(Reply::new(307, "text/plain", "Temporary Redirect"))
            .header("location", location);
    }
    let name = path.rsplit('/').next().unwrap_or_default();
    content(request, file)
        .header("x-repo-commit", commit)
        .header(
            "content-disposition",
            format!(
                "inline; filename*=UTF-8''{}",
                utf8_percent_encode(name, NON_ALPHANUMERIC)
            ),
        )
}

/// A large file, from the storage's name of this server.
pub(super) fn storage(
    request: &Request,
    store: &Store,
    repository: &str,
    commit: &str,
    sha256: &str,
) -> Reply {
    store
        .snapshot(repository, commit)
        .and_then(|snapshot| {
            let file = snapshot.files.values().find(|file| file.sha256 == sha256)?;
            Some(content(request, file))
        })
        .unwrap_or_else(|| Reply::new(403, "application/xml", "AccessDenied"))
}

/// The content of a file, or the asked range of it.
fn content(request: &Request, file: &File) -> Reply {
    let etag = format!("\"{}\"", file.etag());
    let size = file.content.len();
    let range = request
        .headers
        .get("range")
        .map_or(Range::Whole, |text| parse_range(text, size));
    // A range of a file that has changed would be glued to another one's beginning.
    let changed = request
        .headers
        .get("if-range")
        .is_some_and(|tag| *tag != etag);
    match range {
        Range::Missing if !changed => Reply::new(416, BINARY, "")
            .header("content-range", format!("bytes */{size}"))
            .header("etag", &etag),
        Range::Part(first, last) if !changed => {
            Reply::new(206, BINARY, file.content.slice(first..=last))
                .header("etag", &etag)
                .header("accept-ranges", "bytes")
                .header("content-range", format!("bytes {first}-{last}/{size}"))
        }
        Range::Whole | Range::Missing | Range::Part(..) => {
            Reply::new(200, BINARY, file.content.clone())
                .header("etag", &etag)
                .header("accept-ranges", "bytes")
        }
    }
}

/// What a `Range` header asks for.
#[derive(Debug, PartialEq, Eq)]
enum Range {
    /// It is no single range of bytes, and so is ignored.
    Whole,
    /// First and last byte.
    Part(usize, usize),
    /// Bytes that the file does not have.
    Missing,
}

fn parse_range(text: &str, size: usize) -> Range {
    let bounds = text
        .strip_prefix("bytes=")
        .and_then(|text| text.split_once('-'));
    let Some((first, last)) = bounds else {
        return Range::Whole;
    };
    let Some(end) = size.checked_sub(1) else {
        return Range::Missing;
    };
    let number = |text: &str| text.parse::<usize>().ok();
    let bounds = match (first, last) {
        ("", count) => number(count).map(|count| (size - count.min(size), end)),
        (first, "") => number(first).map(|first| (first, end)),
        (first, last) => number(first)
            .zip(number(last))
            .map(|(first, last)| (first, last.min(end))),
    };
    match bounds {
        None => Range::Whole,
        Some((first, last)) if first <= last => Range::Part(first, last),
        Some(_) => Range::Missing,
    }
}

#[cfg(test)]
mod tests {
    use super::{Range, parse_range};

    #[test]
    fn ranges() {
        assert_eq!(parse_range("bytes=0-3", 10), Range::Part(0, 3));
        assert_eq!(parse_range("bytes=4-", 10), Range::Part(4, 9));
        assert_eq!(parse_range("bytes=4-99", 10), Range::Part(4, 9));
        assert_eq!(parse_range("bytes=-3", 10), Range::Part(7, 9));
        assert_eq!(parse_range("bytes=-99", 10), Range::Part(0, 9));
        for missing in ["bytes=10-", "bytes=5-4", "bytes=-0"] {
            assert_eq!(parse_range(missing, 10), Range::Missing, "{missing}");
        }
        assert_eq!(parse_range("bytes=0-", 0), Range::Missing);
        for ignored in ["bytes=0-1,3-4", "lines=0-1", "bytes=a-", "bytes=-"] {
            assert_eq!(parse_range(ignored, 10), Range::Whole, "{ignored}");
        }
    }
}
