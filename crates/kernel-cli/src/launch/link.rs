//! What a rank and its supervisor say to each other: lines of JSON through a socket of this machine.
//!
//! The rank sends [`FromRank`]; the supervisor sends the word [`CANCEL`], or closes the socket, which
//! ends the rank: none stays behind when the supervisor is gone, however it went.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, PoisonError};

use kernel_spec::protocol::Event;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use crate::failure::Failure;

/// Names the supervisor's socket.
pub(crate) const VARIABLE: &str = "KERNEL_CLI_SUPERVISOR";
/// Asks a rank to end with what it has.
pub(crate) const CANCEL: &str = "cancel";

/// A line from a rank.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FromRank {
    /// The first line.
    Hello {
        /// The rank.
        rank: usize,
        /// Its process.
        process: i32,
    },
    /// What the runtime library says, the last event included.
    Event(Event),
}

/// A rank's end of the socket.
#[derive(Debug)]
pub(crate) struct Link {
    stream: Mutex<UnixStream>,
}

impl Link {
    /// Connects to the supervisor; none where there is none. `on_cancel` is called when it asks for an
    /// end.
    pub(crate) fn connect(
        rank: usize,
        on_cancel: impl Fn() + Send + 'static,
    ) -> Result<Option<Self>, Failure> {
        let Some(path) = std::env::var_os(VARIABLE) else {
            return Ok(None);
        };
        let failed = |error: io::Error| {
            Failure::new(
                "launch",
                format!("rank {rank} cannot reach its supervisor: {error}"),
            )
        };
        let stream = UnixStream::connect(path).map_err(failed)?;
        let reader = BufReader::new(stream.try_clone().map_err(failed)?);
        let link = Self {
            stream: Mutex::new(stream),
        };
        let process = i32::try_from(std::process::id()).unwrap_or(0);
        link.write(&FromRank::Hello { rank, process })
            .map_err(failed)?;
        std::thread::spawn(move || {
            for line in reader.lines() {
                match line {
                    Ok(word) if word == CANCEL => on_cancel(),
                    Ok(_) => {}
                    Err(_) => break,
                }
            }
            // At once: the exit handlers of Python and libtorch would wait for threads that wait for
            // other ranks.
            let _ = kill(Pid::this(), Signal::SIGKILL);
        });
        Ok(Some(link))
    }

    /// Sends an event. A supervisor that is gone ends this process in any case.
    pub(crate) fn send(&self, event: Event) {
        let _ = self.write(&FromRank::Event(event));
    }

    fn write(&self, message: &FromRank) -> io::Result<()> {
        let mut line = serde_json::to_vec(message)?;
        line.push(b'\n');
        self.stream
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .write_all(&line)
    }
}
