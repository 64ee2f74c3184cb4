//! What the registry tells while it works.

use std::sync::Arc;
use std::time::Duration;

use kernel_spec::RepositoryId;

/// Something that a user may want to see while a call is under way.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A choice that was made for the user, in one sentence.
    Note(String),
    /// Something that may be wrong, in one sentence.
    Warning(String),
    /// Files of a kernel are about to be downloaded.
    DownloadStarted {
        /// The repository.
        repository: RepositoryId,
        /// Bytes in all.
        bytes: u64,
        /// Number of files.
        files: usize,
    },
    /// Bytes arrived.
    DownloadAdvanced {
        /// Number of bytes since the last event.
        bytes: u64,
    },
    /// Bytes that had arrived were of no use and will be asked for again.
    DownloadSetBack {
        /// Number of bytes.
        bytes: u64,
    },
    /// All files of a kernel are here.
    DownloadFinished {
        /// The repository.
        repository: RepositoryId,
    },
    /// A request failed in a way that may pass, and will be sent again.
    Retrying {
        /// What went wrong.
        reason: String,
        /// Time until the next attempt.
        delay: Duration,
    },
    /// Another process is writing the same file.
    WaitingForLock {
        /// The lock file.
        path: std::path::PathBuf,
        /// Time waited so far.
        waited: Duration,
    },
}

/// Receives [`Event`]s, possibly from several threads.
pub type EventSink = Arc<dyn Fn(Event) + Send + Sync>;

/// The sink of one registry; without one, notes and warnings go to the log.
#[derive(Clone, Default)]
pub(crate) struct Events(pub(crate) Option<EventSink>);

impl Events {
    pub(crate) fn send(&self, event: Event) {
        match (&self.0, event) {
            (Some(sink), event) => sink(event),
            (None, Event::Note(text)) => tracing::info!("{text}"),
            (None, Event::Warning(text)) => tracing::warn!("{text}"),
            (None, event) => tracing::debug!(?event),
        }
    }

    pub(crate) fn note(&self, text: impl Into<String>) {
        self.send(Event::Note(text.into()));
    }

    pub(crate) fn warn(&self, text: impl Into<String>) {
        self.send(Event::Warning(text.into()));
    }
}
