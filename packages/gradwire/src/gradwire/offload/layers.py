"""A model's layers: which parameters travel together, which modules read them, and what was moved of each."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass, field
from typing import NamedTuple

import torch
from torch import nn

from gradwire.errors import SpecError, TensorError


@dataclass
class Layer:
    """Parameters that travel together.

    ``name`` is that of their module: a layer, or a block such as a residual one; empty for the model.
    """

    name: str
    masters: list[nn.Parameter] = field(default_factory=list)  # on the host
    replicas: list[nn.Parameter] = field(default_factory=list)  # on the device, in the same order
    readers: list[nn.Module] = field(default_factory=list)  # the replica's modules that own one of them

    @property
    def weights(self) -> list[nn.Parameter]:
        """The masters with more than one dimension, which policies are about."""
        return [each for each in self.masters if each.dim() > 1]

    @property
    def count(self) -> int:
        """The number of values that travel."""
        return sum(each.numel() for each in self.masters)


def layers_of(model: nn.Module, replica: nn.Module, blocks: Sequence[str] = ()) -> list[Layer]:
    """Return the layers in the order of the model's modules, one for each module with parameters of its own.

    The parameters within each of ``blocks``, names of modules, are one layer. A parameter that several
    modules share belongs to the first. Raises ``SpecError`` for a block that isn't there.
    """
    modules = dict(model.named_modules(remove_duplicate=False))
    readers = dict(replica.named_modules(remove_duplicate=False))
    unknown = next((name for name in blocks if name not in modules), None)
    if unknown is not None:
        raise SpecError(f"a block must be the name of one of the model's modules, but {unknown!r} isn't")
    layers: dict[str, Layer] = {}
    homes: dict[nn.Parameter, Layer] = {}
    for name, module in modules.items():
        home = next((block for block in blocks if f"{name}.".startswith(f"{block}.")), name)
        replicas = dict(readers[name].named_parameters(recurse=False))
        for parameter, master in module.named_parameters(recurse=False):
            if master not in homes:
                homes[master] = layers.setdefault(home, Layer(home))
                homes[master].masters.append(master)
                homes[master].replicas.append(replicas[parameter])
            if readers[name] not in homes[master].readers:
                homes[master].readers.append(readers[name])
    return [*layers.values()]


def check_masters(model: nn.Module) -> None:
    """Raise ``TensorError`` unless a model can be the master: it has float32 parameters on the CPU."""
    parameters = dict(model.named_parameters())
    if not parameters:
        raise TensorError(
            "HostOffload expected a model with parameters, got one without; pass the model that is trained"
        )
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


# The ledger of an offload: bytes of each layer, and seconds.

_counting = threading.Lock()
"""The lock of all counts, which an offload's threads and those that drive its replicas add to."""


@dataclass
class LayerCounts:
    """One layer's bytes; counts add up.

    A message has up to 15 bytes more between two parameters.
    """

    sends: int = 0  # of its weights to a device
    sent_nbytes: int = 0  # of payload
    float32_nbytes: int = 0  # of the same values in float32
    gradient_nbytes: int = 0  # that came back


@dataclass
class OffloadLedger:
    """Bytes and seconds of one ``HostOffload`` since it was made.

    Attributes
    ----------
    layers
        By name.
    norm_s, pack_s
        Seconds of norms, most of which are of packing in the same pass, and of packing alone, on the
        offload's own thread, with all that the machine did meanwhile.
    packing_cpu_s
        Of both, the time that this thread had a CPU. Other threads that it packs with aren't counted.
    transfer_s
        Seconds from the first copy of a send to the end of its last, where they are measured
        (``timed=True``); packing of the later layers lies within, and so do norms that a policy waits for.
    exposed_s
        Seconds for which forward passes stood still until weights were packed and, where the host waits for
        that, copied.
    decode_s
        Seconds in which another thread decoded deltas, where the host does that.
    unpack_s
        Seconds in which the training thread unpacked, or queued that on an accelerator.
    gradient_wait_s
        Seconds for which backward passes stood still at their end, until the gradients were on the host.
    """

    layers: dict[str, LayerCounts] = field(default_factory=dict)
    norm_s: float = 0.0
    pack_s: float = 0.0
    packing_cpu_s: float = 0.0
    transfer_s: float = 0.0
    exposed_s: float = 0.0
    decode_s: float = 0.0
    unpack_s: float = 0.0
    gradient_wait_s: float = 0.0

    @property
    def total(self) -> LayerCounts:
        """The sum over the layers; ``sends`` too."""
        return LayerCounts(*map(sum, zip(*map(astuple, self.layers.values()), strict=True)))

    @property
    def ratio(self) -> float:
        """The compression ratio of weights, against float32; NaN before the first send."""
        total = self.total
        return total.float32_nbytes / total.sent_nbytes if total.sent_nbytes else float("nan")

    def sent(self, layer: str, nbytes: int, count: int) -> None:
        """Count a send of ``count`` values in ``nbytes``."""
        row = self.layers[layer]
        with _counting:
            row.sends += 1
            row.sent_nbytes += nbytes
            row.float32_nbytes += 4 * count

    def returned(self, layer: str, nbytes: int) -> None:
        """Count bytes of gradient that came back."""
        with _counting:
            self.layers[layer].gradient_nbytes += nbytes

    @contextmanager
    def clocked(self, name: str) -> Iterator[None]:
        """Add the seconds of a block to the field ``name``."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.spent(name, time.perf_counter() - begin)

    def spent(self, name: str, seconds: float) -> None:
        """Add seconds to the field ``name``."""
        with _counting:
            setattr(self, name, getattr(self, name) + seconds)


# Tensors of the host that were written since they were sent.

_SAMPLES = 4
"""About this many values of each tensor are compared: enough to see a write that torch doesn't count."""


class _Snapshot(NamedTuple):
    """The state of tensors: versions and addresses, views of samples of some, and these samples' bits."""

    marks: list[tuple[int, int]]
    views: list[torch.Tensor]
    owners: torch.Tensor
    bits: torch.Tensor


class Written:
    """A detector of writes to tensors of the host since they were sent last.

    torch counts operations in place, and assigning ``tensor.data`` moves a tensor. Writes through
    ``tensor.data``, or an array of NumPy, do neither: they are seen where they change some of a few values of
    a float32 tensor. Any thread may call it.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._tensors = tensors
        self._sent = self._snapshot(None)

    @contextmanager
    def sending(self) -> Iterator[None]:
        """Take the tensors as they are for what the block sends; until it ends, ``find`` still finds them."""
        sent = self._snapshot(self._sent)
        yield
        self._sent = sent

    def find(self) -> list[int]:
        """Return the numbers of the tensors that were written."""
        sent = self._sent
        pairs = enumerate(zip(self._tensors, sent.marks, strict=True))
        moved = [number for number, (each, mark) in pairs if _mark(each) != mark]
        if len(moved) == len(self._tensors):
            return moved
        changed = sent.owners[_bits(sent.views) != sent.bits]
        return sorted({*moved, *changed.tolist()})

    def _snapshot(self, before: _Snapshot | None) -> _Snapshot:
        marks = [_mark(each) for each in self._tensors]
        if before is not None and [place for _, place in marks] == [place for _, place in before.marks]:
            return _Snapshot(marks, before.views, before.owners, _bits(before.views))
        samples = [(number, _samples(each)) for number, each in enumerate(self._tensors)]
        views = [(number, each) for number, each in samples if each is not None]
        owners = [number for number, each in views for _ in range(each.numel())]
        found = [each for _, each in views]
        return _Snapshot(marks, found, torch.tensor(owners, dtype=torch.int64, device="cpu"), _bits(found))


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
