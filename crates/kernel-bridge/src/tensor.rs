//! libtorch tensors as Python objects and back: the same tensor on both sides, never a copy.
#![expect(unsafe_code, reason = "tch hands out and takes raw object pointers")]

use pyo3::prelude::*;
use tch::Tensor;

use crate::error::BridgeError;

/// The `torch.Tensor` of a tensor; both share storage, and either may be dropped first.
///
/// `import torch` must have happened in this process: before it, torch's type does not exist and
/// wrapping is a crash. [`crate::Bridge::start`] does it, and only it hands out what calls this.
pub(crate) fn to_python<'py>(
    py: Python<'py>,
    tensor: &Tensor,
) -> Result<Bound<'py, PyAny>, BridgeError> {
    let pointer = tensor.pyobject_wrap()?;
    // SAFETY: the interpreter's lock is held (`py`), and the pointer is a new reference to a live
    // object that nobody else owns; a null pointer becomes an error.
    unsafe { Bound::from_owned_ptr_or_err(py, pointer.cast()) }
        .map_err(|error| BridgeError::Host(crate::python::exception(py, &error)))
}

/// The tensor of a `torch.Tensor`; `None` where the object is something else.
pub(crate) fn from_python(object: &Bound<'_, PyAny>) -> Result<Option<Tensor>, BridgeError> {
    // SAFETY: the pointer is that of a live object, kept alive by `object`, and the interpreter's
    // lock is held for as long as `object` is borrowed.
    Ok(unsafe { Tensor::pyobject_unpack(object.as_ptr().cast()) }?)
}
