//! The comparing side: starts the process of an arm and asks it.

use std::io::{BufRead as _, BufReader, ErrorKind};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use kernel_model::ModelError;
use kernel_spec::protocol::Event;
use tch::Tensor;
use tempfile::TempDir;

use super::super::Run;
use super::super::side::{About, Compiles, Outputs, Side};
use super::messages::{Answer, Question, Which, read, send, write};
use crate::failure::RuntimeError;
use crate::interface::interrupted;

/// How often a wait for an answer looks whether the user wants a stop.
const LOOK: Duration = Duration::from_millis(100);
/// How long an answer may still take once the user wants a stop.
const PATIENCE: Duration = Duration::from_millis(500);
/// How long a process whose connection is closed may take to end.
const GRACE: Duration = Duration::from_secs(2);

/// An arm in a process of its own. Dropped, it ends the process.
pub(super) struct ArmProcess<'a> {
    /// The arm's name, for errors.
    name: String,
    child: Child,
    answers: BufReader<UnixStream>,
    /// Where tensors go; readable for this user only.
    folder: TempDir,
    about: About,
    run: &'a Run<'a>,
}

impl<'a> ArmProcess<'a> {
    /// Starts the process and has it load the arm.
    pub(super) fn start(
        run: &'a Run<'_>,
        program: &Path,
        which: Which,
    ) -> Result<Self, RuntimeError> {
        let name = which.name(run.request).to_owned();
        let failed = |source| RuntimeError::ArmProcess {
            arm: name.clone(),
            problem: "cannot be started",
            source,
        };
        let (ours, theirs) = UnixStream::pair().map_err(failed)?;
        ours.set_read_timeout(Some(LOOK)).map_err(failed)?;
        let folder = TempDir::with_prefix("kernel-cli-arm-").map_err(failed)?;
        let errors = std::io::stderr()
            .as_fd()
            .try_clone_to_owned()
            .map_err(failed)?;
        let child = Command::new(program)
            .args(["bench", "arm"])
            // The connection: it closes when this process ends, however that happens.
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            // What a kernel prints must not get into what the command prints.
            .stdout(Stdio::from(errors))
            // Ctrl-C on the terminal is for this process, which keeps what was measured.
            .process_group(0)
            .spawn()
            .map_err(failed)?;
        let mut process = ArmProcess {
            name,
            child,
            answers: BufReader::new(ours),
            folder,
            about: About::unknown(),
            run,
        };
        let question = Question::Be {
            request: Box::new(run.request.clone()),
            which,
        };
        match process.ask(&question)? {
            Answer::Is { about } => process.about = *about,
            _ => return Err(OUT_OF_TURN),
        }
        Ok(process)
    }

    /// Asks and waits for the answer.
    fn ask(&mut self, question: &Question) -> Result<Answer, RuntimeError> {
        send(self.answers.get_ref(), question).map_err(|error| self.ended(error))?;
        loop {
            match self.next()? {
                Answer::Meanwhile { event } => {
                    let said_before = match &event {
                        Event::Note { message, .. } => {
                            !self.run.told.borrow_mut().insert(message.clone())
                        }
                        _ => false,
                    };
                    if !said_before {
                        self.run.events.send(&event);
                    }
                }
                Answer::Failed { failure } => {
                    return Err(RuntimeError::Arm {
                        arm: self.name.clone(),
                        failure: Box::new(failure),
                    });
                }
                answer => return Ok(answer),
            }
        }
    }

    fn next(&mut self) -> Result<Answer, RuntimeError> {
        let mut line = Vec::new();
        let mut stopped = None;
        loop {
            // What came before a pause stays in `line`.
            match self.answers.read_until(b'\n', &mut line) {
                Ok(_) if line.ends_with(b"\n") => {
                    return serde_json::from_slice(&line).map_err(|_| OUT_OF_TURN);
                }
                Ok(_) => return Err(self.ended(ErrorKind::UnexpectedEof.into())),
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                Err(error) => return Err(self.ended(error)),
            }
            // A call that is nearly done is let end, so that its process can still be asked.
            if interrupted().load(Ordering::Relaxed)
                && stopped.get_or_insert_with(Instant::now).elapsed() > PATIENCE
            {
                return Err(ModelError::Cancelled.into());
            }
        }
    }

    /// The connection is closed: what the process says of its end is better than what the socket says.
    fn ended(&mut self, source: std::io::Error) -> RuntimeError {
        match wait(&mut self.child, GRACE) {
            Some(status) => RuntimeError::ArmEnded {
                arm: self.name.clone(),
                status: status.to_string(),
            },
            None => RuntimeError::ArmProcess {
                arm: self.name.clone(),
                problem: "cannot be asked",
                source,
            },
        }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn done(&mut self, question: &Question) -> Result<(), RuntimeError> {
        match self.ask(question)? {
            Answer::Done => Ok(()),
            _ => Err(OUT_OF_TURN),
        }
    }

    fn took(&mut self, question: &Question) -> Result<f64, RuntimeError> {
        match self.ask(question)? {
            Answer::Took { seconds } => Ok(seconds),
            _ => Err(OUT_OF_TURN),
        }
    }
}

const OUT_OF_TURN: RuntimeError = RuntimeError::OutOfTurn("the process of an arm gave no answer");

impl Side for ArmProcess<'_> {
    fn about(&self) -> &About {
        &self.about
    }

    fn shared_inputs(&mut self) -> Result<Vec<Tensor>, RuntimeError> {
        let file = self.file("inputs");
        self.done(&Question::SharedInputs { file: file.clone() })?;
        read(&file)
    }

    fn take_inputs(&mut self, inputs: &[Tensor]) -> Result<(), RuntimeError> {
        let file = self.file("inputs");
        write(inputs, &file)?;
        self.done(&Question::TakeInputs { file })
    }

    fn outputs(&mut self, workload: usize, seed: u64) -> Result<Outputs, RuntimeError> {
        let file = self.file("outputs");
        let seconds = self.took(&Question::Outputs {
            workload,
            seed,
            file: file.clone(),
        })?;
        Ok(Outputs {
            tensors: read(&file)?,
            seconds,
        })
    }

    fn sample(&mut self, calls: usize) -> Result<f64, RuntimeError> {
        self.took(&Question::Sample { calls })
    }

    fn compiles(&mut self) -> Result<Compiles, RuntimeError> {
        match self.ask(&Question::Compiles)? {
            Answer::Compiles { compiles } => Ok(compiles),
            _ => Err(OUT_OF_TURN),
        }
    }
}

impl Drop for ArmProcess<'_> {
    fn drop(&mut self) {
        // A process that sees its connection closed ends by itself.
        let _ = self.answers.get_ref().shutdown(std::net::Shutdown::Both);
        if wait(&mut self.child, GRACE).is_none() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Waits for a process to end, for so long.
fn wait(child: &mut Child, limit: Duration) -> Option<std::process::ExitStatus> {
    let started = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if started.elapsed() < limit => {
                std::thread::sleep(Duration::from_millis(5));
            }
            _ => return None,
        }
    }
}
