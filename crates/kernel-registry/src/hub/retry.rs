//! When a failed request is sent again.

use std::time::Duration;

use crate::error::Error;
use crate::events::{Event, Events};

/// How often, and after what time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RetryPolicy {
    /// Attempts in all.
    pub(crate) attempts: u32,
    /// Pause after the first failure; it doubles each time.
    pub(crate) delay: Duration,
    /// The longest pause. A server that asks for more is not waited for.
    pub(crate) longest: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            attempts: 5,
            delay: Duration::from_millis(500),
            longest: Duration::from_secs(60),
        }
    }
}

/// A failed attempt.
pub(crate) enum Failed {
    /// It would fail again.
    Fatal(Error),
    /// It may pass; the server may have said when.
    Again {
        error: Error,
        after: Option<Duration>,
    },
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self::Fatal(error)
    }
}

/// Calls `attempt` until it succeeds, fails for good, or the attempts are used up.
pub(crate) async fn retrying<T, F>(
    policy: &RetryPolicy,
    events: &Events,
    mut attempt: impl FnMut() -> F,
) -> Result<T, Error>
where
    F: Future<Output = Result<T, Failed>>,
{
    let mut pause = policy.delay;
    let mut sent = 1;
    loop {
        let (error, after) = match attempt().await {
            Ok(value) => return Ok(value),
            Err(Failed::Fatal(error)) => return Err(counted(error, sent)),
            Err(Failed::Again { error, after }) => (error, after),
        };
        let delay = after.unwrap_or(pause);
        if sent >= policy.attempts || delay > policy.longest {
            return Err(counted(error, sent));
        }
        events.send(Event::Retrying {
            reason: error.to_string(),
            delay,
        });
        tokio::time::sleep(delay).await;
        pause = (pause * 2).min(policy.longest);
        sent += 1;
    }
}

/// Notes in an error how often the request was sent.
fn counted(mut error: Error, attempts: u32) -> Error {
    if let Error::Http(context)
    | Error::Unreachable { context, .. }
    | Error::BadAnswer { context, .. } = &mut error
    {
        context.attempts = attempts;
    }
    error
}
