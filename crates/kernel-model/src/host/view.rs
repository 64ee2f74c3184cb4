//! Tensors of the host as slices, and slices as tensors.

use tch::{Device, Kind, Tensor};

use super::element::Element;
use crate::error::Result;

/// Whether a tensor's numbers can be read in place: on the host, one after the other, aligned, and
/// not part of a gradient computation, which would not see what is done here.
fn readable(tensor: &Tensor, kind: Kind, align: usize) -> bool {
    // libtorch's binding answers another device than `Cpu` for everything that is not the host.
    tensor.device() == Device::Cpu
        && tensor.f_kind().is_ok_and(|found| found == kind)
        && !tensor.is_sparse()
        && tensor.is_contiguous()
        && !tensor.requires_grad()
        && (tensor.data_ptr() as usize).is_multiple_of(align)
}

/// The numbers of a tensor in place; `None` where they cannot be read so.
pub(super) fn numbers<E: Element>(tensor: &Tensor) -> Option<&[E]> {
    slice(tensor, E::KIND)
}

/// The i64 numbers of a tensor in place.
pub(super) fn integers(tensor: &Tensor) -> Option<&[i64]> {
    slice(tensor, Kind::Int64)
}

#[expect(unsafe_code, reason = "a tensor's memory as a slice")]
fn slice<T>(tensor: &Tensor, kind: Kind) -> Option<&[T]> {
    if !readable(tensor, kind, align_of::<T>()) {
        return None;
    }
    let length = tensor.numel();
    if length == 0 {
        return Some(&[]);
    }
    // SAFETY: the tensor is contiguous, of `kind`, which is `T`'s, on the host and aligned, so
    // `length` numbers lie there. It is borrowed, and nothing writes to another view of its memory
    // while an op runs: a model is used by one thread, and ops write to new tensors and the cache.
    Some(unsafe { std::slice::from_raw_parts(tensor.data_ptr().cast(), length) })
}

/// The numbers of a tensor in place, to be changed.
#[expect(unsafe_code, reason = "a tensor's memory as a slice")]
pub(super) fn numbers_mut<E: Element>(tensor: &mut Tensor) -> Option<&mut [E]> {
    if !readable(tensor, E::KIND, align_of::<E>()) || tensor.numel() == 0 {
        return None;
    }
    // SAFETY: as for reading; the borrow is exclusive, and no other view is read while it lasts.
    Some(unsafe { std::slice::from_raw_parts_mut(tensor.data_ptr().cast(), tensor.numel()) })
}

/// A new tensor of the host whose numbers `write` sets, all of them.
pub(super) fn filled<E: Element>(size: &[i64], write: impl FnOnce(&mut [E])) -> Result<Tensor> {
    let mut tensor = Tensor::f_empty(size, (E::KIND, Device::Cpu))?;
    if let Some(numbers) = numbers_mut(&mut tensor) {
        write(numbers);
    }
    Ok(tensor)
}
