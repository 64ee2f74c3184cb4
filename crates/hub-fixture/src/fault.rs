//! What can go wrong on request.
//!
//! A fault is tied to requests by a piece of their line, `METHOD /path?query`, and lasts for a
//! number of requests or for good. Its parts can be combined: wait, then answer with an error.

use std::time::Duration;

use bytes::Bytes;

/// Something that goes wrong with requests that match.
///
/// ```
/// use std::time::Duration;
/// use hub_fixture::Fault;
///
/// let busy = Fault::on("GET /api/kernels/").status(503).sleep(Duration::from_millis(5)).times(2);
/// let damaged = Fault::on("/build/torch-cpu/__init__.py").corrupt();
/// # let _ = (busy, damaged);
/// ```
#[derive(Debug, Clone, Default)]
pub struct Fault {
    pub(crate) pattern: String,
    pub(crate) remaining: Option<usize>,
    pub(crate) sleep: Option<Duration>,
    pub(crate) close: bool,
    pub(crate) status: Option<u16>,
    pub(crate) error_code: Option<String>,
    pub(crate) body: Option<Bytes>,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) corrupt: bool,
    pub(crate) truncate: Option<usize>,
    pub(crate) stall: Option<(usize, Duration)>,
}

impl Fault {
    /// A fault for requests whose line, `METHOD /path?query`, contains `pattern`.
    pub fn on(pattern: impl Into<String>) -> Self {
        Self {
            pattern: pattern.into(),
            ..Self::default()
        }
    }

    /// Ends after so many requests. Without this it lasts until faults are cleared.
    #[must_use]
    pub const fn times(mut self, count: usize) -> Self {
        self.remaining = Some(count);
        self
    }

    /// Waits before anything else.
    #[must_use]
    pub const fn sleep(mut self, duration: Duration) -> Self {
        self.sleep = Some(duration);
        self
    }

    /// Closes the connection without an answer.
    #[must_use]
    pub const fn close(mut self) -> Self {
        self.close = true;
        self
    }

    /// Answers with this status instead of looking at the request.
    #[must_use]
    pub const fn status(mut self, status: u16) -> Self {
        self.status = Some(status);
        self
    }

    /// The Hub's `X-Error-Code` of such an answer, for example `RevisionNotFound`.
    #[must_use]
    pub fn error_code(mut self, code: impl Into<String>) -> Self {
        self.error_code = Some(code.into());
        self
    }

    /// Replaces the body of the answer; with [`Fault::status`] 200, an error page that looks like
    /// content.
    #[must_use]
    pub fn body(mut self, body: impl Into<Bytes>) -> Self {
        self.body = Some(body.into());
        self
    }

    /// Sets a header of the answer, whatever it would have been.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// Changes the first byte of the body; its length stays right.
    #[must_use]
    pub const fn corrupt(mut self) -> Self {
        self.corrupt = true;
        self
    }

    /// Announces the whole body, sends so many bytes of it, and closes the connection.
    #[must_use]
    pub const fn truncate(mut self, bytes: usize) -> Self {
        self.truncate = Some(bytes);
        self
    }

    /// Sends so many bytes of the body, then nothing for a while, then the rest.
    #[must_use]
    pub const fn stall(mut self, bytes: usize, duration: Duration) -> Self {
        self.stall = Some((bytes, duration));
        self
    }

    /// Whether the fault applies to a request line, counting it if so.
    pub(crate) fn applies(&mut self, line: &str) -> bool {
        if self.remaining == Some(0) || !line.contains(&self.pattern) {
            return false;
        }
        if let Some(remaining) = &mut self.remaining {
            *remaining -= 1;
        }
        true
    }
}
