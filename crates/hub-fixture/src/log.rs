//! What was asked.

use std::collections::BTreeMap;

/// One request that the server has answered, or refused to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoggedRequest {
    /// `GET`, `HEAD` or `POST`.
    pub method: String,
    /// Path as sent, percent-encoded.
    pub path: String,
    /// Query as sent, empty where there is none.
    pub query: String,
    /// Headers by their names in lower case.
    pub headers: BTreeMap<String, String>,
    /// Status of the answer; none where the connection was closed without one.
    pub status: Option<u16>,
}

impl LoggedRequest {
    /// `METHOD /path?query`, which faults are matched against.
    pub fn line(&self) -> String {
        request_line(&self.method, &self.path, &self.query)
    }
}

pub(crate) fn request_line(method: &str, path: &str, query: &str) -> String {
    if query.is_empty() {
        format!("{method} {path}")
    } else {
        format!("{method} {path}?{query}")
    }
}
