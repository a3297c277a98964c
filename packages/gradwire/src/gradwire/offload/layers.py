"""A model's layers: which parameters travel together, and which modules read them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import nn

from gradwire.devices import Device
from gradwire.devices.base import CPU
from gradwire.errors import DeviceError, GradwireError, SpecError, TensorError


@dataclass
class Layer:
    """Parameters that travel together.

    Attributes
    ----------
    name
        Of the module that they belong to: a layer, or a block such as a residual one; empty for the model.
    masters, replicas
        On the host and on the device, in one order.
    readers
        The replica's modules that own one of them.
    """

    name: str
    masters: list[nn.Parameter] = field(default_factory=list)
    replicas: list[nn.Parameter] = field(default_factory=list)
    readers: list[nn.Module] = field(default_factory=list)

    @property
    def weights(self) -> list[nn.Parameter]:
        """The masters with more than one dimension, which policies are about."""
        return [each for each in self.masters if each.dim() > 1]

    @property
    def count(self) -> int:
        """How many numbers travel."""
        return sum(each.numel() for each in self.masters)


def layers_of(model: nn.Module, replica: nn.Module, blocks: Sequence[str] = ()) -> list[Layer]:
    """Return the layers in the order of the model's modules, one for each module with parameters of its own.

    The parameters within each of ``blocks``, names of modules, are one layer. A parameter that several
    modules share belongs to the first. Raises ``SpecError`` for a block that isn't there.
    """
    modules, readers = (
        dict(model.named_modules(remove_duplicate=False)),
        dict(replica.named_modules(remove_duplicate=False)),
    )
    unknown = next((name for name in blocks if name not in modules), None)
    if unknown is not None:
        raise SpecError(f"a block must be the name of one of the model's modules, but {unknown!r} isn't")
    layers: dict[str, Layer] = {}
    homes: dict[nn.Parameter, Layer] = {}
    for name, module in modules.items():
        home = next((block for block in blocks if f"{name}.".startswith(f"{block}.")), name)
        replicas = dict(readers[name].named_parameters(recurse=False))
        for own, master in module.named_parameters(recurse=False):
            if master not in homes:
                homes[master] = layers.setdefault(home, Layer(home))
                homes[master].masters.append(master)
                homes[master].replicas.append(replicas[own])
            if readers[name] not in homes[master].readers:
                homes[master].readers.append(readers[name])
    return [*layers.values()]


def check_masters(model: nn.Module) -> None:
    """Raise ``TensorError`` unless a model can be the master: it has float32 parameters on the CPU."""
    parameters = dict(model.named_parameters())
    if not parameters:
        raise TensorError("HostOffload wants a model with parameters, but this one has none")
    for name, each in parameters.items():
        if each.device.type != "cpu":
            raise TensorError(
                f"HostOffload keeps the master weights on the host, but {name} is on {each.device}; pass the "
                "model as it is before model.to(device), and name the device here"
            )
        if each.dtype != torch.float32:
            raise TensorError(
                f"the master weights must be float32, but {name} is {each.dtype}; pass model.float(), and "
                "use torch.autocast for a forward pass in half the precision"
            )


def check_optimizer(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    """Raise ``SpecError`` unless an optimizer updates the model's parameters only."""
    masters = {*model.parameters()}
    updated = (each for group in optimizer.param_groups for each in group["params"])
    foreign = next((each for each in updated if each not in masters), None)
    if foreign is not None:
        raise SpecError(
            "the optimizer must update the parameters of this model, but has one of shape "
            f"{tuple(foreign.shape)} that isn't among them; make it from model.parameters()"
        )


# Where replicas live: devices, and the host memory that is copied to and from them.
#
# What a device raises when it is lost, or has no memory, becomes one sentence here. The masters and the
# optimizer's state on the host are not touched then.


@dataclass(frozen=True)
class Place:
    """A device with a replica.

    Attributes
    ----------
    device
        Of the replica.
    layers
        Those whose weights and gradients travel, in the same order at every place.
    pinned
        Whether copies use pinned memory of the host.
    """

    device: Device
    layers: Sequence[Layer]
    pinned: bool = True

    def host_memory(self, count: int) -> torch.Tensor:
        """Return so many float32 on the host, for copies. Raises ``DeviceError``."""
        if not self.pinned:
            return CPU.pinned(count)
        try:
            return self.device.pinned(count)
        except RuntimeError as error:
            raise DeviceError(
                f"HostOffload wants {4 * count} bytes of pinned memory for copies to {self.device}, but the "
                f"host has none left ({_line(error)}); pass pin_memory=False, or lock less memory elsewhere"
            ) from error

    @contextmanager
    def at_work(self, doing: str) -> Iterator[None]:
        """Raise ``DeviceError`` where the device fails within the block, which is there for ``doing``."""
        try:
            yield
        except GradwireError:
            raise
        except torch.OutOfMemoryError as error:
            raise DeviceError(
                f"{self.device} has not enough memory for {doing} ({_line(error)}); the masters are as "
                "before, so name another device, or a larger fraction="
            ) from error
        except RuntimeError as error:
            raise DeviceError(
                f"{self.device} failed at {doing} ({_line(error)}); the masters and the optimizer's state on "
                "the host are intact, so save them, close this HostOffload, and make one on another device"
            ) from error


def _line(error: BaseException) -> str:
    """Return the first line of an error: torch's go on with advice."""
    return str(error).partition("\n")[0].strip(" .")


# Which tensors of the host were written since they were sent.

_SAMPLES = 4
"""How many values of each tensor are compared, about: enough to see a write that torch doesn't count."""


class _Seen(NamedTuple):
    """What tensors were like: versions and addresses, views of samples of some, and these samples' bits."""

    marks: list[tuple[int, int]]
    views: list[torch.Tensor]
    owners: torch.Tensor
    bits: torch.Tensor


class Written:
    """Finds out which tensors were written since they were sent last.

    torch counts operations in place, and assigning ``tensor.data`` moves a tensor. Writes through
    ``tensor.data``, or an array of NumPy, do neither: they are seen where they change some of a few values of
    a float32 tensor. Any thread may call it.

    Parameters
    ----------
    tensors
        On the host.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._tensors = tensors
        self._seen = self._look(None)

    @contextmanager
    def sending(self) -> Iterator[None]:
        """Take the tensors as they are for what the block sends; until it ends, ``find`` still finds them."""
        seen = self._look(self._seen)
        yield
        self._seen = seen

    def find(self) -> list[int]:
        """Return the numbers of the tensors that were written."""
        seen = self._seen
        moved = [
            number
            for number, (each, mark) in enumerate(zip(self._tensors, seen.marks, strict=True))
            if _mark(each) != mark
        ]
        if len(moved) == len(self._tensors):
            return moved
        changed = seen.owners[_bits(seen.views) != seen.bits]
        return sorted({*moved, *changed.tolist()})

    def _look(self, before: _Seen | None) -> _Seen:
        marks = [_mark(each) for each in self._tensors]
        if before is not None and [place for _, place in marks] == [place for _, place in before.marks]:
            views, owners = before.views, before.owners
        else:
            samples = [_samples(each) for each in self._tensors]
            views = [each for each in samples if each is not None]
            numbers = [number for number, each in enumerate(samples) if each is not None]
            counts = torch.tensor([each.numel() for each in views], dtype=torch.int64, device="cpu")
            owners = torch.tensor(numbers, dtype=torch.int64, device="cpu").repeat_interleave(counts)
        return _Seen(marks, views, owners, _bits(views))


def _mark(tensor: torch.Tensor) -> tuple[int, int]:
    return 0 if tensor.is_inference() else tensor._version, tensor.data_ptr()


def _samples(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return a view of some values, from the first to about the last."""
    if tensor.dtype != torch.float32 or not tensor.is_contiguous() or not tensor.numel():
        return None
    return tensor.detach().view(-1)[:: max(1, (tensor.numel() - 1) // (_SAMPLES - 1))]


def _bits(views: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return them as integers, of which a NaN equals itself."""
    if not views:
        return torch.empty(0, dtype=torch.int32, device="cpu")
    return torch.cat([*views]).view(torch.int32)
