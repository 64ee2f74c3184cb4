//! `bench arm`: the process of one arm of `bench ab --apart`. Not for people: standard input is a socket of
//! the process that compares.

use std::process::ExitCode;

use kernel_spec::protocol::Request;

use crate::failure::Failure;
use crate::runtime::Runtime;

pub(crate) fn run() -> Result<ExitCode, Failure> {
    // What there is to tell goes through the socket.
    Runtime::open()?.request(&Request::BenchmarkArm, &mut |_| {})?;
    Ok(ExitCode::SUCCESS)
}
