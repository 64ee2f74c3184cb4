//! Tensors to JAX and back by DLPack capsules that are made here, not by torch's Python functions.
#![expect(unsafe_code, reason = "DLPack is a C structure in a Python capsule")]

use std::ffi::{CStr, c_void};

use pyo3::ffi;
use pyo3::prelude::*;
use tch::Tensor;

use crate::element::Element;
use crate::error::BridgeError;
use crate::tensor::{self, View};

const NAME: &CStr = c"dltensor";
/// A capsule of this name was taken over by somebody.
const USED: &CStr = c"used_dltensor";
/// `kDLCPU`.
const CPU: i32 = 1;

/// `DLManagedTensor` of dlpack.h.
#[repr(C)]
struct ManagedTensor {
    data: *mut c_void,
    device_type: i32,
    device_id: i32,
    rank: i32,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *mut i64,
    /// Null: row-major.
    strides: *mut i64,
    byte_offset: u64,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Self)>,
}

/// What a capsule of ours owns: the structure, and the shape it points to.
struct Owner {
    managed: ManagedTensor,
    shape: Box<[i64]>,
}

/// A capsule over a compact tensor's memory. It does not keep the tensor alive: whoever takes it may
/// read it only while a tensor of this type and shape lies there.
pub(crate) fn capsule<'py>(py: Python<'py>, view: &View<'_>) -> PyResult<Bound<'py, PyAny>> {
    unsafe extern "C" fn delete(managed: *mut ManagedTensor) {
        // SAFETY: the context is the owner that was leaked below, and DLPack calls this once.
        drop(unsafe { Box::from_raw((*managed).context.cast::<Owner>()) });
    }
    let (code, bits) = view.element.dlpack();
    let owner = Box::leak(Box::new(Owner {
        managed: ManagedTensor {
            data: view.data,
            device_type: CPU,
            device_id: 0,
            rank: view.shape.len() as i32,
            code,
            bits,
            lanes: 1,
            shape: std::ptr::null_mut(),
            strides: std::ptr::null_mut(),
            byte_offset: 0,
            context: std::ptr::null_mut(),
            deleter: Some(delete),
        },
        shape: view.shape.into(),
    }));
    owner.managed.shape = owner.shape.as_mut_ptr();
    owner.managed.context = (&raw mut *owner).cast();
    let managed = &raw mut owner.managed;
    // SAFETY: the lock is held; the structure lives until its deleter runs, which is when the
    // capsule dies unused or when the one who took it is done.
    unsafe {
        let capsule = ffi::PyCapsule_New(managed.cast(), NAME.as_ptr(), Some(drop_unused));
        Bound::from_owned_ptr_or_err(py, capsule)
    }
}

/// Destructor of a capsule: what nobody took over is given back.
unsafe extern "C" fn drop_unused(capsule: *mut ffi::PyObject) {
    // SAFETY: Python calls this with the lock held and a capsule that is alive.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, NAME.as_ptr()) == 1 {
            let managed = ffi::PyCapsule_GetPointer(capsule, NAME.as_ptr()).cast::<ManagedTensor>();
            if let Some(delete) = (*managed).deleter {
                delete(managed);
            }
        }
    }
}

/// A structure that was taken out of a capsule.
struct Taken(*mut ManagedTensor);

// SAFETY: DLPack's deleters may be called from any thread; JAX's takes what locks it needs.
unsafe impl Send for Taken {}

impl Drop for Taken {
    fn drop(&mut self) {
        // SAFETY: the structure is alive until its deleter was called, and this calls it once.
        unsafe {
            if let Some(delete) = (*self.0).deleter {
                delete(self.0);
            }
        }
    }
}

/// The tensor in a capsule of JAX's, which is used up. A copy where its memory is among the `others`,
/// since a write to one tensor would change another; else its address joins them.
pub(crate) fn take(
    capsule: &Bound<'_, PyAny>,
    others: &mut Vec<usize>,
) -> Result<Option<Tensor>, BridgeError> {
    // SAFETY: the lock is held as long as `capsule` is borrowed. A capsule of this name holds the
    // structure, and renaming it is how DLPack says that it was taken.
    let taken = unsafe {
        let object = capsule.as_ptr();
        if ffi::PyCapsule_IsValid(object, NAME.as_ptr()) != 1 {
            return Ok(None);
        }
        let managed = ffi::PyCapsule_GetPointer(object, NAME.as_ptr()).cast::<ManagedTensor>();
        ffi::PyCapsule_SetName(object, USED.as_ptr());
        Taken(managed)
    };
    // SAFETY: alive until `taken` is dropped.
    let managed = unsafe { &*taken.0 };
    let Some(element) = Element::of_dlpack(managed.code, managed.bits) else {
        return Ok(None);
    };
    if managed.lanes != 1 || managed.device_type != CPU {
        return Ok(None);
    }
    let shape = if managed.rank == 0 {
        Vec::new()
    } else {
        // SAFETY: DLPack says that there are `rank` sizes.
        unsafe { std::slice::from_raw_parts(managed.shape, managed.rank as usize) }.to_vec()
    };
    if !managed.strides.is_null() {
        // SAFETY: where there are strides, there are as many as sizes.
        let strides = unsafe { std::slice::from_raw_parts(managed.strides, shape.len()) };
        if !is_row_major(&shape, strides) {
            return Ok(None);
        }
    }
    // SAFETY: the offset stays within the memory, by DLPack.
    let data = unsafe { managed.data.cast::<u8>().add(managed.byte_offset as usize) };
    let is_shared = others.contains(&data.addr());
    others.push(data.addr());
    // SAFETY: `taken` keeps the memory alive, and its contents are as the structure says.
    let tensor = unsafe { tensor::adopt(data.cast(), element, &shape, Box::new(taken)) }?;
    Ok(Some(if is_shared {
        tensor::compact_copy(&tensor)?
    } else {
        tensor
    }))
}

fn is_row_major(shape: &[i64], strides: &[i64]) -> bool {
    let mut step = 1;
    for (size, stride) in shape.iter().zip(strides).rev() {
        if *size != 1 && *stride != step {
            return false;
        }
        step *= (*size).max(1);
    }
    true
}
