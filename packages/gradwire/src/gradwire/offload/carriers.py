"""What carries layers' weights to devices: a buffer at each end, and how bytes get in and out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import torch

from gradwire import _native
from gradwire._native import Packed, Pass
from gradwire.codecs.bitpack import BitPack
from gradwire.devices import Device
from gradwire.entropy import DeltaDecoder, DeltaEncoder
from gradwire.entropy.delta import WordName, apply_message, encode_message
from gradwire.entropy.device_delta import DeviceDeltaDecoder

# Bitunpack: the most significant bytes of floats, on the device, back to float32.
#
# These are torch's operations on integers and views, so that every device has them. Bytes are little-
# endian.

_NAN = 0x7FC0_0000
"""The bits that make a NaN of any float."""


def bitunpack(payload: torch.Tensor, weights: torch.Tensor, kept_bytes: int) -> None:
    """Write what a payload of ``bitpack`` holds into ``weights`` (contiguous float32, on the same device).

    The result has the bits that the codec's ``decode`` would write: the lower bytes are 0, and for one byte
    a chunk with a non-finite value becomes NaN as a whole.
    """
    flat, count = weights.view(-1), weights.numel()
    if not count:
        return  # torch views no bytes of some empty tensors
    words = flat.view(torch.int32)
    if kept_bytes == 4:
        flat.copy_(payload[: 4 * count].view(torch.float32))
    elif kept_bytes == 3:  # bytes to bytes: to gather integers of three takes ten times as long on a CPU
        of_words = flat.view(torch.uint8).view(count, 4)
        of_words[:, 0] = 0
        of_words[:, 1:] = payload[: 3 * count].view(count, 3)
    elif kept_bytes == 2:
        words.copy_(payload[: 2 * count].view(torch.int16)).bitwise_left_shift_(16)
    else:
        words.copy_(payload[:count]).bitwise_left_shift_(24)
        words.bitwise_or_((payload[count : count + 1] != 0).to(torch.int32) * _NAN)


_KEEPS = {8 * kept: BitPack(kept) for kept in (1, 2, 3, 4)}
_WHOLE = _KEEPS[32]
_ALIGN = 16
"""Where a tensor's bytes begin: views of them as numbers, and vector loads, want that."""


class End(NamedTuple):
    """Where layers go."""

    replicas: Sequence[torch.Tensor]
    device: Device


class Transfer(NamedTuple):
    """What the transfers of a layer, or of several small ones, have to do with.

    Attributes
    ----------
    masters
        The layers' parameters on the host.
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
    squares
        The sum of the squares of the weights of each master that has some, by its number.
    packed_nbytes
        The bytes of the message that was packed meanwhile; None where none was.
    """

    squares: Mapping[int, float]
    packed_nbytes: int | None


Bits = Mapping[int, int]
"""The bits of each master that a message brings, by its number in the transfer."""


class Carrier(ABC):
    """One transfer's. ``pack`` fills ``host``; ``unpack`` reads the bytes that have come to an end.

    Parameters with one dimension, such as biases, travel as they are; the others are *weights*.

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
    spans
        Where each master that it brings begins and ends, by number, in the order of the message.
    """

    def __init__(self, transfer: Transfer, capacities: Iterable[int]) -> None:
        self._masters, self._ends, memory = transfer
        self.spans: dict[int, tuple[int, int]] = {}
        self._views: dict[tuple[int, int], tuple[int, torch.Tensor]] = {}
        room = sum(map(aligned, capacities))
        with torch.inference_mode(mode=False):
            self.host = memory(room // 4).view(torch.uint8)
            self.on_device = [each.device.zeros(room // 4).view(torch.uint8) for each in self._ends]

    def on_host(self, end: int) -> bool:  # noqa: ARG002 - for DeltaCarrier
        """Return whether ``unpack`` runs on the host, so that it is the host that must wait for the bytes."""
        return False

    @abstractmethod
    def pack(self, bits: Bits, *, full: bool) -> int:
        """Fill ``host`` from these masters, in ``full`` where devices have nothing; return the bytes used."""

    def look(self, bits: Bits | None) -> Look:  # noqa: ARG002 - for BitpackCarrier
        """Return the squares of all weights; unless ``bits`` are None, ``host`` may be filled meanwhile."""
        return Look(
            {number: _squares(each) for number, each in enumerate(self._masters) if each.dim() > 1}, None
        )

    def receive(self, end: int) -> None:  # noqa: B027 - most leave everything to the device
        """Do what the host can do as soon as an end has the bytes, on another thread than ``unpack``'s."""

    def unpack(self, end: int) -> None:
        """Write the replicas of an end by operations on its device."""
        replicas = self._ends[end].replicas
        for number, span in self.spans.items():
            replica = replicas[number]
            if replica.dim() > 1:
                self._unpack(end, number, span, replica)
            else:
                replica.copy_(self._whole(end, number, span[0], replica))

    def _whole(self, end: int, number: int, begin: int, replica: torch.Tensor) -> torch.Tensor:
        """Return a view of numbers that travelled as they are: mostly where they were the last time."""
        known, view = self._views.get((end, number), (-1, replica))
        if known != begin:
            view = self.on_device[end][begin : begin + replica.nbytes].view(torch.float32).view(replica.shape)
            self._views[end, number] = begin, view
        return view

    @abstractmethod
    def _unpack(self, end: int, number: int, span: tuple[int, int], replica: torch.Tensor) -> None:
        """Write a replica from those bytes."""


class BitpackCarrier(Carrier):
    """Keeps the most significant bytes of every weight: approximate data transfer, as A2DTWP describes it."""

    def __init__(self, transfer: Transfer) -> None:
        super().__init__(transfer, [max(each.nbytes, each.numel() + 1) for each in transfer.masters])
        self._kept_bytes = dict[int, int]()

    def pack(self, bits: Bits, *, full: bool) -> int:  # noqa: ARG002 - every message is full
        """Fill ``host`` with so many bits of each weight."""
        self._write(bits, summed=False)
        return _end_of(self.spans)

    def look(self, bits: Bits | None) -> Look:
        """Return the squares, after the one pass over the masters in which they were packed, too."""
        if bits is None:
            return super().look(None)
        squares = self._write(bits, summed=True)
        for number, master in enumerate(self._masters):
            if master.dim() > 1 and number not in squares:  # the message doesn't bring it
                squares[number] = _squares(master)
        return Look(squares, _end_of(self.spans))

    def _write(self, bits: Bits, *, summed: bool) -> dict[int, float]:
        """Fill ``host``, and return the squares of the weights, if they are to be ``summed``."""
        self.spans, packed, end = {}, list[Packed](), 0
        for number, wanted in bits.items():
            master, begin = self._masters[number], aligned(end)
            is_weight = master.dim() > 1
            codec = _KEEPS[-(-wanted // 8) * 8] if is_weight else _WHOLE
            end = begin + codec.max_nbytes(master.numel())
            self.spans[number], self._kept_bytes[number] = (begin, end), codec.kept_bytes
            packed.append(Packed(_flat(master), begin, 8 * codec.kept_bytes, summed and is_weight))
        sums = zip(bits, packed, _native.pack_message(packed, self.host), strict=True)
        return {number: squares for number, each, squares in sums if each.summed}

    def _unpack(self, end: int, number: int, span: tuple[int, int], replica: torch.Tensor) -> None:
        weights = replica if replica.is_contiguous() else torch.zeros_like(replica).contiguous()
        bitunpack(self.on_device[end][slice(*span)], weights, self._kept_bytes[number])
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
            {number: DeltaDecoder(dtype) for number in weights} if here else {} for here in self._here
        ]
        self._on_device = [
            {} if here else {number: DeviceDeltaDecoder(dtype) for number in weights} for here in self._here
        ]
        self._received = [False] * len(ends)
        self._words = [
            {number: _words(each.replicas[number], each.device, dtype) for number in weights} for each in ends
        ]
        self._shaped = [
            {number: words[number].view(masters[number].shape) for number in weights} for words in self._words
        ]
        capacities = [
            self._encoders[number].max_nbytes if number in self._encoders else each.nbytes
            for number, each in enumerate(masters)
        ]
        super().__init__(transfer, capacities)
        self._dtype: WordName = dtype
        self._checked_every, self._version = checked_every, 0

    def pack(self, bits: Bits, *, full: bool) -> int:
        """Fill ``host`` with what changed since the last message, or with all words.

        The dtype says how many bits. What travels as it is goes first: its place then doesn't change.
        """
        self._version += 1
        order = sorted(bits, key=lambda number: number in self._encoders)
        spans = encode_message(
            [_flat(self._masters[number]) for number in order],
            [self._encoders.get(number) for number in order],
            self._version,
            self.host,
            self._dtype,
            full=full,
            checked=self._version % self._checked_every == 0,
            align=_ALIGN,
        )
        self.spans = dict(zip(order, spans, strict=True))
        return _end_of(self.spans)

    def on_host(self, end: int) -> bool:
        """Return whether there is something to decode, in the host's memory, as a simulated device has it."""
        return self._here[end] and bool(self._encoders)

    def receive(self, end: int) -> None:
        """Decode, where the end's memory is the host's."""
        decoders = self._decoders[end]
        coming = [number for number in self.spans if number in decoders]
        if coming:
            apply_message(
                self.on_device[end],
                [self.spans[number] for number in coming],
                [decoders[number] for number in coming],
                [self._words[end][number] for number in coming],
            )
        self._received[end] = True

    def unpack(self, end: int) -> None:
        """Write the replicas, and decode what ``receive`` hasn't."""
        if not self._received[end]:
            self.receive(end)
        self._received[end] = False
        super().unpack(end)

    def _unpack(self, end: int, number: int, span: tuple[int, int], replica: torch.Tensor) -> None:
        """Widen words of half the precision; an accelerator decodes them before."""
        if not self._here[end]:
            payload, copy = self.on_device[end][slice(*span)], self.host[slice(*span)]
            self._on_device[end][number].apply(payload, copy, self._words[end][number])
        replica.copy_(self._shaped[end][number])


def _flat(master: torch.Tensor) -> torch.Tensor:
    flat = master.detach()  # which keeps the memory, where another thread gives the master other
    return flat if flat.dim() == 1 and flat.is_contiguous() else flat.reshape(-1)


def _squares(master: torch.Tensor) -> float:
    flat = _flat(master)
    return _native.sum_norms(Pass.LOOK, flat, flat)


def _end_of(spans: Mapping[int, tuple[int, int]]) -> int:
    """Return the bytes of a message."""
    return max(end for _, end in spans.values())


def aligned(nbytes: int) -> int:
    """Return where the next tensor may begin."""
    return -(-nbytes // _ALIGN) * _ALIGN


def _words(replica: torch.Tensor, device: Device, dtype: WordName) -> torch.Tensor:
    """Return memory on the device for the words of a replica."""
    count = replica.numel()
    with torch.inference_mode(mode=False):
        floats = device.zeros(count if dtype == "fp32" else -(-count // 2))
    return floats if dtype == "fp32" else floats.view(torch.bfloat16)[:count]
