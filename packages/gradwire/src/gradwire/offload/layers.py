"""A model's layers with masters and replicas, the ledger of moved bytes, and the detector of writes."""

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


@dataclass(eq=False)
class Layer:
    """A layer: parameters that are sent together, those of the module ``name`` (empty for the model)."""

    name: str
    masters: list[nn.Parameter] = field(default_factory=list)  # on the host
    replicas: list[nn.Parameter] = field(default_factory=list)  # on the device, in the same order
    readers: list[nn.Module] = field(default_factory=list)  # the replica's modules that own a parameter

    @property
    def weights(self) -> list[nn.Parameter]:
        """The masters with more than one dimension, for which policies choose bits."""
        return [each for each in self.masters if each.dim() > 1]

    @property
    def count(self) -> int:
        """The number of values in all parameters."""
        return sum(each.numel() for each in self.masters)


def layers_of(model: nn.Module, replica: nn.Module, blocks: Sequence[str] = ()) -> list[Layer]:
    """Return the layers in the order of the model's modules, one for each module that owns parameters.

    ``blocks`` contains names of modules; all parameters within such a module are one layer. A parameter that
    several modules share belongs to the first of these modules. Raises ``SpecError`` if a block is unknown.
    """
    modules = dict(model.named_modules(remove_duplicate=False))
    readers = dict(replica.named_modules(remove_duplicate=False))
    if (unknown := next((name for name in blocks if name not in modules), None)) is not None:
        raise SpecError(
            f"blocks: expected names of the model's modules, got {unknown!r}; pass names of "
            "model.named_modules()"
        )
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
    """Raise ``TensorError`` unless a model's parameters are float32 on the CPU, as masters must be."""
    if not (parameters := dict(model.named_parameters())):
        raise TensorError(
            "HostOffload: expected a model with parameters, got one without parameters; pass the model to "
            "train"
        )
    for name, each in parameters.items():
        if each.device.type != "cpu":
            raise TensorError(
                f"HostOffload: expected master weights on the host, got {name} on {each.device}; pass the "
                "model before model.to(device), and pass the device to HostOffload"
            )
        if each.dtype != torch.float32:
            raise TensorError(
                f"expected float32 master weights, got {each.dtype} for {name}; pass model.float(), and use "
                "torch.autocast for a forward pass in half precision"
            )


def check_optimizer(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    """Raise ``SpecError`` if an optimizer updates a parameter that isn't the model's."""
    masters = {*model.parameters()}
    updated = (each for group in optimizer.param_groups for each in group["params"])
    if (foreign := next((each for each in updated if each not in masters), None)) is not None:
        raise SpecError(
            "expected an optimizer of this model's parameters, got one with a parameter of another model, of "
            f"shape {tuple(foreign.shape)}; create the optimizer from model.parameters()"
        )


# The ledger of an offload: the bytes that each layer moved, and the seconds of each phase.

_counting = threading.Lock()  # the lock for all ledgers' counts, because several threads increment the counts


@dataclass
class LayerCounts:
    """The bytes of one layer, accumulated over all sends, without the bytes that align parameters."""

    sends: int = 0  # the number of times that the layer was sent to a device
    sent_nbytes: int = 0  # bytes of payload
    float32_nbytes: int = 0  # bytes of the same values in float32
    gradient_nbytes: int = 0  # bytes of gradients returned from a device


@dataclass
class OffloadLedger:
    """The bytes and wall-clock seconds of one ``HostOffload`` since its construction.

    Attributes
    ----------
    layers
        The counts of each layer, by name.
    norm_s, pack_s
        Seconds in which the packing thread computed norms, usually packing in the same pass; and seconds in
        which it only packed.
    packing_cpu_s
        CPU seconds of the packing thread, without its helper threads, for norms and packing.
    transfer_s
        Seconds from the start of a send's first copy to the end of the send's last copy, measured only with
        ``timed=True``. They include the packing of later layers, and norms that a policy waits for.
    exposed_s
        Seconds in which forward passes waited for packing and, if the host waits for copies, for copies.
    decode_s
        Seconds in which the receiving thread decoded deltas, if the host decodes deltas.
    unpack_s
        Seconds in which the training thread unpacked weights, or queued the unpacking on an accelerator.
    gradient_wait_s
        Seconds in which backward passes waited at their end until the gradients were on the host.
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
        """The sums of all counts over the layers, including ``sends``."""
        return LayerCounts(*map(sum, zip(*map(astuple, self.layers.values()), strict=True)))

    @property
    def ratio(self) -> float:
        """The compression ratio of sent weights: float32 bytes over sent bytes; NaN before the first send."""
        total = self.total
        return total.float32_nbytes / total.sent_nbytes if total.sent_nbytes else float("nan")

    def sent(self, layer: str, nbytes: int, count: int) -> None:
        """Record a send of ``count`` values in ``nbytes`` bytes."""
        row = self.layers[layer]
        with _counting:
            row.sends += 1
            row.sent_nbytes += nbytes
            row.float32_nbytes += 4 * count

    def returned(self, layer: str, nbytes: int) -> None:
        """Record the bytes of a gradient that returned from a device."""
        with _counting:
            self.layers[layer].gradient_nbytes += nbytes

    @contextmanager
    def clocked(self, name: str) -> Iterator[None]:
        """Add the seconds of a ``with`` block to the ledger's field ``name``."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.spent(name, time.perf_counter() - begin)

    def spent(self, name: str, seconds: float) -> None:
        """Add seconds to the ledger's field ``name``."""
        with _counting:
            setattr(self, name, getattr(self, name) + seconds)


# The detection of writes to host tensors after their last send.

_SAMPLES = 4
"""The approximate number of values to compare per tensor, to detect most writes that torch doesn't count."""


class _Snapshot(NamedTuple):
    """The state of tensors at one time: versions and addresses, views of samples, and the samples' bits."""

    marks: list[tuple[int, int]]
    views: list[torch.Tensor]
    owners: torch.Tensor  # the number of each sample's tensor
    bits: torch.Tensor


class WriteDetector:
    """A detector of writes to host tensors since they were last sent.

    An in-place operation increases a tensor's version, and an assignment to ``tensor.data`` changes its
    address. A write through ``tensor.data`` or a NumPy array changes neither; the detector finds it only if
    it changes one of a few sampled values of a float32 tensor. Any thread may use a detector.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._tensors = tensors
        self._sent = self._snapshot(None)

    @contextmanager
    def sending(self) -> Iterator[None]:
        """Run a ``with`` block that sends; if it raises no error, mark the values at its start as sent."""
        sent = self._snapshot(self._sent)
        yield
        self._sent = sent

    def find(self) -> list[int]:
        """Return the indices of the tensors that were written since they were last sent."""
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
    """Return a view of values sampled over the whole tensor, or None without float32 values."""
    if tensor.dtype != torch.float32 or not tensor.is_contiguous() or not tensor.numel():
        return None
    return tensor.detach().view(-1)[:: max(1, (tensor.numel() - 1) // (_SAMPLES - 1))]


def _bits(views: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the bits of samples as integers, so that equal NaNs compare as equal."""
    if not views:
        return torch.empty(0, dtype=torch.int32, device="cpu")
    return torch.cat([*views]).view(torch.int32)
