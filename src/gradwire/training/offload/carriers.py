"""What carries a layer's weights to the device: a buffer at each end, and how bytes get in and out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import ClassVar

import torch

from gradwire.codecs.bitpack import BitPack
from gradwire.devices import Device
from gradwire.devices.cpu import fetch
from gradwire.entropy import DeltaDecoder, DeltaEncoder
from gradwire.entropy.delta import WordName
from gradwire.errors import TensorError
from gradwire.training.offload.unpack import bitunpack

_ALIGN = 16
"""Where a tensor's bytes begin: views of them as numbers, and vector loads, want that."""


class Carrier(ABC):
    """One layer's. ``pack`` fills ``host``; when the bytes are in ``on_device``, ``unpack`` reads them.

    Parameters
    ----------
    masters, replicas
        The layer's parameters at both ends, in one order. Those with one dimension, such as biases, travel as
        they are; the others are its *weights*.
    device
        Where the replicas live.
    capacities
        The most bytes that each of them takes.
    """

    on_host: ClassVar[bool] = False
    """Whether ``unpack`` runs on the host, which must wait for the bytes; else only the device must."""

    def __init__(
        self,
        masters: Sequence[torch.Tensor],
        replicas: Sequence[torch.Tensor],
        device: Device,
        capacities: Iterable[int],
    ) -> None:
        self._pairs = [*zip(masters, replicas, strict=True)]
        self._spans: list[tuple[int, int]] = []
        room = sum(map(_aligned, capacities))
        with torch.inference_mode(mode=False):
            self.host = device.pinned(room // 4).view(torch.uint8)
            self.on_device = device.zeros(room // 4).view(torch.uint8)

    def pack(self, bits: int, *, full: bool) -> int:
        """Fill ``host`` from the masters, in ``full`` where the device has nothing; return the bytes used."""
        self._begin(bits, full=full)
        self._spans, end = [], 0
        for number, (master, _) in enumerate(self._pairs):
            begin = _aligned(end)
            room = self.host[begin:]
            if master.dim() > 1:
                end = begin + self._pack(number, master.detach().reshape(-1), room)
            else:
                end = begin + master.nbytes
                fetch(room[: master.nbytes].view(torch.float32), master)
            self._spans.append((begin, end))
        return end

    def unpack(self) -> None:
        """Write the replicas by operations on the device."""
        for number, ((_, replica), (begin, end)) in enumerate(zip(self._pairs, self._spans, strict=True)):
            payload = self.on_device[begin:end]
            if replica.dim() > 1:
                self._unpack(number, payload, replica)
            else:
                replica.copy_(payload.view(torch.float32).view(replica.shape))

    @abstractmethod
    def _begin(self, bits: int, *, full: bool) -> None:
        """Begin a message of all weights."""

    @abstractmethod
    def _pack(self, number: int, weights: torch.Tensor, room: torch.Tensor) -> int:
        """Write weights to the front of ``room``; return the bytes used."""

    @abstractmethod
    def _unpack(self, number: int, payload: torch.Tensor, replica: torch.Tensor) -> None:
        """Write a replica from those bytes."""


class BitpackCarrier(Carrier):
    """Keeps the most significant bytes of every weight: approximate data transfer, as A2DTWP describes it."""

    def __init__(
        self, masters: Sequence[torch.Tensor], replicas: Sequence[torch.Tensor], device: Device
    ) -> None:
        super().__init__(masters, replicas, device, [max(each.nbytes, each.numel() + 1) for each in masters])
        self._codec = BitPack(4)

    def _begin(self, bits: int, *, full: bool) -> None:  # noqa: ARG002 - every message is full
        self._codec = BitPack(-(-bits // 8))

    def _pack(self, number: int, weights: torch.Tensor, room: torch.Tensor) -> int:  # noqa: ARG002
        return self._codec.encode(weights, room).numel()

    def _unpack(self, number: int, payload: torch.Tensor, replica: torch.Tensor) -> None:  # noqa: ARG002
        weights = replica if replica.is_contiguous() else torch.zeros_like(replica).contiguous()
        bitunpack(payload, weights, self._codec.kept_bytes)
        if weights is not replica:
            replica.copy_(weights)


class DeltaCarrier(Carrier):
    """Carries what changed of every weight; the device keeps the words that the next change starts from.

    Raises ``TensorError`` for an accelerator: no kernel decodes deltas there yet.
    """

    on_host = True

    def __init__(
        self,
        masters: Sequence[torch.Tensor],
        replicas: Sequence[torch.Tensor],
        device: Device,
        dtype: WordName,
        checked_every: int,
    ) -> None:
        strange = next((each for each in replicas if not each.is_cpu), None)
        if strange is not None:
            raise TensorError(
                "the policy delta decodes in memory that the CPU reaches, but the replica is on "
                f"{strange.device}; use Static or AWP there"
            )
        weights = [number for number, each in enumerate(masters) if each.dim() > 1]
        self._encoders = {number: DeltaEncoder(masters[number], dtype) for number in weights}
        self._decoders = {number: DeltaDecoder(dtype) for number in weights}
        self._words = {number: _words(replicas[number], device, dtype) for number in weights}
        capacities = [
            self._encoders[number].max_nbytes if number in self._encoders else each.nbytes
            for number, each in enumerate(masters)
        ]
        super().__init__(masters, replicas, device, capacities)
        self._checked_every, self._version, self._full = checked_every, 0, True

    def _begin(self, bits: int, *, full: bool) -> None:  # noqa: ARG002 - the dtype says how many
        self._version, self._full = self._version + 1, full

    def _pack(self, number: int, weights: torch.Tensor, room: torch.Tensor) -> int:
        checked = self._version % self._checked_every == 0
        encoder = self._encoders[number]
        return encoder.encode(weights, self._version, full=self._full, checked=checked, out=room).numel()

    def _unpack(self, number: int, payload: torch.Tensor, replica: torch.Tensor) -> None:
        """Decode, and widen words of half the precision."""
        self._decoders[number].apply(payload, self._words[number])
        replica.copy_(self._words[number].view(replica.shape))


def _aligned(nbytes: int) -> int:
    """Return where the next tensor may begin."""
    return -(-nbytes // _ALIGN) * _ALIGN


def _words(replica: torch.Tensor, device: Device, dtype: WordName) -> torch.Tensor:
    """Return memory on the device for the words of a replica."""
    count = replica.numel()
    with torch.inference_mode(mode=False):
        floats = device.zeros(count if dtype == "fp32" else -(-count // 2))
    return floats if dtype == "fp32" else floats.view(torch.bfloat16)[:count]
