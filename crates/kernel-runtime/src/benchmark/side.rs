//! One arm of a comparison: what can be asked of it, wherever it runs.

use std::cell::RefCell;
use std::collections::BTreeMap;

use kernel_bench::measure;
use kernel_model::Dtype;
use kernel_report::record::ArmRecord;
use serde::{Deserialize, Serialize};
use tch::Tensor;

use crate::failure::RuntimeError;
use crate::session;

/// An arm that is loaded: in this process, or the other end of a connection to one of its own.
pub(super) trait Side {
    /// What it is.
    fn about(&self) -> &About;

    /// What both arms have to get that only a loaded arm can make: the hidden states before a layer.
    fn shared_inputs(&mut self) -> Result<Vec<Tensor>, RuntimeError> {
        Ok(Vec::new())
    }

    /// Takes what the first arm made.
    fn take_inputs(&mut self, _inputs: &[Tensor]) -> Result<(), RuntimeError> {
        Ok(())
    }

    /// One call of a workload on the inputs of a seed.
    fn outputs(&mut self, workload: usize, seed: u64) -> Result<Outputs, RuntimeError>;

    /// Seconds that so many calls took together, on the workload and inputs of the last
    /// [`Self::outputs`].
    fn sample(&mut self, calls: usize) -> Result<f64, RuntimeError>;

    /// Compiles of the arm's process so far.
    fn compiles(&mut self) -> Result<Compiles, RuntimeError>;
}

/// What an arm is and runs on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct About {
    pub(super) record: ArmRecord,
    /// Name of the dtype of activations.
    dtype: String,
    /// Versions in the arm's process, by package.
    pub(super) versions: BTreeMap<String, String>,
}

impl About {
    /// An arm of this process.
    pub(super) fn here(record: ArmRecord, dtype: Dtype) -> Self {
        Self {
            record,
            dtype: dtype.name().to_owned(),
            versions: session::versions(),
        }
    }

    /// An arm that has not said yet.
    pub(super) fn unknown() -> Self {
        Self {
            record: ArmRecord::default(),
            dtype: String::new(),
            versions: BTreeMap::new(),
        }
    }

    /// The dtype of activations.
    pub(super) fn dtype(&self) -> Result<Dtype, RuntimeError> {
        Ok(Dtype::by_name(&self.dtype)?)
    }
}

/// What a call made, and how long it took.
#[derive(Debug)]
pub(super) struct Outputs {
    pub(super) tensors: Vec<Tensor>,
    pub(super) seconds: f64,
}

impl Outputs {
    /// Takes the time of a call that returns when its result is there.
    pub(super) fn of(
        call: impl FnOnce() -> Result<Vec<Tensor>, RuntimeError>,
    ) -> Result<Self, RuntimeError> {
        let started = std::time::Instant::now();
        let tensors = call()?;
        Ok(Self {
            tensors,
            seconds: started.elapsed().as_secs_f64(),
        })
    }
}

/// Compiles of a process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Compiles {
    pub(super) all: usize,
    /// Those for Pallas' interpret mode.
    pub(super) interpreted: usize,
}

impl Compiles {
    /// Those of this process.
    pub(super) fn here() -> Result<Self, RuntimeError> {
        let Some(bridge) = session::running_bridge() else {
            return Ok(Self::default());
        };
        let compiles = bridge.compiles()?;
        Ok(Self {
            all: compiles.len(),
            interpreted: compiles
                .iter()
                .filter(|compile| compile.interpreted)
                .count(),
        })
    }
}

/// Two arms.
pub(super) struct Sides<'a> {
    pub(super) a: SharedSide<'a>,
    pub(super) b: SharedSide<'a>,
    /// A once more, where each arm has a process of its own.
    pub(super) control: Option<SharedSide<'a>>,
}

/// A side that the measuring loop and its watch both ask, one after the other.
pub(super) type SharedSide<'a> = RefCell<Box<dyn Side + 'a>>;

impl<'a> Sides<'a> {
    /// All sides: A, B, and the control where there is one.
    pub(super) fn all(&self) -> impl Iterator<Item = &SharedSide<'a>> {
        [&self.a, &self.b].into_iter().chain(&self.control)
    }

    /// Compiles so far of the processes that the arms run in.
    pub(super) fn compiles(&self) -> Result<Compiles, RuntimeError> {
        let mut sum = Compiles::default();
        let processes = if self.control.is_some() { 3 } else { 1 };
        for side in self.all().take(processes) {
            let compiles = side.borrow_mut().compiles()?;
            sum.all += compiles.all;
            sum.interpreted += compiles.interpreted;
        }
        Ok(sum)
    }
}

/// A side as the measuring loop sees it.
pub(super) struct Timed<'a, 'b>(pub(super) &'a SharedSide<'b>);

impl measure::Arm for Timed<'_, '_> {
    type Error = RuntimeError;

    fn sample(&mut self, calls: usize) -> Result<f64, RuntimeError> {
        self.0.borrow_mut().sample(calls)
    }
}
