//! Whatever needs libtorch or Python, as one shared library behind a small versioned C interface.
//!
//! `kernel-cli` must start in milliseconds on machines that have neither, so it does not link
//! them; it opens this library for `generate` and `bench` and says what is missing when it cannot.
//! [`interface`] is the C side, [`generate`] and [`benchmark`] do the work, and
//! [`kernel_spec::protocol`] is the language between the two.

pub mod benchmark;
pub mod check;
pub mod estimate;
pub mod failure;
pub mod generate;
pub mod interface;
pub mod plan;
mod ranks;
mod session;

use std::sync::Arc;

use kernel_spec::protocol::{BenchmarkResponse, Event, Request};

use crate::failure::RuntimeError;

/// Takes the events of a request, one at a time, from any thread.
#[derive(Clone)]
pub struct Events(Arc<dyn Fn(&Event) + Send + Sync>);

impl Events {
    /// Events go to a function.
    pub fn new(sink: impl Fn(&Event) + Send + Sync + 'static) -> Self {
        Self(Arc::new(sink))
    }

    /// Sends an event.
    pub fn send(&self, event: &Event) {
        (self.0)(event);
    }

    fn progress(&self, stage: &str, done: u64, total: u64) {
        self.send(&Event::Progress {
            stage: stage.to_owned(),
            done,
            total,
        });
    }

    fn note(&self, level: &str, message: String) {
        self.send(&Event::Note {
            level: level.to_owned(),
            message,
        });
    }

    fn info(&self, message: String) {
        self.note("info", message);
    }

    fn warning(&self, message: String) {
        self.note("warning", message);
    }
}

/// Does what a request asks and returns the response that [`Event::Done`] carries.
///
/// # Errors
/// Whatever the request's work can fail with; see [`RuntimeError`].
pub fn run(request: Request, events: &Events) -> Result<serde_json::Value, RuntimeError> {
    match request {
        Request::Generate(request) => {
            let response = generate::run(&request, events)?;
            serde_json::to_value(response).map_err(RuntimeError::Response)
        }
        Request::Plan(request) => {
            let plan = plan::run(&request, events)?;
            serde_json::to_value(plan).map_err(RuntimeError::Response)
        }
        Request::Benchmark(request) => {
            let record = benchmark::run(&request, events)?;
            let response = BenchmarkResponse {
                agree: record.correctness.ok,
                record: serde_json::to_value(record).map_err(RuntimeError::Response)?,
            };
            serde_json::to_value(response).map_err(RuntimeError::Response)
        }
        Request::BenchmarkArm => {
            benchmark::serve_arm()?;
            Ok(serde_json::Value::Null)
        }
        Request::Check(request) => {
            let response = check::run(&request, events)?;
            serde_json::to_value(response).map_err(RuntimeError::Response)
        }
        Request::Estimate(request) => {
            let response = estimate::run(&request, events)?;
            serde_json::to_value(response).map_err(RuntimeError::Response)
        }
    }
}
