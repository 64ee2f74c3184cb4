//! A function that JAX compiled, called with arrays that are made here.

use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};
use tch::Tensor;

use super::Stop;
use crate::tensor::View;
use crate::{Inner, dlpack, interpreter};

/// The JAX array over some memory.
struct Imported {
    address: usize,
    array: Py<PyAny>,
}

/// A compiled function.
pub(super) struct JaxFunction {
    callable: Py<PyAny>,
    /// For each input, the memory that it had last, as an array. The array does not own the memory,
    /// which makes it right for whatever tensor of this type and shape lies there: a call is over
    /// when it returns, and nothing reads the array between calls. Locked for moments only.
    imported: Mutex<Vec<Option<Imported>>>,
}

impl JaxFunction {
    /// The function of a prepared call; none where this JAX lacks what is needed, or where the
    /// function returns something other than tensors.
    pub(super) fn new(
        inner: &Inner,
        prepared: &Bound<'_, PyAny>,
        inputs: usize,
    ) -> PyResult<Option<Self>> {
        if inner.modules.capsules().is_none() {
            return Ok(None);
        }
        let callable = prepared.call_method0("compiled")?;
        Ok((!callable.is_none()).then(|| Self {
            callable: callable.unbind(),
            imported: Mutex::new((0..inputs).map(|_| None).collect()),
        }))
    }

    /// Calls it with compact and aligned tensors of the types and shapes that it was made for.
    pub(super) fn call(&self, inner: &Inner, inputs: &[View<'_>]) -> Result<Vec<Tensor>, Stop> {
        Python::attach(|py| {
            let Some([import, export, device]) = inner.modules.capsules() else {
                return Err(Stop::General);
            };
            let mut arrays = Vec::with_capacity(inputs.len());
            for (index, input) in inputs.iter().enumerate() {
                if let Some(array) = self.known(py, index, input) {
                    arrays.push(array);
                    continue;
                }
                let capsule = dlpack::capsule(py, input)?;
                let arguments = (capsule, device, py.None(), py.None(), 1);
                let array = import.bind(py).call1(arguments)?.unbind();
                self.keep(py, index, input, &array);
                arrays.push(array);
            }
            let thread = interpreter::current_thread(py);
            inner.enter(thread);
            let outcome =
                PyTuple::new(py, arrays).and_then(|arrays| self.callable.bind(py).call1(arrays));
            inner.leave(thread);
            // JAX hands arguments through and returns one array for a value that is returned twice.
            let mut others: Vec<usize> = inputs.iter().map(|input| input.data.addr()).collect();
            let mut results = Vec::new();
            for item in items(outcome?) {
                let capsule = export.bind(py).call1((item,))?;
                let tensor = dlpack::take(&capsule, &mut others)?;
                results.push(tensor.ok_or(Stop::General)?);
            }
            Ok(results)
        })
    }

    fn known(&self, py: Python<'_>, index: usize, input: &View<'_>) -> Option<Py<PyAny>> {
        let imported = self.imported.lock().unwrap_or_else(PoisonError::into_inner);
        match imported.get(index) {
            Some(Some(known)) if known.address == input.data.addr() => {
                Some(known.array.clone_ref(py))
            }
            _ => None,
        }
    }

    fn keep(&self, py: Python<'_>, index: usize, input: &View<'_>, array: &Py<PyAny>) {
        let new = Imported {
            address: input.data.addr(),
            array: array.clone_ref(py),
        };
        let before = {
            let mut imported = self.imported.lock().unwrap_or_else(PoisonError::into_inner);
            imported.get_mut(index).map(|place| place.replace(new))
        };
        // Python code may run when an array dies: not under our lock.
        drop(before);
    }
}

/// The arrays of a result.
fn items(result: Bound<'_, PyAny>) -> Vec<Bound<'_, PyAny>> {
    if let Ok(tuple) = result.cast::<PyTuple>() {
        tuple.iter().collect()
    } else if let Ok(list) = result.cast::<PyList>() {
        list.iter().collect()
    } else {
        vec![result]
    }
}
