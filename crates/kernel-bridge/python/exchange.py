"""Tensors between torch and JAX on a CPU, without copies where that is possible.

The public `from_dlpack` functions cost about 100 us a call; the capsule functions beneath them cost a
fraction of that. They are private, so they are tried once when this module is imported, and where
a version of JAX or torch has moved them the public ones are used.

What does not cross as it is:
- 64-bit integers: JAX has 32 bits here, so the range is checked and the values are cast. JAX by
  itself would cut them without a word.
- 64-bit floats and complex numbers: refused, because losing half the digits is no conversion.
- strided, sliced and expanded tensors: made contiguous, since XLA takes compact ones only; compact ones
  whose dimensions of size 1 have other strides get the usual ones, without a copy.
- tensors whose address is not a multiple of 64 bytes: XLA copies them.
- tensors that require a gradient: detached; payloads run for inference.
"""

import jax
import jax.numpy as jnp
import torch

from .errors import ArgumentError

#: Attribute of a torch tensor under which the bridge keeps what it knows about it.
STATE = "_kernel_bridge"

#: Types that both sides have, bit for bit.
SAME = {
    torch.float32: jnp.dtype("float32"),
    torch.bfloat16: jnp.dtype("bfloat16"),
    torch.float16: jnp.dtype("float16"),
    torch.float8_e4m3fn: jnp.dtype("float8_e4m3fn"),
    torch.float8_e4m3fnuz: jnp.dtype("float8_e4m3fnuz"),
    torch.float8_e5m2: jnp.dtype("float8_e5m2"),
    torch.float8_e5m2fnuz: jnp.dtype("float8_e5m2fnuz"),
    torch.float8_e8m0fnu: jnp.dtype("float8_e8m0fnu"),
    torch.int8: jnp.dtype("int8"),
    torch.int16: jnp.dtype("int16"),
    torch.int32: jnp.dtype("int32"),
    torch.uint8: jnp.dtype("uint8"),
    torch.uint16: jnp.dtype("uint16"),
    torch.uint32: jnp.dtype("uint32"),
    torch.bool: jnp.dtype("bool"),
    torch.complex64: jnp.dtype("complex64"),
}
#: 64-bit integers and what they become once their range is checked.
NARROWED = {torch.int64: torch.int32, torch.uint64: torch.uint32}
#: The torch type of each JAX type.
TORCH_TYPES = {theirs: ours for ours, theirs in SAME.items()}


class Constant:
    """A tensor that keeps its memory: its JAX array is imported once.

    The array shares the tensor's memory or, where XLA had to copy it, belongs to one version of its
    contents. It hangs on the tensor object and dies with it.
    """

    __slots__ = ("array", "pointer", "shape", "version", "shared")

    def __init__(self):
        self.array = None

    def find(self, tensor):
        """The array, where the tensor is what it was when the array was made."""
        if (
            self.array is not None
            and self.pointer == tensor.data_ptr()
            and (self.shared or self.version == tensor._version)
            and self.shape == tensor.shape
        ):
            return self.array
        return None

    def keep(self, tensor, array):
        self.pointer, self.shape = tensor.data_ptr(), tensor.shape
        self.version = tensor._version
        self.shared = array.unsafe_buffer_pointer() == self.pointer
        self.array = array


class Donated:
    """A tensor that an op took over: on a TPU its memory is gone, so it is refused here too."""

    __slots__ = ("op",)

    def __init__(self, op):
        self.op = op


def mark_constant(tensor):
    """Says that a tensor keeps its memory, as weights do, so that its import may be kept."""
    if getattr(tensor, STATE, None) is None and not tensor.is_inference():
        setattr(tensor, STATE, Constant())
    return tensor


def mark_donated(tensor, op):
    """Says that `op` took the tensor over."""
    setattr(tensor, STATE, Donated(op))


def _public_import(tensor):
    return jax.dlpack.from_dlpack(tensor)


def _public_export(array):
    return torch.utils.dlpack.from_dlpack(array)


def _private_functions():
    """Import and export by capsule, tried on a small array; None where they are not there."""
    try:
        from jax._src.lib import _jax

        to_capsule, from_capsule = torch._C._to_dlpack, torch._C._from_dlpack
        import_capsule = _jax.dlpack_managed_tensor_to_buffer
        export_capsule = _jax.buffer_to_dlpack_managed_tensor
        device = jax.local_devices(backend="cpu")[0]
        cpu = 1  # DLPack's number for CPU memory

        def import_array(tensor):
            return import_capsule(to_capsule(tensor), device, None, None, cpu)

        def export_array(array):
            return from_capsule(export_capsule(array, stream=None))

        probe = torch.arange(4, dtype=torch.float32)
        if torch.equal(export_array(import_array(probe)), probe):
            return import_array, export_array, (import_capsule, export_capsule, device)
    except Exception:  # any change of these functions leads to the public ones
        pass
    return None


#: JAX's import and export of capsules and its device, for the Rust side; None where they have moved.
_import, _export, CAPSULES = _private_functions() or (_public_import, _public_export, None)


def to_jax(tensor, parameter):
    """The JAX array of a torch tensor on the CPU; `parameter` names it in errors."""
    state = getattr(tensor, STATE, None)
    if state is not None:
        if type(state) is Donated:
            raise ArgumentError(parameter, f"was donated to `{state.op}` and can no longer be used")
        array = state.find(tensor)
        if array is not None:
            return array
    plain = tensor
    if tensor.dtype not in SAME:
        plain = _same_type(tensor, parameter)
    if not tensor.is_cpu:
        raise ArgumentError(parameter, f"is on {tensor.device}, where no torch_tpu is in use")
    if tensor.layout is not torch.strided:
        raise ArgumentError(parameter, f"is {tensor.layout}; only dense tensors cross")
    if plain.is_neg() or plain.is_conj():
        plain = plain.resolve_neg().resolve_conj()
    if not plain.is_contiguous():
        plain = plain.contiguous()
    elif 1 in plain.shape:
        # torch lets the stride of such a dimension be anything; XLA would see another layout in it,
        # for which the compiled op was not made.
        strides = _compact_strides(plain.shape)
        if plain.stride() != strides:
            plain = plain.as_strided(plain.shape, strides)
    # Detached always: the array then holds the memory and not the tensor object that it hangs on,
    # which would keep both alive for ever.
    array = _import(plain.detach())
    if state is not None and plain is tensor:
        state.keep(tensor, array)
    return array


def _compact_strides(shape):
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def _same_type(tensor, parameter):
    """The tensor in a type that JAX has here."""
    narrow = NARROWED.get(tensor.dtype)
    if narrow is None:
        raise ArgumentError(parameter, f"is {_name(tensor.dtype)}, which JAX does not take here; cast it first")
    if tensor.numel():
        # aminmax has no uint64 kernel; reinterpreted as int64, values above 2^63 are negative.
        low, high = (int(value) for value in torch.aminmax(tensor.view(torch.int64)))
        least, most = torch.iinfo(narrow).min, torch.iinfo(narrow).max
        if low < least or high > most:
            raise ArgumentError(
                parameter,
                f"is {_name(tensor.dtype)} with values from {low} to {high}; JAX has 32 bits here",
            )
    return tensor.to(narrow)


def _name(dtype):
    return str(dtype).removeprefix("torch.")


def to_torch(value, inputs=()):
    """Results of a JAX function as torch tensors; tuples, lists and None keep their form.

    `inputs` are the arrays that it was called with. JAX hands an argument that is returned as it is
    through, and returns a value that is returned twice as one array; what the caller then writes to
    one tensor would change another, so those are copied.
    """
    return _to_torch(value, {array.unsafe_buffer_pointer() for array in inputs})


def _to_torch(value, taken):
    if isinstance(value, jax.Array):
        pointer = value.unsafe_buffer_pointer()
        if pointer in taken:
            return _export(value).clone()
        taken.add(pointer)
        return _export(value)
    if isinstance(value, (tuple, list)):
        items = [_to_torch(item, taken) for item in value]
        # A named tuple takes its fields one by one.
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value
