//! Ctrl-C: the program ends with 130, within two seconds.
//!
//! Files get their names by a rename when they are complete, so that ending at once leaves nothing
//! half-written. A command that has something to stop first says so with [`before_exit`].

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::failure::Failure;
use crate::output::Output;

/// The exit code of a program that was interrupted: 128 and the signal's number.
pub(crate) const EXIT_CODE: u8 = 130;
/// How long a command may take to stop by itself.
const GRACE: Duration = Duration::from_millis(1500);

type Action = Box<dyn Fn() + Send>;

static ACTION: Mutex<Option<Action>> = Mutex::new(None);

/// Catches the signal. Called once.
pub(crate) fn install(output: &Output) -> Result<(), Failure> {
    let bars = output.bars();
    ctrlc::set_handler(move || {
        let action = ACTION.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(action) = action {
            action();
            std::thread::sleep(GRACE);
        }
        // A bar that stays would be mixed with the shell's prompt.
        let _ = bars.clear();
        std::process::exit(i32::from(EXIT_CODE));
    })
    .map_err(|error| Failure::new("signal", format!("cannot catch Ctrl-C: {error}")))
}

/// What is to happen at the first signal. The command has a second and a half to end by itself, for
/// which [`Failure::interrupted`] is there; then the program ends anyway.
pub(crate) fn before_exit(action: impl Fn() + Send + 'static) {
    *ACTION.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(action));
}
