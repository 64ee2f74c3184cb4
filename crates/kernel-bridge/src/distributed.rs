//! The process group of a tensor-parallel model: torch.distributed on libtorch tensors.
//!
//! The collectives are torch's own (gloo for host tensors, `tpu_dist` for those of a TPU), reached
//! through the embedded interpreter because libtorch's Rust binding does not have them. JAX is not
//! needed and not imported.

use std::ffi::CString;
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::PyTuple;
use tch::Tensor;

use crate::environment::Environment;
use crate::error::BridgeError;
use crate::{interpreter, python, tensor};

const SOURCE: &str = include_str!("../python/distributed.py");

/// This process's place in a group of processes, and what they do together. Leaves the group when it
/// is dropped.
pub struct ProcessGroup {
    module: Py<PyModule>,
    rank: usize,
    size: usize,
}

impl std::fmt::Debug for ProcessGroup {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "ProcessGroup({} of {})", self.rank, self.size)
    }
}

impl ProcessGroup {
    /// Joins the group that the environment variables of torchrun describe. Returns when all
    /// processes have. `limit` is how long an operation waits for the others.
    ///
    /// # Errors
    /// [`BridgeError::Environment`], [`BridgeError::Start`], or [`BridgeError::Host`] where
    /// torch.distributed refuses: a variable is missing, or the others do not come in time.
    pub fn join(
        environment: &Environment,
        tpu: bool,
        limit: Duration,
    ) -> Result<Self, BridgeError> {
        interpreter::start(environment)?;
        Python::attach(|py| {
            let join = || -> PyResult<Self> {
                let code = CString::new(SOURCE)?;
                let module = PyModule::from_code(
                    py,
                    &code,
                    c"<kernel-bridge>/distributed.py",
                    c"_kernel_bridge_distributed",
                )?;
                let (rank, size) = module
                    .getattr("join")?
                    .call1((tpu, limit.as_secs().max(1)))?
                    .extract()?;
                Ok(Self {
                    module: module.unbind(),
                    rank,
                    size,
                })
            };
            join().map_err(|error| BridgeError::Host(python::exception(py, &error)))
        })
    }

    /// This process, from 0.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Number of processes.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Replaces a contiguous tensor by the sum over all processes.
    ///
    /// # Errors
    /// [`BridgeError::Host`]: a process is gone, or did not come in time.
    pub fn all_reduce(&self, tensor: &mut Tensor) -> Result<(), BridgeError> {
        self.call("all_reduce", tensor, |_| Ok(()))
    }

    /// The tensors of all processes, which are equal in shape and dtype, by rank.
    ///
    /// # Errors
    /// As [`ProcessGroup::all_reduce`].
    pub fn all_gather(&self, tensor: &Tensor) -> Result<Vec<Tensor>, BridgeError> {
        self.call("all_gather", tensor, |parts| {
            let mut tensors = Vec::with_capacity(self.size);
            for part in parts
                .try_iter()
                .map_err(|error| BridgeError::Host(python::exception(parts.py(), &error)))?
            {
                let part =
                    part.map_err(|error| BridgeError::Host(python::exception(parts.py(), &error)))?;
                tensors.extend(tensor::from_python(&part)?);
            }
            Ok(tensors)
        })
    }

    /// Replaces a contiguous tensor by that of the first process.
    ///
    /// # Errors
    /// As [`ProcessGroup::all_reduce`].
    pub fn broadcast(&self, tensor: &mut Tensor) -> Result<(), BridgeError> {
        self.call("broadcast", tensor, |_| Ok(()))
    }

    fn call<T>(
        &self,
        name: &str,
        tensor: &Tensor,
        read: impl FnOnce(Bound<'_, PyAny>) -> Result<T, BridgeError>,
    ) -> Result<T, BridgeError> {
        Python::attach(|py| {
            let argument = tensor::to_python(py, tensor)?;
            let arguments = PyTuple::new(py, [argument]);
            let answer = arguments
                .and_then(|arguments| self.module.bind(py).getattr(name)?.call1(arguments))
                .map_err(|error| BridgeError::Host(python::exception(py, &error)))?;
            read(answer)
        })
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        Python::attach(|py| {
            let left = self
                .module
                .bind(py)
                .getattr("leave")
                .and_then(|leave| leave.call0());
            if let Err(error) = left {
                tracing::debug!("leaving the process group: {error}");
            }
        });
    }
}
