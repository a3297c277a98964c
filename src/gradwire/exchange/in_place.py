"""Which tensors an exchange can change in place, itself or through their stand-ins."""

from __future__ import annotations

import torch
from torch.nn.parameter import is_lazy

from gradwire.devices import FLOATS
from gradwire.errors import TensorError

_EIGHT_BITS = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)
_TAKEN = (*FLOATS, *_EIGHT_BITS, torch.float64)
"""What float32 stands in for; of these it holds only float64 inexactly."""


def check_in_place(tensor: torch.Tensor, caller: str) -> None:
    """Raise ``TensorError`` where ``caller`` could not change ``tensor`` in place.

    Who follows its advice gets the result: where that is a copy, it is what the call returns.
    """
    fault = _fault(tensor, caller)
    if fault is not None:
        raise TensorError(f"{caller} wants {fault}")


def _fault(tensor: object, caller: str) -> str | None:
    def returned(copy: str) -> str:
        return f"write averaged = {caller}({copy}), and go on with what it returns"

    if not isinstance(tensor, torch.Tensor):
        return (
            f"one torch tensor, but got a {type(tensor).__name__}; call it for each tensor, and for an array "
            "as torch.from_numpy(array), which shares its memory"
        )
    if is_lazy(tensor):  # first: it answers nothing else
        return "values, but this lazy parameter has none yet; run the model once before"
    if tensor.is_nested:
        return "a dense tensor, but this one is nested; pass tensor.values(), which shares its memory"
    if tensor.layout != torch.strided:
        return f"a dense tensor, but this one's layout is {tensor.layout}; {returned('tensor.to_dense()')}"
    if not _has_memory(tensor):
        return (
            f"values in memory, but this {type(tensor).__name__} on {tensor.device} has none: it is a meta "
            "tensor, was freed, or stands for another one; pass that one, of a DTensor its to_local()"
        )
    if tensor.is_complex():
        return (
            f"floats, but the tensor is {tensor.dtype}; pass torch.view_as_real(tensor), which shares its "
            "memory"
        )
    if tensor.dtype not in _TAKEN:
        floats = "tensor.dequantize()" if tensor.is_quantized else "tensor.float()"
        return f"floats, but the tensor is {tensor.dtype}; {returned(floats)}"
    if _may_share_memory(tensor):
        return (
            "memory of its own for every element, but some of this tensor's share theirs, as after expand; "
            + returned("tensor.clone()")
        )
    return None


def _has_memory(tensor: torch.Tensor) -> bool:
    if type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        return False  # DTensor, FakeTensor and the like
    try:
        return tensor.numel() == 0 or tensor.untyped_storage().data_ptr() != 0
    except RuntimeError:  # what torch says within vmap and grad
        return False


def _may_share_memory(tensor: torch.Tensor) -> bool:
    """Return whether two elements may share an address: if a stride isn't beyond all smaller ones."""
    reached = 0
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and stride <= reached:
            return tensor.numel() > 0
        reached += stride * (size - 1)
    return False
