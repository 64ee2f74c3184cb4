//! Runs the jobs of a check, several at a time, and hands each answer to whoever asked.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::Ordering;
use std::time::Duration;

use kernel_bridge::BridgeError;
use kernel_bridge::check::{Answer, CheckServer, Job};

use crate::Events;
use crate::interface::interrupted;

/// How often a waiting check looks whether the user wants it to stop.
const PATIENCE: Duration = Duration::from_millis(100);

/// What jobs are about, and what happens with their answers.
pub(crate) trait Handler {
    /// Names a job.
    type Key: Clone;

    /// A last look at a job before it runs: an earlier answer may have changed what is worth asking.
    fn prepare(&mut self, _key: &Self::Key, _job: &mut Job) {}

    /// Takes an answer; jobs that it returns run next.
    fn answer(&mut self, key: &Self::Key, answer: Answer) -> Vec<(Self::Key, Job)>;
}

/// Runs all jobs to their end, at most `at_a_time` of them beside each other.
///
/// # Errors
/// [`BridgeError::Interrupted`] where the user wants a stop, [`BridgeError::Worker`].
pub(crate) fn run<H: Handler>(
    server: &mut CheckServer,
    jobs: Vec<(H::Key, Job)>,
    at_a_time: usize,
    handler: &mut H,
    events: &Events,
    stage: &str,
) -> Result<(), BridgeError> {
    let mut total = jobs.len() as u64;
    let mut done = 0;
    let mut waiting: VecDeque<(H::Key, Job)> = jobs.into();
    let mut running: HashMap<u64, H::Key> = HashMap::new();
    while !waiting.is_empty() || !running.is_empty() {
        if interrupted().load(Ordering::Relaxed) {
            return Err(BridgeError::Interrupted);
        }
        while running.len() < at_a_time.max(1)
            && let Some((key, mut job)) = waiting.pop_front()
        {
            handler.prepare(&key, &mut job);
            running.insert(server.submit(&job)?, key);
        }
        let Some((id, answer)) = server.next(PATIENCE)? else {
            continue;
        };
        let last = !matches!(answer, Answer::Part(_));
        let Some(key) = running.get(&id).cloned() else {
            continue;
        };
        if last {
            running.remove(&id);
            done += 1;
        }
        for more in handler.answer(&key, answer).into_iter().rev() {
            total += 1;
            waiting.push_front(more);
        }
        events.progress(stage, done, total);
    }
    Ok(())
}
