//! libtorch tensors as Python objects, as memory, and back: the same storage on both sides, never a
//! copy.
#![expect(
    unsafe_code,
    reason = "tch hands out and takes raw pointers, and what it lacks is in C++ beside it"
)]

use std::ffi::c_void;
use std::marker::PhantomData;

use pyo3::prelude::*;
use tch::Tensor;
use torch_sys::C_tensor;

use crate::element::Element;
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

/// A tensor that several threads read: the weight of a layer.
#[derive(Debug)]
pub(crate) struct Shared(Tensor);

impl Shared {
    /// Another handle to the same tensor.
    pub(crate) fn of(tensor: &Tensor) -> Self {
        Self(tensor.shallow_clone())
    }

    /// The tensor, for reading.
    pub(crate) fn tensor(&self) -> &Tensor {
        &self.0
    }
}

// SAFETY: a handle is a counted pointer with an atomic count, and only shared references to the
// tensor are given out. Through one, tch reads what libtorch lets several threads read at once
// (sizes, type, address, values); its functions that write take `&mut`.
unsafe impl Sync for Shared {}

/// `View` of shim/tensor.cpp.
#[repr(C)]
struct RawView {
    data: *mut c_void,
    sizes: *const i64,
    rank: usize,
    scalar_type: i32,
    dense: bool,
    compact: bool,
}

unsafe extern "C" {
    fn kernel_bridge_view(tensor: *const C_tensor, view: *mut RawView) -> bool;
    fn kernel_bridge_adopt(
        data: *mut c_void,
        sizes: *const i64,
        rank: usize,
        scalar_type: i32,
        owner: *mut c_void,
        release: unsafe extern "C" fn(*mut c_void),
    ) -> *mut C_tensor;
}

/// What a call must know of a tensor on the CPU, borrowed from it.
pub(crate) struct View<'a> {
    /// Where its values begin; null where they are not in one piece.
    pub(crate) data: *mut c_void,
    pub(crate) element: Element,
    pub(crate) shape: &'a [i64],
    /// Without gaps and in row-major order.
    pub(crate) compact: bool,
    tensor: PhantomData<&'a Tensor>,
}

impl<'a> View<'a> {
    /// Looks at a tensor. `None` where its values are not memory of the CPU that XLA could read as it
    /// is: another device, a sparse layout, a type that XLA lacks.
    pub(crate) fn of(tensor: &'a Tensor) -> Option<Self> {
        let mut raw = RawView {
            data: std::ptr::null_mut(),
            sizes: std::ptr::null(),
            rank: 0,
            scalar_type: 0,
            dense: false,
            compact: false,
        };
        // SAFETY: the tensor is alive, and `raw` is the structure that the function fills.
        let is_known = unsafe { kernel_bridge_view(tensor.as_ptr(), &raw mut raw) };
        if !is_known || !raw.dense {
            return None;
        }
        let shape = if raw.rank == 0 {
            &[][..]
        } else {
            // SAFETY: the sizes belong to the tensor, which is borrowed for as long, and nobody
            // resizes a tensor that is borrowed.
            unsafe { std::slice::from_raw_parts(raw.sizes, raw.rank) }
        };
        Some(Self {
            data: raw.data,
            element: Element::of_torch(raw.scalar_type)?,
            shape,
            compact: raw.compact,
            tensor: PhantomData,
        })
    }
}

/// A tensor over memory that `owner` keeps alive; the owner is dropped with the last user.
///
/// # Safety
/// `data` must lead to as many values as the shape says, of this type, in row-major order, that
/// nobody else writes to, for as long as `owner` lives. `owner` may be dropped on any thread.
pub(crate) unsafe fn adopt<T: Send>(
    data: *mut c_void,
    element: Element,
    shape: &[i64],
    owner: Box<T>,
) -> Result<Tensor, BridgeError> {
    unsafe extern "C" fn release<T>(owner: *mut c_void) {
        // SAFETY: the pointer came from `Box::into_raw` below and is given back once.
        drop(unsafe { Box::from_raw(owner.cast::<T>()) });
    }
    let owner = Box::into_raw(owner).cast();
    // SAFETY: the shape is alive during the call; the rest is as the caller says.
    let tensor = unsafe {
        kernel_bridge_adopt(
            data,
            shape.as_ptr(),
            shape.len(),
            element.torch(),
            owner,
            release::<T>,
        )
    };
    if tensor.is_null() {
        let problem = format!("libtorch made no tensor of shape {shape:?}");
        return Err(tch::TchError::Torch(problem).into());
    }
    // SAFETY: a new tensor that nobody else has.
    Ok(unsafe { Tensor::from_ptr(tensor) })
}

/// The same values in memory of their own, which libtorch aligns.
pub(crate) fn compact_copy(tensor: &Tensor) -> Result<Tensor, tch::TchError> {
    let _guard = tch::no_grad_guard();
    let mut copy = Tensor::f_empty(tensor.size(), (tensor.f_kind()?, tch::Device::Cpu))?;
    copy.f_copy_(tensor)?;
    Ok(copy)
}
