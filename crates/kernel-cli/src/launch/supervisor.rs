//! Starts the ranks through torchrun, hears them, and ends them: all of them, whatever happens.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use kernel_spec::protocol::{Event, Failure as Told};
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use serde_json::Value;

use super::environment::{self, Variables};
use super::link::{CANCEL, FromRank, VARIABLE};
use super::watch::{Verdict, Watch};
use crate::failure::Failure;
use crate::interrupt;

/// How often the ranks are looked at when none says anything.
const LOOK: Duration = Duration::from_millis(50);
/// How long the ranks may take to end after Ctrl-C; the program itself has a little more.
const GRACE: Duration = Duration::from_millis(1200);
/// How long torchrun may take to write how a rank ended.
const POST_MORTEM: Duration = Duration::from_secs(3);

/// How ranks are started.
#[derive(Debug)]
pub(crate) struct Launch {
    /// Their number.
    pub(crate) ranks: usize,
    /// How long a rank may keep others waiting.
    pub(crate) limit: Duration,
    /// The environment's interpreter, which has torchrun.
    pub(crate) python: PathBuf,
    /// What is set for them.
    pub(crate) variables: Variables,
}

/// Runs this program's own arguments on several ranks. `on_event` gets what the first rank says, and
/// warnings that only others have. Returns the first rank's response.
pub(crate) fn run(launch: &Launch, on_event: &mut dyn FnMut(Event)) -> Result<Value, Failure> {
    let broken = |what: &str, error: &dyn std::fmt::Display| {
        Failure::new("launch", format!("cannot {what}: {error}"))
    };
    let folder = tempfile::Builder::new()
        .prefix("kernel-cli-")
        .tempdir()
        .map_err(|error| broken("make a folder for the ranks", &error))?;
    let socket = folder.path().join("ranks");
    let listener = UnixListener::bind(&socket)
        .map_err(|error| broken("make a socket for the ranks", &error))?;
    let log = folder.path().join("log");
    let (sender, receiver) = mpsc::channel();
    let group = Arc::new(Processes::default());
    let torchrun = start(launch, &socket, &log)?;
    group.torchrun(&torchrun);
    let mut group = Group {
        processes: group,
        torchrun,
    };
    std::thread::spawn({
        let processes = Arc::clone(&group.processes);
        move || listen(&listener, &sender, &processes)
    });
    interrupt::before_exit({
        let processes = Arc::clone(&group.processes);
        move || {
            processes.cancel();
            let processes = Arc::clone(&processes);
            std::thread::spawn(move || {
                std::thread::sleep(GRACE);
                processes.kill();
            });
        }
    });

    let mut watch = Watch::new(launch.ranks, launch.limit, Instant::now());
    let mut warnings = Warnings::default();
    loop {
        let heard = receiver.recv_timeout(LOOK);
        let now = Instant::now();
        match heard {
            Ok(Heard::Hello { rank, process }) => watch.hello(rank, process, now),
            Ok(Heard::Gone { rank }) => watch.gone(rank, now),
            Ok(Heard::Event { rank, event }) => {
                watch.event(rank, &event, now);
                if let Some(event) = warnings.filter(rank, event) {
                    on_event(event);
                }
                // What was said comes before what it means.
                continue;
            }
            Err(RecvTimeoutError::Timeout) if !watch.all_up() && group.ended() => {
                return Err(not_started(&log));
            }
            Err(_) => {}
        }
        match watch.verdict(now) {
            Verdict::GoOn => {}
            Verdict::Done(response) => {
                warnings.of_others(on_event);
                group.finish();
                return Ok(response);
            }
            Verdict::Failed(told) => return Err(failure(told)),
            Verdict::Hung(message) => {
                return Err(Failure::new("rank-hung", message).with_hint(
                    "the whole group was ended; `--tp-timeout` sets how long a rank may keep others \
                     waiting",
                ));
            }
            Verdict::Lost { rank, process } => return Err(group.post_mortem(rank, process, &log)),
        }
    }
}

fn start(launch: &Launch, socket: &Path, log: &Path) -> Result<Child, Failure> {
    let program = std::env::current_exe()
        .map_err(|error| Failure::new("launch", format!("cannot find this program: {error}")))?;
    let unwritable = |error: &std::io::Error| Failure::io("write", log, error);
    let output = File::create(log).map_err(|error| unwritable(&error))?;
    let errors = output.try_clone().map_err(|error| unwritable(&error))?;
    Command::new(&launch.python)
        .args(environment::torchrun(
            launch.ranks,
            &program,
            std::env::args_os().skip(1),
        ))
        .envs(launch.variables.iter().map(|(name, value)| (name, value)))
        .env(VARIABLE, socket)
        // Ctrl-C in a terminal reaches this process only, which then asks the ranks to end.
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(output)
        .stderr(errors)
        .spawn()
        .map_err(|error| Failure::io("start", &launch.python, &error))
}

/// What comes from the ranks.
enum Heard {
    Hello { rank: usize, process: i32 },
    Event { rank: usize, event: Event },
    Gone { rank: usize },
}

/// Takes the calls of ranks, a thread each, until the process ends.
fn listen(listener: &UnixListener, sender: &Sender<Heard>, processes: &Arc<Processes>) {
    for stream in listener.incoming().flatten() {
        let sender = sender.clone();
        let processes = Arc::clone(processes);
        std::thread::spawn(move || hear(stream, &sender, &processes));
    }
}

fn hear(stream: UnixStream, sender: &Sender<Heard>, processes: &Processes) {
    let Ok(writer) = stream.try_clone() else {
        return;
    };
    let mut writer = Some(writer);
    let mut speaker = None;
    for line in BufReader::new(stream).lines() {
        let Ok(line) = line else { break };
        let heard = match serde_json::from_str(&line) {
            Ok(FromRank::Hello { rank, process }) => {
                speaker = Some(rank);
                if let Some(writer) = writer.take() {
                    processes.rank(process, writer);
                }
                Heard::Hello { rank, process }
            }
            Ok(FromRank::Event(event)) => match speaker {
                Some(rank) => Heard::Event { rank, event },
                None => break,
            },
            Err(_) => break,
        };
        if sender.send(heard).is_err() {
            return;
        }
    }
    if let Some(rank) = speaker {
        let _ = sender.send(Heard::Gone { rank });
    }
}

/// The processes of a run, so far as they are known.
#[derive(Debug, Default)]
struct Processes {
    torchrun: AtomicI32,
    cancelled: AtomicBool,
    /// Each with its end of the socket.
    ranks: Mutex<Vec<(i32, UnixStream)>>,
}

impl Processes {
    fn torchrun(&self, child: &Child) {
        let process = i32::try_from(child.id()).unwrap_or(0);
        self.torchrun.store(process, Ordering::Relaxed);
    }

    fn rank(&self, process: i32, mut writer: UnixStream) {
        if self.cancelled.load(Ordering::Relaxed) {
            let _ = writeln!(writer, "{CANCEL}");
        }
        self.ranks
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push((process, writer));
    }

    /// Asks all ranks to end with what they have.
    fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
        for (_, writer) in &mut *self.ranks.lock().unwrap_or_else(PoisonError::into_inner) {
            let _ = writeln!(writer, "{CANCEL}");
        }
    }

    /// Ends all of them. A rank is a session of its own, with whatever it started.
    fn kill(&self) {
        let torchrun = self.torchrun.swap(0, Ordering::Relaxed);
        if torchrun > 0 {
            let _ = killpg(Pid::from_raw(torchrun), Signal::SIGKILL);
        }
        for (process, _) in self
            .ranks
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .drain(..)
        {
            if process > 0 && killpg(Pid::from_raw(process), Signal::SIGKILL).is_err() {
                let _ = kill(Pid::from_raw(process), Signal::SIGKILL);
            }
        }
    }
}

/// The processes of a run; none is left when it is dropped.
struct Group {
    processes: Arc<Processes>,
    torchrun: Child,
}

impl Group {
    fn ended(&mut self) -> bool {
        matches!(self.torchrun.try_wait(), Ok(Some(_)))
    }

    /// Waits for an end that is under way.
    fn wait(&mut self, limit: Duration) -> bool {
        let started = Instant::now();
        while !self.ended() {
            if started.elapsed() > limit {
                return false;
            }
            std::thread::sleep(LOOK);
        }
        true
    }

    /// All is said; the processes only have to go.
    fn finish(&mut self) {
        if self.wait(POST_MORTEM) {
            // Nothing may be signalled any more: other processes may get the numbers.
            self.processes.torchrun.store(0, Ordering::Relaxed);
            self.processes
                .ranks
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .clear();
        }
    }

    /// What became of a rank that ended without a word.
    fn post_mortem(&mut self, rank: usize, process: Option<i32>, log: &Path) -> Failure {
        self.wait(POST_MORTEM);
        let text = fs::read_to_string(log).unwrap_or_default();
        let process = process.unwrap_or(0);
        let end = match exit_code(&text, process) {
            Some(code) if code < 0 => format!("was killed by signal {}", -code),
            Some(code) => format!("ended with exit code {code}"),
            None => "ended".to_owned(),
        };
        let message = format!("rank {rank} (process {process}) {end} before its work was done");
        let mut failure = Failure::new("rank-lost", message);
        if exit_code(&text, process) == Some(-9) {
            failure = failure.with_hint(
                "the system ends processes in this way when memory runs out; see its log",
            );
        }
        failure.detail = Some(text).filter(|text| !text.is_empty());
        failure
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.processes.kill();
        let _ = self.torchrun.wait();
    }
}

/// How torchrun says that a process ended.
fn exit_code(log: &str, process: i32) -> Option<i32> {
    let marker = format!("(pid: {process})");
    let line = log
        .lines()
        .find(|line| line.contains(&marker) && line.contains("exitcode"))?;
    let code = line.split("exitcode").nth(1)?;
    let code: String = code
        .chars()
        .skip_while(|c| !c.is_ascii_digit() && *c != '-')
        .take_while(|c| c.is_ascii_digit() || *c == '-')
        .collect();
    code.parse().ok()
}

/// torchrun ended before the ranks came up.
fn not_started(log: &Path) -> Failure {
    let text = fs::read_to_string(log).unwrap_or_default();
    let last = text.lines().rev().find(|line| !line.trim().is_empty());
    let message = match last {
        Some(line) => format!("torchrun could not start the ranks: {}", line.trim()),
        None => "torchrun could not start the ranks".to_owned(),
    };
    let mut failure = Failure::new("launch", message).with_hint(
        "`kernel-cli doctor` says what the environment lacks; `-v` shows all that torchrun said",
    );
    failure.detail = Some(text).filter(|text| !text.is_empty());
    failure
}

fn failure(told: Told) -> Failure {
    crate::runtime::RuntimeError::Failed(told).into()
}

/// What ranks say is said once.
#[derive(Debug, Default)]
struct Warnings {
    first: Vec<String>,
    others: Vec<(usize, String)>,
}

impl Warnings {
    /// The event, if it is to be shown now.
    fn filter(&mut self, rank: usize, event: Event) -> Option<Event> {
        if let Event::Note { level, message } = &event
            && level == "warning"
        {
            if rank == 0 {
                self.first.push(message.clone());
            } else {
                self.others.push((rank, message.clone()));
            }
        }
        (rank == 0).then_some(event)
    }

    /// Warnings that the first rank did not have.
    fn of_others(&mut self, on_event: &mut dyn FnMut(Event)) {
        for (rank, message) in self.others.drain(..) {
            if !self.first.contains(&message) {
                on_event(Event::Note {
                    level: "warning".to_owned(),
                    message: format!("rank {rank}: {message}"),
                });
                self.first.push(message);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_launchers_log_says_how_a_process_ended() {
        let log = "E1201 api.py:869] failed (exitcode: -9) local_rank: 1 (pid: 4242) of binary: x\n\
                   E1201 api.py:869] failed (exitcode: 1) local_rank: 0 (pid: 4241) of binary: x\n";
        assert_eq!(exit_code(log, 4242), Some(-9));
        assert_eq!(exit_code(log, 4241), Some(1));
        assert_eq!(exit_code(log, 7), None);
    }

    #[test]
    fn a_warning_that_all_ranks_have_is_shown_once() {
        let warning = |message: &str| Event::Note {
            level: "warning".into(),
            message: message.into(),
        };
        let mut warnings = Warnings::default();
        assert!(warnings.filter(0, warning("a")).is_some());
        assert!(warnings.filter(1, warning("a")).is_none());
        assert!(warnings.filter(2, warning("b")).is_none());
        let mut shown = Vec::new();
        warnings.of_others(&mut |event| shown.push(event));
        assert_eq!(shown, [warning("rank 2: b")]);
    }
}
