//! Which rank failed, or does not answer: decided from what was heard and when, without a clock of its
//! own.

use std::time::{Duration, Instant};

use kernel_spec::protocol::{Event, Failure};
use serde_json::Value;

/// How long after a failure others may still tell why: a rank whose neighbour dies sees only that.
const AFTERMATH: Duration = Duration::from_millis(400);
/// How long a failure that only says that another rank is gone waits for that other rank's own.
const SECONDARY: Duration = Duration::from_secs(3);
/// How long ranks may take to come up.
const START: Duration = Duration::from_secs(180);

/// What is known of a rank.
#[derive(Debug, Clone)]
struct Rank {
    process: Option<i32>,
    /// When anything was heard of it.
    heard: Instant,
    /// Whether it has told how far it is: before that, it loads libraries.
    pulses: bool,
    /// Operations begun and ended, and when that changed.
    progress: (u64, u64),
    moved: Instant,
    /// How it ended, where it said so.
    outcome: Option<Result<(), Failure>>,
    /// When it hung up.
    gone: Option<Instant>,
}

/// All ranks of a run.
#[derive(Debug)]
pub(crate) struct Watch {
    ranks: Vec<Rank>,
    limit: Duration,
    started: Instant,
    response: Option<Value>,
    /// The first failure, and when.
    failed: Option<(usize, Instant)>,
    /// When the first rank was done.
    done: Option<Instant>,
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Verdict {
    /// Wait on.
    GoOn,
    /// All ranks are done: the first rank's answer.
    Done(Value),
    /// A rank failed and said why.
    Failed(Failure),
    /// A rank ended without a word.
    Lost {
        /// The rank.
        rank: usize,
        /// Its process, if it ever said.
        process: Option<i32>,
    },
    /// A rank does not answer, or does not come on.
    Hung(String),
}

impl Watch {
    pub(crate) fn new(ranks: usize, limit: Duration, now: Instant) -> Self {
        let rank = Rank {
            process: None,
            heard: now,
            pulses: false,
            progress: (0, 0),
            moved: now,
            outcome: None,
            gone: None,
        };
        Self {
            ranks: vec![rank; ranks],
            limit,
            started: now,
            response: None,
            failed: None,
            done: None,
        }
    }

    /// A rank has come up.
    pub(crate) fn hello(&mut self, rank: usize, process: i32, now: Instant) {
        if let Some(rank) = self.ranks.get_mut(rank) {
            rank.process = Some(process);
            rank.heard = now;
        }
    }

    /// A rank has said something.
    pub(crate) fn event(&mut self, index: usize, event: &Event, now: Instant) {
        let Some(rank) = self.ranks.get_mut(index) else {
            return;
        };
        rank.heard = now;
        match event {
            Event::Pulse { begun, ended } => {
                if rank.progress != (*begun, *ended) {
                    rank.moved = now;
                }
                rank.pulses = true;
                rank.progress = (*begun, *ended);
            }
            Event::Done { response } => {
                rank.outcome = Some(Ok(()));
                if index == 0 {
                    self.response = Some(response.clone());
                    self.done = Some(now);
                }
            }
            Event::Failed(failure) => {
                rank.outcome = Some(Err(failure.clone()));
                self.failed.get_or_insert((index, now));
            }
            _ => {}
        }
    }

    /// A rank has hung up.
    pub(crate) fn gone(&mut self, index: usize, now: Instant) {
        if let Some(rank) = self.ranks.get_mut(index) {
            rank.gone.get_or_insert(now);
            if rank.outcome.is_none() {
                self.failed.get_or_insert((index, now));
            }
        }
    }

    /// Whether every rank has come up.
    pub(crate) fn all_up(&self) -> bool {
        self.ranks.iter().all(|rank| rank.process.is_some())
    }

    /// What is to be done now.
    pub(crate) fn verdict(&self, now: Instant) -> Verdict {
        if let Some((_, since)) = self.failed {
            let age = now.saturating_duration_since(since);
            return self.cause(age);
        }
        if let (Some(response), Some(done)) = (&self.response, self.done) {
            let all = self.ranks.iter().all(|rank| rank.outcome.is_some());
            // The answer is there; a rank that lags behind in going is ended.
            if all || now.saturating_duration_since(done) > SECONDARY {
                return Verdict::Done(response.clone());
            }
            return Verdict::GoOn;
        }
        self.silent(now)
    }

    /// The failure that came before the others, once that is clear.
    fn cause(&self, age: Duration) -> Verdict {
        if age < AFTERMATH {
            return Verdict::GoOn;
        }
        // A rank that vanished explains those that lost it; so does a failure of another kind. Of
        // several the first counts, since the launcher ends the others.
        let lost = self.ranks.iter().enumerate().filter_map(|(index, rank)| {
            let gone = rank.gone.filter(|_| rank.outcome.is_none())?;
            Some((gone, index, rank.process))
        });
        if let Some((_, rank, process)) = lost.min_by_key(|(gone, ..)| *gone) {
            return Verdict::Lost { rank, process };
        }
        let failures: Vec<(usize, &Failure)> = self
            .ranks
            .iter()
            .enumerate()
            .filter_map(|(index, rank)| match &rank.outcome {
                Some(Err(failure)) => Some((index, failure)),
                _ => None,
            })
            .collect();
        let own = |failure: &Failure| failure.kind != "collective";
        if let Some((index, failure)) = failures.iter().find(|(_, failure)| own(failure)) {
            let alike = |(_, other): &&(usize, &Failure)| other.message == failure.message;
            let everywhere = failures.iter().filter(alike).count() == self.ranks.len();
            return Verdict::Failed(named(*index, failure, everywhere));
        }
        if age < SECONDARY {
            return Verdict::GoOn;
        }
        match failures.first() {
            Some((index, failure)) => Verdict::Failed(named(*index, failure, true)),
            None => Verdict::GoOn,
        }
    }

    /// A rank from which nothing comes, or for which others wait.
    fn silent(&self, now: Instant) -> Verdict {
        let age = |since: Instant| now.saturating_duration_since(since);
        for (index, rank) in self.ranks.iter().enumerate() {
            let limit = if rank.pulses {
                self.limit
            } else {
                self.limit.max(START)
            };
            if rank.process.is_none() && age(self.started) > limit {
                return Verdict::Hung(format!(
                    "rank {index} has not started within {} s",
                    limit.as_secs()
                ));
            }
            if rank.process.is_some() && rank.outcome.is_none() && age(rank.heard) > limit {
                return Verdict::Hung(format!(
                    "rank {index} has not been heard of for {} s",
                    limit.as_secs()
                ));
            }
        }
        let furthest = self.ranks.iter().map(|rank| rank.progress.0).max();
        let waits = |rank: &Rank| {
            Some(rank.progress.0) == furthest
                && rank.progress.0 > rank.progress.1
                && age(rank.moved) > self.limit
        };
        if !self.ranks.iter().any(waits) {
            return Verdict::GoOn;
        }
        let behind = self
            .ranks
            .iter()
            .position(|rank| Some(rank.progress.0) < furthest);
        Verdict::Hung(match behind {
            Some(rank) => format!(
                "rank {rank} has not come to an operation of all ranks at which others have waited \
                 for {} s",
                self.limit.as_secs()
            ),
            None => format!(
                "the ranks have been at the same operation for {} s",
                self.limit.as_secs()
            ),
        })
    }
}

/// The failure, with the rank where not all had it.
fn named(rank: usize, failure: &Failure, everywhere: bool) -> Failure {
    let mut failure = failure.clone();
    if !everywhere && rank != 0 {
        failure.message = format!("rank {rank}: {}", failure.message);
    }
    failure
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    fn up(ranks: usize, now: Instant) -> Watch {
        let mut watch = Watch::new(ranks, LIMIT, now);
        for rank in 0..ranks {
            watch.hello(rank, 100 + rank as i32, now);
            watch.event(rank, &Event::Pulse { begun: 0, ended: 0 }, now);
        }
        watch
    }

    fn failed(kind: &str, message: &str) -> Event {
        Event::Failed(Failure {
            kind: kind.into(),
            message: message.into(),
            causes: Vec::new(),
            hint: None,
            detail: None,
        })
    }

    #[test]
    fn a_rank_that_vanishes_explains_those_that_lost_it() {
        let now = Instant::now();
        let mut watch = up(3, now);
        watch.event(0, &failed("collective", "connection closed"), now);
        watch.gone(1, now);
        watch.event(2, &failed("collective", "connection closed"), now);
        assert_eq!(watch.verdict(now), Verdict::GoOn);
        let lost = Verdict::Lost {
            rank: 1,
            process: Some(101),
        };
        assert_eq!(watch.verdict(now + AFTERMATH), lost);
    }

    #[test]
    fn of_ranks_that_vanish_the_first_is_named_and_not_those_that_the_launcher_ended() {
        let now = Instant::now();
        let mut watch = up(3, now);
        watch.gone(2, now);
        watch.gone(0, now + Duration::from_millis(10));
        watch.gone(1, now + Duration::from_millis(10));
        let lost = Verdict::Lost {
            rank: 2,
            process: Some(102),
        };
        assert_eq!(watch.verdict(now + AFTERMATH), lost);
    }

    #[test]
    fn a_reason_goes_before_what_follows_from_it() {
        let now = Instant::now();
        let mut watch = up(2, now);
        watch.event(0, &failed("collective", "connection closed"), now);
        watch.event(1, &failed("torch", "out of memory"), now);
        let Verdict::Failed(failure) = watch.verdict(now + AFTERMATH) else {
            panic!("no failure");
        };
        assert_eq!(failure.message, "rank 1: out of memory");
    }

    #[test]
    fn what_all_ranks_say_is_said_once() {
        let now = Instant::now();
        let mut watch = up(2, now);
        for rank in 0..2 {
            watch.event(rank, &failed("missing_file", "no config"), now);
        }
        let Verdict::Failed(failure) = watch.verdict(now + AFTERMATH) else {
            panic!("no failure");
        };
        assert_eq!(failure.message, "no config");
    }

    #[test]
    fn the_answer_is_the_first_ranks() {
        let now = Instant::now();
        let mut watch = up(2, now);
        let done = |response| Event::Done { response };
        watch.event(0, &done(json!({"tokens": [1]})), now);
        assert_eq!(watch.verdict(now), Verdict::GoOn);
        watch.event(1, &done(Value::Null), now);
        assert_eq!(watch.verdict(now), Verdict::Done(json!({"tokens": [1]})));
    }

    #[test]
    fn a_rank_for_which_others_wait_is_named() {
        let now = Instant::now();
        let mut watch = up(3, now);
        let later = now + LIMIT + Duration::from_secs(1);
        for (rank, begun, ended) in [(0, 8, 7), (1, 7, 7), (2, 8, 7)] {
            watch.event(rank, &Event::Pulse { begun, ended }, now);
            watch.event(rank, &Event::Pulse { begun, ended }, later);
        }
        let Verdict::Hung(message) = watch.verdict(later) else {
            panic!("no verdict");
        };
        assert!(message.contains("rank 1"), "{message}");
    }

    #[test]
    fn a_rank_that_is_not_heard_of_is_named() {
        let now = Instant::now();
        let mut watch = up(2, now);
        let later = now + LIMIT + Duration::from_secs(1);
        watch.event(0, &Event::Pulse { begun: 0, ended: 0 }, later);
        let Verdict::Hung(message) = watch.verdict(later) else {
            panic!("no verdict");
        };
        assert!(message.contains("rank 1"), "{message}");
    }
}
