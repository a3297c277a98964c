"""The kernels of a simulated device, which run torch's operations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from gradwire_lab.simulated_device.operations import launch
from gradwire_lab.simulated_device.simulated import Simulated, owner_of

_MIXED = ("copy_", "_to_copy", "index", "index_put", "index_put_")
"""The operations that accept tensors in host memory together with tensors of the device."""


class Kernels(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A context manager that runs this thread's operations on a device's tensors on the current stream.

    An operation takes effect when the stream reaches it. Until then, the host and other streams see poison in
    its results, and copies to its operands count as copies to memory in use. Results belong to the device.
    The host waits for operations that return a number or a copy in host memory. As with a real device,
    operations that mix host tensors and device tensors raise ``RuntimeError``.
    """

    def __init__(self, device: Simulated) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._device = device

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one operation."""
        kwargs = kwargs or {}
        tensors = _tensors((args, kwargs))
        own = [each for each in tensors if owner_of(each) is self._device]
        if self._device.is_busy or not own or _is_view(func):
            return func(*args, **kwargs)
        self._check(func, tensors, own)
        written = [each for each in _written(func, args, kwargs) if owner_of(each) is self._device]
        to_host = _wants_host(func, kwargs) or (func._schema.is_mutable and not written)

        def made(result: Any) -> list[torch.Tensor] | None:
            found = _tensors(result)
            if to_host or not (written or found):
                return None
            return [self._device.own(each) for each in found if owner_of(each) is None]

        return launch(self._device, lambda: func(*args, **kwargs), own, written, made)

    def _check(self, func: Any, tensors: Sequence[torch.Tensor], here: Sequence[torch.Tensor]) -> None:
        name = func._schema.name.removeprefix("aten::")
        strange = [each for each in tensors if owner_of(each) is not self._device and each.dim()]
        if strange and name not in _MIXED:
            raise RuntimeError(
                f"{name}: expected all tensors on one device, got a tensor of shape {tuple(here[0].shape)} "
                f"on {self._device} and a tensor of shape {tuple(strange[0].shape)} elsewhere; move both "
                "to one device"
            )


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [each for each in tree_leaves(tree) if isinstance(each, torch.Tensor)]


def _is_view(func: Any) -> bool:
    aliases = [each.alias_info for each in func._schema.returns]
    return bool(aliases) and all(each is not None and not each.is_write for each in aliases)


def _written(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """Return the tensors that an operation writes, according to its schema."""
    arguments = func._schema.arguments
    given = [*zip(arguments, args, strict=False)]
    given += [(each, kwargs[each.name]) for each in arguments if each.name in kwargs]
    return [
        tensor
        for argument, value in given
        if argument.alias_info is not None and argument.alias_info.is_write
        for tensor in _tensors(value)
    ]


def _wants_host(func: Any, kwargs: dict[str, Any]) -> bool:
    """Return whether an operation copies to host memory, as ``tensor.cpu()`` does."""
    return func._schema.name == "aten::_to_copy" and kwargs.get("device") is not None
