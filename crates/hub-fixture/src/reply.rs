//! Answers, before they are put on the wire.

use bytes::Bytes;
use serde_json::{Value, json};

/// An answer. The length of the body is announced by the server.
#[derive(Debug, Clone)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Bytes,
}

impl Reply {
    pub(crate) fn new(status: u16, content_type: &str, body: impl Into<Bytes>) -> Self {
        Self {
            status,
            headers: vec![("content-type".to_owned(), content_type.to_owned())],
            body: body.into(),
        }
    }

    pub(crate) fn json(value: &Value) -> Self {
        Self::new(200, "application/json; charset=utf-8", value.to_string())
    }

    /// An error as the Hub words it: a code and a message in headers, the message in the body.
    pub(crate) fn error(status: u16, code: Option<&str>, message: &str) -> Self {
        let body = json!({"error": message}).to_string();
        let mut reply = Self::new(status, "application/json; charset=utf-8", body);
        if let Some(code) = code {
            reply = reply.header("x-error-code", code);
        }
        reply.header("x-error-message", message)
    }

    #[must_use]
    pub(crate) fn header(mut self, name: &str, value: impl Into<String>) -> Self {
        self.set_header(name, value);
        self
    }

    pub(crate) fn set_header(&mut self, name: &str, value: impl Into<String>) {
        self.headers
            .retain(|(other, _)| !other.eq_ignore_ascii_case(name));
        self.headers.push((name.to_owned(), value.into()));
    }
}
