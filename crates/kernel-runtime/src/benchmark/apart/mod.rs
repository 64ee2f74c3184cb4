//! Arms that cannot share a process: each is loaded in one of its own, asked over a socket.
//!
//! Two kernels may want one Python module, one flag of XLA or one pool of threads in different ways. The
//! process that compares starts `kernel-cli bench arm` twice and sends [`messages::Question`]s, one at
//! a time, so that only one arm works at any moment. Times are taken in the arm's process, so the
//! socket is not part of them.

mod messages;
mod process;
mod serve;

use std::cell::RefCell;
use std::path::Path;

use self::messages::Which;
use self::process::ArmProcess;
pub(super) use self::serve::serve;
use super::Run;
use super::side::{Side, Sides};
use crate::failure::RuntimeError;

/// Starts a process for each arm, with the program whose `bench arm` is one.
pub(super) fn sides<'a>(run: &'a Run<'_>, program: &Path) -> Result<Sides<'a>, RuntimeError> {
    Ok(Sides {
        a: boxed(ArmProcess::start(run, program, Which::A)?),
        b: boxed(ArmProcess::start(run, program, Which::B)?),
        apart: true,
    })
}

fn boxed<'a>(process: ArmProcess<'a>) -> RefCell<Box<dyn Side + 'a>> {
    RefCell::new(Box::new(process))
}
