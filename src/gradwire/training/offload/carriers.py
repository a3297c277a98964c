"""What carries a layer's weights to devices: a buffer at each end, and how bytes get in and out."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch

from gradwire import _native
from gradwire._native import Packed, Pass
from gradwire.codecs.bitpack import BitPack
from gradwire.devices import Device
from gradwire.entropy import DeltaDecoder, DeltaEncoder
from gradwire.entropy.delta import WordName
from gradwire.entropy.device_delta import DeviceDeltaDecoder
from gradwire.training.offload.unpack import bitunpack

_WHOLE = BitPack(4)
_ALIGN = 16
"""Where a tensor's bytes begin: views of them as numbers, and vector loads, want that."""


class End(NamedTuple):
    """Where a layer goes."""

    replicas: Sequence[torch.Tensor]
    device: Device


class Transfer(NamedTuple):
    """What a layer's transfers have to do with.

    Attributes
    ----------
    masters
        The layer's parameters on the host.
    ends
        Where they go, in the same order. All ends get the same bytes.
    memory
        Makes so many float32 on the host, from which devices copy.
    """

    masters: Sequence[torch.Tensor]
    ends: Sequence[End]
    memory: Callable[[int], torch.Tensor]


class Look(NamedTuple):
    """What ``Carrier.look`` saw.

    Attributes
    ----------
    norm
        The l2 norm of the weights.
    packed_nbytes
        The bytes of the message that was packed meanwhile; None where none was.
    """

    norm: float
    packed_nbytes: int | None


class Carrier(ABC):
    """One layer's. ``pack`` fills ``host``; ``unpack`` reads the bytes that have come to an end.

    Parameters with one dimension, such as biases, travel as they are; the others are a layer's *weights*.

    Parameters
    ----------
    transfer
        What is carried, and where to.
    capacities
        The most bytes that each of the masters takes.

    Attributes
    ----------
    host
        Where a message is packed.
    on_device
        Its bytes at each end.
    """

    def __init__(self, transfer: Transfer, capacities: Iterable[int]) -> None:
        self._masters, self._ends, memory = transfer
        self._spans: list[tuple[int, int]] = []
        room = sum(map(_aligned, capacities))
        with torch.inference_mode(mode=False):
            self.host = memory(room // 4).view(torch.uint8)
            self.on_device = [each.device.zeros(room // 4).view(torch.uint8) for each in self._ends]

    def on_host(self, end: int) -> bool:  # noqa: ARG002 - for DeltaCarrier
        """Return whether ``unpack`` runs on the host, so that it is the host that must wait for the bytes."""
        return False

    @abstractmethod
    def pack(self, bits: int, *, full: bool) -> int:
        """Fill ``host`` from the masters, in ``full`` where devices have nothing; return the bytes used."""

    def look(self, bits: int | None) -> Look:  # noqa: ARG002 - for BitpackCarrier
        """Return the norm of the weights; unless ``bits`` are None, ``host`` may be filled meanwhile."""
        weights = [_flat(each) for each in self._masters if each.dim() > 1]
        squares = [_native.sum_norms(Pass.LOOK, each, each) for each in weights]
        return Look(math.sqrt(math.fsum(squares)), None)

    def _fill(self, pack: Callable[[int, torch.Tensor, torch.Tensor], int]) -> int:
        """Fill ``host``; ``pack`` gets a number, weights, and room for them, and returns the bytes used."""
        self._spans, end = [], 0
        for number, master in enumerate(self._masters):
            begin = _aligned(end)
            chosen = pack if master.dim() > 1 else _pack_whole
            end = begin + chosen(number, _flat(master), self.host[begin:])
            self._spans.append((begin, end))
        return end

    def receive(self, end: int) -> None:  # noqa: B027 - most leave everything to the device
        """Do what the host can do as soon as an end has the bytes, on another thread than ``unpack``'s."""

    def unpack(self, end: int) -> None:
        """Write the replicas of an end by operations on its device."""
        for number, (replica, span) in enumerate(zip(self._ends[end].replicas, self._spans, strict=True)):
            payload = self.on_device[end][slice(*span)]
            if replica.dim() > 1:
                self._unpack(end, number, payload, replica)
            else:
                replica.copy_(payload.view(torch.float32).view(replica.shape))

    @abstractmethod
    def _unpack(self, end: int, number: int, payload: torch.Tensor, replica: torch.Tensor) -> None:
        """Write a replica from those bytes."""


class BitpackCarrier(Carrier):
    """Keeps the most significant bytes of every weight: approximate data transfer, as A2DTWP describes it."""

    def __init__(self, transfer: Transfer) -> None:
        super().__init__(transfer, [max(each.nbytes, each.numel() + 1) for each in transfer.masters])
        self._kept_bytes = 4

    def pack(self, bits: int, *, full: bool) -> int:  # noqa: ARG002 - every message is full
        """Fill ``host`` with so many bits of each weight."""
        self._write(bits, summed=False)
        return self._spans[-1][1]

    def look(self, bits: int | None) -> Look:
        """Return the norm, after the one pass over the masters in which they were packed, too."""
        if bits is None:
            return super().look(None)
        return Look(math.sqrt(math.fsum(self._write(bits, summed=True))), self._spans[-1][1])

    def _write(self, bits: int, *, summed: bool) -> list[float]:
        """Fill ``host``, and return sums of squares, of the weights alone."""
        codec = BitPack(-(-bits // 8))
        self._kept_bytes, self._spans, packed, end = codec.kept_bytes, [], list[Packed](), 0
        for master in self._masters:
            begin, is_weight = _aligned(end), master.dim() > 1
            chosen = codec if is_weight else _WHOLE
            end = begin + chosen.max_nbytes(master.numel())
            self._spans.append((begin, end))
            packed.append(Packed(_flat(master), begin, 8 * chosen.kept_bytes, summed and is_weight))
        return _native.pack_message(packed, self.host)

    def _unpack(self, end: int, number: int, payload: torch.Tensor, replica: torch.Tensor) -> None:  # noqa: ARG002
        weights = replica if replica.is_contiguous() else torch.zeros_like(replica).contiguous()
        bitunpack(payload, weights, self._kept_bytes)
        if weights is not replica:
            replica.copy_(weights)


class DeltaCarrier(Carrier):
    """Carries what changed of every weight; the device keeps the words that the next change starts from.

    Accelerators decode by themselves. Raises ``MissingPackageError`` where one does without Triton.
    """

    def __init__(self, transfer: Transfer, dtype: WordName, checked_every: int) -> None:
        masters, ends, _ = transfer
        weights = [number for number, each in enumerate(masters) if each.dim() > 1]
        self._encoders = {number: DeltaEncoder(masters[number], dtype) for number in weights}
        self._here = [all(replica.is_cpu for replica in each.replicas) for each in ends]
        self._decoders = [
            {number: DeltaDecoder(dtype) if here else DeviceDeltaDecoder(dtype) for number in weights}
            for here in self._here
        ]
        self._received = [False] * len(ends)
        self._words = [
            {number: _words(each.replicas[number], each.device, dtype) for number in weights} for each in ends
        ]
        capacities = [
            self._encoders[number].max_nbytes if number in self._encoders else each.nbytes
            for number, each in enumerate(masters)
        ]
        super().__init__(transfer, capacities)
        self._checked_every, self._version = checked_every, 0

    def pack(self, bits: int, *, full: bool) -> int:  # noqa: ARG002 - the dtype says how many
        """Fill ``host`` with what changed since the last message, or with all words."""
        self._version += 1
        checked = self._version % self._checked_every == 0

        def pack(number: int, weights: torch.Tensor, room: torch.Tensor) -> int:
            encoder = self._encoders[number]
            return encoder.encode(weights, self._version, full=full, checked=checked, out=room).numel()

        return self._fill(pack)

    def on_host(self, end: int) -> bool:
        """Return whether the end's memory is the host's, as that of a simulated device."""
        return self._here[end]

    def receive(self, end: int) -> None:
        """Decode, where the end's memory is the host's."""
        for number, decoder in self._decoders[end].items():
            if isinstance(decoder, DeltaDecoder):
                payload = self.on_device[end][slice(*self._spans[number])]
                decoder.apply(payload, self._words[end][number])
        self._received[end] = True

    def unpack(self, end: int) -> None:
        """Write the replicas, and decode what ``receive`` hasn't."""
        if not self._received[end]:
            self.receive(end)
        self._received[end] = False
        super().unpack(end)

    def _unpack(self, end: int, number: int, payload: torch.Tensor, replica: torch.Tensor) -> None:
        """Widen words of half the precision; an accelerator decodes them before."""
        words, decoder = self._words[end][number], self._decoders[end][number]
        if not isinstance(decoder, DeltaDecoder):
            decoder.apply(payload, self.host[slice(*self._spans[number])], words)
        replica.copy_(words.view(replica.shape))


def _flat(master: torch.Tensor) -> torch.Tensor:
    return master.detach().reshape(-1)


def _pack_whole(number: int, values: torch.Tensor, room: torch.Tensor) -> int:  # noqa: ARG001
    """Write values as they are."""
    return _WHOLE.encode(values, room).numel()


def _aligned(nbytes: int) -> int:
    """Return where the next tensor may begin."""
    return -(-nbytes // _ALIGN) * _ALIGN


def _words(replica: torch.Tensor, device: Device, dtype: WordName) -> torch.Tensor:
    """Return memory on the device for the words of a replica."""
    count = replica.numel()
    with torch.inference_mode(mode=False):
        floats = device.zeros(count if dtype == "fp32" else -(-count // 2))
    return floats if dtype == "fp32" else floats.view(torch.bfloat16)[:count]
