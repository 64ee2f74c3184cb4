//! The process of an arm: answers until its connection closes.

use std::io::{BufRead as _, BufReader};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use nix::sys::signal::{Signal, raise};

use super::super::side::{Outputs, Side};
use super::super::task::Task;
use super::super::{Run, check};
use super::messages::{Answer, Question, read, send, write};
use crate::Events;
use crate::failure::RuntimeError;
use crate::generate::set_threads;

/// How long the work of an arm that nobody asks any more may go on.
const GRACE: Duration = Duration::from_secs(1);

/// Seconds from which a call is so long that what the caches held before it does not count.
const LONG: f64 = 10e-3;

/// Answers the questions that come on standard input.
pub(in super::super) fn serve() -> Result<(), RuntimeError> {
    let refused = |source| RuntimeError::ArmProcess {
        arm: "of standard input".to_owned(),
        problem: "is no process of `bench ab --apart`",
        source,
    };
    let connection: OwnedFd = std::io::stdin()
        .as_fd()
        .try_clone_to_owned()
        .map_err(refused)?;
    let connection = UnixStream::from(connection);
    // A socket has a peer; a terminal, a pipe or a file has not.
    connection.peer_addr().map_err(refused)?;
    let questions = questions(connection.try_clone().map_err(refused)?);
    let Ok(Question::Be { request, which }) = questions.recv() else {
        return Err(RuntimeError::OutOfTurn("no arm was asked for"));
    };
    let told = connection.try_clone().map_err(refused)?;
    let events = Events::new(move |event| {
        // When nobody listens any more, the process is about to end.
        let _ = send(
            &told,
            &Answer::Meanwhile {
                event: event.clone(),
            },
        );
    });
    let answer = |answer: &Answer| send(&connection, answer).map_err(refused);
    let prepared = check(&request)
        .and_then(|()| set_threads(request.threads))
        .and_then(|()| Task::of(&request.workload, request.dtype.as_deref()));
    let task = match prepared {
        Ok(task) => task,
        Err(error) => return answer(&failed(&error)),
    };
    let run = Run::new(&request, &events);
    let mut side = match task.side(&run, which.name(&request)) {
        Ok(side) => side,
        Err(error) => return answer(&failed(&error)),
    };
    answer(&Answer::Is {
        about: Box::new(side.about().clone()),
    })?;
    let mut hot_after_a_call = !request.flush_caches;
    for question in questions {
        let outcome = answered(&mut *side, &question, &mut hot_after_a_call);
        answer(&outcome.unwrap_or_else(|error| failed(&error)))?;
    }
    Ok(())
}

/// The questions, read by a thread of their own: when the connection closes, whoever asked is gone, and a
/// call that hangs must not stay.
fn questions(connection: UnixStream) -> Receiver<Question> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(connection).lines() {
            let question = line.ok().and_then(|line| serde_json::from_str(&line).ok());
            if question.is_none_or(|question| sender.send(question).is_err()) {
                break;
            }
        }
        drop(sender);
        std::thread::sleep(GRACE);
        // Ending by `exit` would run the destructors of libraries whose code still runs.
        let _ = raise(Signal::SIGKILL);
    });
    receiver
}

/// Other processes ran since the last sample, so where caches are to be hot, a call makes them so first.
fn answered(
    side: &mut dyn Side,
    question: &Question,
    hot_after_a_call: &mut bool,
) -> Result<Answer, RuntimeError> {
    Ok(match question {
        Question::Be { .. } => return Err(RuntimeError::OutOfTurn("this process is an arm")),
        Question::SharedInputs { file } => {
            write(&side.shared_inputs()?, file)?;
            Answer::Done
        }
        Question::TakeInputs { file } => {
            side.take_inputs(&read(file)?)?;
            Answer::Done
        }
        Question::Outputs {
            workload,
            seed,
            file,
        } => {
            let Outputs { tensors, seconds } = side.outputs(*workload, *seed)?;
            write(&tensors, file)?;
            Answer::Took { seconds }
        }
        Question::Sample { calls } => {
            if *hot_after_a_call {
                side.sample(1)?;
            }
            let seconds = side.sample(*calls)?;
            *hot_after_a_call &= seconds < LONG * (*calls as f64);
            Answer::Took { seconds }
        }
        Question::Compiles => Answer::Compiles {
            compiles: side.compiles()?,
        },
    })
}

fn failed(error: &RuntimeError) -> Answer {
    Answer::Failed {
        failure: error.to_failure(),
    }
}
