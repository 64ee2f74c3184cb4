"""Tensors between torch and JAX on a CPU, without copies where that is possible.

The public `from_dlpack` functions cost about 100 us a call. The capsule functions beneath them
cost a tenth; where a JAX version moves them, the public ones are used.

What does not cross as it is:
- 64-bit integers: JAX has 32 bits here, so the range is checked and the values are cast.
- 64-bit floats: refused, because a silent loss of half the digits is no conversion.
- strided, sliced and expanded tensors: made contiguous, since XLA only takes compact ones.
- tensors that require a gradient: detached; payloads run for inference.
"""

import jax
import jax.numpy as jnp
import torch

INT32_MIN, INT32_MAX = -(2**31), 2**31 - 1
#: Attribute on a torch tensor that never changes: its JAX array, imported once.
CONSTANT = "_kernel_bridge_constant"
#: Attribute on a torch tensor that an op took over.
DONATED = "_kernel_bridge_donated_to"

#: Widths by which torch and JAX name the same type.
DTYPES = {
    torch.float32: jnp.float32,
    torch.bfloat16: jnp.bfloat16,
    torch.float16: jnp.float16,
    torch.int32: jnp.int32,
    torch.int16: jnp.int16,
    torch.int8: jnp.int8,
    torch.uint8: jnp.uint8,
    torch.bool: jnp.bool_,
    torch.float8_e4m3fn: jnp.float8_e4m3fn,
    torch.float8_e5m2: jnp.float8_e5m2,
    torch.int64: jnp.int32,
}

_cpu = None


def _device():
    """JAX's CPU device; asynchronous dispatch is switched off before the client exists."""
    global _cpu
    if _cpu is None:
        # XLA would otherwise read an input after the caller got its result and overwrote it.
        jax.config.update("jax_cpu_enable_async_dispatch", False)
        _cpu = jax.local_devices(backend="cpu")[0]
    return _cpu


try:
    from jax._src.lib import _jax

    _import_capsule = _jax.dlpack_managed_tensor_to_buffer
    _export_capsule = _jax.buffer_to_dlpack_managed_tensor
    #: DLPack's number for CPU memory.
    _KDL_CPU = 1
except (ImportError, AttributeError):
    _import_capsule = _export_capsule = None


def _import(tensor):
    device = _device()
    if _import_capsule is not None:
        capsule = torch.utils.dlpack.to_dlpack(tensor)
        try:
            return _import_capsule(capsule, device, None, None, _KDL_CPU)
        except TypeError:
            pass
    return jax.dlpack.from_dlpack(tensor)


def to_jax(tensor, describe):
    """The JAX array of a torch tensor on the CPU; `describe()` names it in errors."""
    known = getattr(tensor, CONSTANT, None)
    if known is not None and known is not True:
        return known
    donated = getattr(tensor, DONATED, None)
    if donated is not None:
        raise ValueError(f"{describe()} was donated to `{donated}` and can no longer be used")
    dtype = tensor.dtype
    if dtype not in DTYPES:
        raise TypeError(f"{describe()} is {dtype}, which JAX does not take here; cast it to float32")
    plain = tensor.detach() if tensor.requires_grad else tensor
    if dtype is torch.int64:
        plain = _narrow(plain, describe)
    if plain.numel() == 0:
        # An empty tensor has no address, and DLPack has no word for that.
        return jnp.zeros(tuple(plain.shape), DTYPES[dtype])
    if not plain.is_contiguous():
        plain = plain.contiguous()
    if plain.is_neg() or plain.is_conj():
        plain = plain.resolve_neg().resolve_conj()
    array = _import(plain)
    if known is True and plain is tensor:
        setattr(tensor, CONSTANT, array)
    return array


def _narrow(tensor, describe):
    if tensor.numel():
        low, high = (int(value) for value in torch.aminmax(tensor))
        if low < INT32_MIN or high > INT32_MAX:
            raise ValueError(
                f"{describe()} is int64 with values from {low} to {high}; JAX has 32 bits here"
            )
    return tensor.to(torch.int32)


def to_torch(value):
    """Results of a JAX function as torch tensors; tuples, lists and None keep their form."""
    if isinstance(value, jax.Array):
        if value.size == 0:
            return torch.zeros(value.shape, dtype=torch_dtype(value.dtype))
        if _export_capsule is not None:
            return torch.utils.dlpack.from_dlpack(_export_capsule(value, stream=None))
        return torch.utils.dlpack.from_dlpack(value)
    if isinstance(value, (tuple, list)):
        return type(value)(to_torch(item) for item in value)
    return value


def torch_dtype(dtype):
    """The torch type of a JAX type."""
    for ours, theirs in DTYPES.items():
        if jnp.dtype(theirs) == jnp.dtype(dtype) and ours is not torch.int64:
            return ours
    raise TypeError(f"torch has no type for {dtype}")


def mark_constant(tensor):
    """Says that a tensor keeps its memory as long as it lives, so that its import can be kept."""
    setattr(tensor, CONSTANT, True)
    return tensor
