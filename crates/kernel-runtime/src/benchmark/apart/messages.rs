//! What the process that compares and the process of an arm say to each other: JSON, a line each.
//! Tensors go through files in a folder of the first.

use std::io::Write as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use kernel_spec::protocol::{BenchmarkRequest, Event, Failure};
use serde::{Deserialize, Serialize};
use tch::Tensor;

use super::super::side::{About, Compiles};
use crate::failure::RuntimeError;

/// One of two arms.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Which {
    A,
    B,
}

impl Which {
    /// The name of the arm that it is in a request.
    pub(super) fn name(self, request: &BenchmarkRequest) -> &str {
        match self {
            Self::A => &request.a,
            Self::B => &request.b,
        }
    }
}

/// What an arm is asked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "question", rename_all = "snake_case")]
pub(super) enum Question {
    /// The first: which arm of which request to be. Answered by [`Answer::Is`].
    Be {
        request: Box<BenchmarkRequest>,
        which: Which,
    },
    /// Make what both arms have to get, into a file. Answered by [`Answer::Done`].
    SharedInputs { file: PathBuf },
    /// Take it from a file. Answered by [`Answer::Done`].
    TakeInputs { file: PathBuf },
    /// One call, its results into a file. Answered by [`Answer::Took`].
    Outputs {
        workload: usize,
        seed: u64,
        file: PathBuf,
    },
    /// So many calls. Answered by [`Answer::Took`].
    Sample { calls: usize },
    /// How many compiles there were. Answered by [`Answer::Compiles`].
    Compiles,
}

/// What an arm answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub(super) enum Answer {
    /// Not the answer yet: what to tell the user meanwhile.
    Meanwhile { event: Event },
    /// The arm is loaded.
    Is { about: Box<About> },
    /// Nothing more to say.
    Done,
    /// The calls took so long.
    Took { seconds: f64 },
    /// Compiles so far.
    Compiles { compiles: Compiles },
    /// It could not be done.
    Failed { failure: Failure },
}

/// Sends a message.
pub(super) fn send(mut to: &UnixStream, message: &impl Serialize) -> Result<(), std::io::Error> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    to.write_all(&line)
}

/// Writes tensors in their order.
pub(super) fn write(tensors: &[Tensor], file: &Path) -> Result<(), RuntimeError> {
    let named = tensors
        .iter()
        .enumerate()
        .map(|(index, tensor)| Ok((index.to_string(), tensor.f_contiguous()?)))
        .collect::<Result<Vec<_>, RuntimeError>>()?;
    Ok(Tensor::write_safetensors(&named, file)?)
}

/// Reads tensors in the order in which they were written.
pub(super) fn read(file: &Path) -> Result<Vec<Tensor>, RuntimeError> {
    let mut named = Tensor::read_safetensors(file)?;
    // A file lists them by alignment.
    named.sort_by_key(|(name, _)| name.parse::<usize>().unwrap_or(usize::MAX));
    Ok(named.into_iter().map(|(_, tensor)| tensor).collect())
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind};

    use super::*;

    #[test]
    fn tensors_of_all_dtypes_and_layouts_come_back_in_their_order() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("tensors");
        let numbers = Tensor::arange(12, (Kind::Float, Device::Cpu)).view([3, 4]);
        let mut tensors: Vec<Tensor> = [Kind::BFloat16, Kind::Float, Kind::Int64, Kind::Double]
            .map(|kind| numbers.to_kind(kind))
            .into();
        tensors.push(numbers.transpose(0, 1));
        tensors.extend((0..8).map(|n| numbers.narrow(0, n % 3, 1)));
        write(&tensors, &file).unwrap();
        let back = read(&file).unwrap();
        assert_eq!(back.len(), tensors.len());
        for (before, after) in tensors.iter().zip(&back) {
            assert_eq!((before.kind(), before.size()), (after.kind(), after.size()));
            assert!(before.equal(after));
        }
    }
}
