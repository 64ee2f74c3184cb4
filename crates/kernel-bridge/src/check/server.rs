//! The child process that runs jobs, and its pipes.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use kernel_registry::VerifiedKernel;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::job::{Account, Answer, Exception, Job};
use super::payload::payloads;
use crate::environment::Environment;
use crate::error::{BridgeError, EnvironmentError};
use crate::python;

/// Makes the package of our Python sources in the child, and serves.
const START: &str = include_str!("../../python/check_start.py");
/// How long importing torch and JAX may take; on a cold disk it is half a minute.
const START_LIMIT: Duration = Duration::from_secs(300);

/// What each job may use.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limits {
    /// Seconds until a job must have answered, or given its next part.
    pub seconds: f64,
    /// Bytes of memory.
    pub memory_bytes: u64,
}

/// A Python process that runs jobs on one kernel. Dropping it ends it and all its jobs.
pub struct CheckServer {
    child: Child,
    input: ChildStdin,
    output: Receiver<std::io::Result<String>>,
    limits: Limits,
    next_id: u64,
}

impl std::fmt::Debug for CheckServer {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "CheckServer(process {})", self.child.id())
    }
}

#[derive(Serialize)]
struct Message<'a> {
    id: u64,
    limit_s: f64,
    memory_bytes: u64,
    #[serde(flatten)]
    job: &'a Job,
}

#[derive(Deserialize)]
struct Line {
    id: u64,
    part: Option<Value>,
    done: Option<Value>,
    error: Option<Exception>,
    ended: Option<String>,
    #[serde(default)]
    said: String,
    seconds: Option<f64>,
    #[serde(default)]
    peak_bytes: u64,
    #[serde(default)]
    printed: String,
}

impl CheckServer {
    /// Starts the child and waits until it has imported torch and JAX.
    ///
    /// # Errors
    /// [`BridgeError::Environment`] where JAX or, for builds, libtpu is missing;
    /// [`BridgeError::Worker`] where the child does not come up.
    pub fn start(
        environment: &Environment,
        kernel: Option<&VerifiedKernel>,
        limits: Limits,
    ) -> Result<Self, BridgeError> {
        for package in ["jax", "jaxlib", "libtpu"] {
            if environment.installed(package).is_none() {
                return Err(BridgeError::Environment(EnvironmentError::Missing {
                    root: environment.root().to_owned(),
                    package,
                }));
            }
        }
        let mut child = Command::new(environment.python())
            // Isolated: neither the user's site packages nor the current folder nor PYTHON*
            // variables change what is imported.
            .args(["-I", "-B", "-c", START])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            // Its own group: a Ctrl-C at the terminal goes to this process, which ends the child.
            .process_group(0)
            .spawn()
            .map_err(|error| worker(format!("it cannot be started: {error}")))?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(worker("it has no pipes".to_owned()));
        };
        let (sender, receiver) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines() {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        let mut server = Self {
            child,
            input,
            output: receiver,
            limits,
            next_id: 0,
        };
        server.send(&json!({
            "bootstrap": python::BOOTSTRAP,
            "sources": python::check_sources(),
            "payloads": kernel.map(payloads).unwrap_or_default(),
        }))?;
        let ready = server
            .output
            .recv_timeout(START_LIMIT)
            .map_err(|_| worker("it did not come up".to_owned()))?;
        match ready {
            Ok(line) if line.contains("ready") => Ok(server),
            Ok(line) => Err(worker(line)),
            Err(error) => Err(worker(error.to_string())),
        }
    }

    /// Gives the child a job; its number is that of the answers.
    ///
    /// # Errors
    /// [`BridgeError::Worker`] where the child is gone.
    pub fn submit(&mut self, job: &Job) -> Result<u64, BridgeError> {
        let id = self.next_id;
        self.next_id += 1;
        let message = serde_json::to_value(Message {
            id,
            limit_s: self.limits.seconds,
            memory_bytes: self.limits.memory_bytes,
            job,
        })
        .map_err(|error| worker(error.to_string()))?;
        self.send(&message)?;
        Ok(id)
    }

    /// The next answer of any job; `None` where there is none within the time.
    ///
    /// # Errors
    /// [`BridgeError::Worker`] where the child is gone or answers nonsense.
    pub fn next(&mut self, patience: Duration) -> Result<Option<(u64, Answer)>, BridgeError> {
        let line = match self.output.recv_timeout(patience) {
            Ok(line) => line.map_err(|error| worker(error.to_string()))?,
            Err(RecvTimeoutError::Timeout) => return Ok(None),
            Err(RecvTimeoutError::Disconnected) => {
                let status = self.child.wait().map(|status| status.to_string());
                return Err(worker(format!("it ended: {}", status.unwrap_or_default())));
            }
        };
        let line: Line = serde_json::from_str(&line)
            .map_err(|error| worker(format!("it answered `{line}`: {error}")))?;
        let account = Account {
            seconds: line.seconds.unwrap_or_default(),
            peak_bytes: line.peak_bytes,
            printed: line.printed,
        };
        let answer = match (line.part, line.done, line.error, line.ended) {
            (Some(part), ..) => Answer::Part(part),
            (_, Some(done), ..) => Answer::Done(done, account),
            (_, _, Some(exception), _) => Answer::Raised(exception, account),
            (_, _, _, ended) => Answer::Ended {
                how: ended.unwrap_or_default(),
                said: line.said,
                account,
            },
        };
        Ok(Some((line.id, answer)))
    }

    fn send(&mut self, message: &Value) -> Result<(), BridgeError> {
        let mut text = message.to_string();
        text.push('\n');
        self.input
            .write_all(text.as_bytes())
            .and_then(|()| self.input.flush())
            .map_err(|error| worker(format!("it takes no jobs: {error}")))
    }
}

impl Drop for CheckServer {
    fn drop(&mut self) {
        // Its jobs end with it: each asked the kernel for that when it was forked.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn worker(problem: String) -> BridgeError {
    BridgeError::Worker { problem }
}
