//! Arms that cannot share a process: each is loaded in one of its own, asked over a socket.
//!
//! Two kernels may want one Python module, one flag of XLA or one pool of threads in different ways. The
//! process that compares starts `kernel-cli bench arm` for A, for B, and for A once more as the control, and
//! sends [`messages::Question`]s, one at a time, so that only one works at any moment. Times are taken in
//! the arm's process, so the socket is not part of them.

mod messages;
mod process;
mod serve;

use std::cell::RefCell;
use std::path::Path;

use self::messages::Which;
use self::process::ArmProcess;
pub(super) use self::serve::serve;
use super::Run;
use super::side::{SharedSide, Sides};
use crate::failure::RuntimeError;

/// Starts a process for each arm and one for the control, with the program whose `bench arm` is one.
pub(super) fn sides<'a>(run: &'a Run<'_>, program: &Path) -> Result<Sides<'a>, RuntimeError> {
    let start = |which| -> Result<SharedSide<'a>, RuntimeError> {
        Ok(RefCell::new(Box::new(ArmProcess::start(
            run, program, which,
        )?)))
    };
    Ok(Sides {
        a: start(Which::A)?,
        b: start(Which::B)?,
        control: Some(start(Which::A)?),
    })
}
