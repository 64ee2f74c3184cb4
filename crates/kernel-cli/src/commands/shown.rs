//! Requests to the runtime library whose progress and notes are shown while they run.

use indicatif::ProgressBar;
use kernel_spec::protocol::{Event, Request};
use serde_json::Value;

use crate::output::Output;
use crate::runtime::{Runtime, RuntimeError};

/// Makes the request and returns its response; `progress` words how much of a stage is done, for
/// stages that know how much there is.
pub(super) fn request(
    runtime: &Runtime,
    request: &Request,
    output: &Output,
    progress: impl Fn(u64, u64) -> String + Sync,
) -> Result<Value, RuntimeError> {
    let mut bar: Option<ProgressBar> = None;
    let answer = runtime.request(request, &mut |event| match event {
        Event::Progress { stage, done, total } => {
            let bar = bar.get_or_insert_with(|| output.step_bar("", 0));
            bar.set_message(match total {
                0 => stage,
                _ => format!("{stage}{}", progress(done, total)),
            });
        }
        Event::Note { level, message } if level == "warning" => output.warning(message),
        Event::Note { message, .. } => output.note(message),
        _ => {}
    });
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    answer
}
