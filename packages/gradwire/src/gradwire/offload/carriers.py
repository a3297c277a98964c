"""The carriers, which pack layers' weights into messages on the host and unpack them on devices."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import torch

from gradwire import _native
from gradwire._native import Pass
from gradwire._native.tensors import Packed
from gradwire.codecs.truncate import BitPack
from gradwire.devices import Device, Event, device_of, on_host
from gradwire.entropy import DeltaDecoder, DeltaEncoder
from gradwire.entropy.delta import DeltaHeader, WordName, apply_message, encode_message
from gradwire.errors import PayloadError
from gradwire.gpu.table import delta_kernels
from gradwire.offload.replicas import DeviceEnd

_NAN = 0x7FC0_0000  # the bits that, when set, turn any float into a NaN


def bitunpack(payload: torch.Tensor, weights: torch.Tensor, kept_bytes: int) -> None:
    """Decode a payload of ``bitpack`` into ``weights`` (contiguous float32, on the same device).

    The result has the same bits as from the codec's ``decode``: the dropped bytes are 0, and if one byte is
    kept, a chunk with a non-finite value becomes all NaN. The function uses only torch operations on
    little-endian integers and views, so it runs on every device.
    """
    flat, count = weights.view(-1), weights.numel()
    if not count:
        return  # torch cannot view some empty tensors as bytes
    words = flat.view(torch.int32)
    if kept_bytes == 4:
        flat.copy_(payload[: 4 * count].view(torch.float32))
    elif kept_bytes == 3:  # copy bytes, because assembling 3-byte integers takes ten times as long on a CPU
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
_ALIGN = 16  # the alignment of each tensor in a message, in bytes, for typed views and vector loads

Bits = Mapping[int, int]
"""The number of bits for each master in a message, keyed by the master's number."""


class SquareSums(NamedTuple):
    """The sums of squares of masters' weights, from which policies' norms are computed."""

    squares: Mapping[int, float]  # by the number of each master with weights
    packed_nbytes: int | None  # the size of the message packed in the same pass, if any


class Carrier(ABC):
    """A carrier of some layers' weights: ``pack`` fills a buffer on the host, ``unpack`` reads its copies.

    Parameters with one dimension, such as biases, are sent as float32; all others are *weights*. All
    ``ends``, the devices with the layers to send, get the same bytes. ``capacities`` are the largest encoded
    sizes of the masters, in bytes.

    Attributes
    ----------
    host, on_device
        The buffer in which messages are packed, and for each end, the buffer to which they are copied.
    spans
        The start and end of each master in the message, by number, in the order of the message.
    """

    def __init__(self, ends: Sequence[DeviceEnd], capacities: Iterable[int]) -> None:
        self._masters, self._replicas = ends[0].masters, [each.replicas for each in ends]
        self.spans: dict[int, tuple[int, int]] = {}
        self._views: dict[tuple[int, int], tuple[int, torch.Tensor]] = {}
        room = sum(map(aligned, capacities))
        with torch.inference_mode(mode=False):
            self.host = ends[0].host_memory(room // 4).view(torch.uint8)
            self.on_device = [each.device.zeros(room // 4).view(torch.uint8) for each in ends]

    def on_host(self, end: int) -> bool:  # noqa: ARG002 - for DeltaCarrier
        """Return whether the host decodes this end's messages, and so must wait for their bytes."""
        return False

    @abstractmethod
    def pack(self, bits: Bits, *, full: bool) -> int:
        """Pack the masters in ``bits`` into ``host``, and return the message's size.

        ``full`` requests full copies instead of changes, because the devices have no earlier version.
        """

    def sum_squares(self, bits: Bits | None) -> SquareSums:  # noqa: ARG002 - for BitpackCarrier
        """Return the weights' sums of squares; may also pack the masters in ``bits``, in the same pass."""
        weights = {number: each for number, each in enumerate(self._masters) if each.dim() > 1}
        return SquareSums({number: _squares(each) for number, each in weights.items()}, None)

    def receive(self, end: int) -> None:  # noqa: B027 - most carriers decode on the device only
        """Decode on the host, if needed, once the message has arrived. Another thread calls ``unpack``."""

    def unpack(self, end: int) -> None:
        """Write the weights in an end's message to the end's replicas, by operations on its device."""
        for number, span in self.spans.items():
            replica = self._replicas[end][number]
            if replica.dim() > 1:
                self._unpack(end, number, span, replica)
            else:
                replica.copy_(self._whole(end, number, span[0], replica))

    def _whole(self, end: int, number: int, begin: int, replica: torch.Tensor) -> torch.Tensor:
        """Return a float32 view of an unencoded master in an end's buffer, cached for its position."""
        known, view = self._views.get((end, number), (-1, replica))
        if known != begin:
            view = self.on_device[end][begin : begin + replica.nbytes].view(torch.float32).view(replica.shape)
            self._views[end, number] = begin, view
        return view

    @abstractmethod
    def _unpack(self, end: int, number: int, span: tuple[int, int], replica: torch.Tensor) -> None:
        """Decode one master from its span of an end's buffer to its replica."""


class BitpackCarrier(Carrier):
    """A carrier that sends the most significant bytes of weights: approximate data transfer (A2DTWP)."""

    def __init__(self, ends: Sequence[DeviceEnd]) -> None:
        super().__init__(ends, [max(each.nbytes, each.numel() + 1) for each in ends[0].masters])
        self._kept_bytes = dict[int, int]()

    def pack(self, bits: Bits, *, full: bool) -> int:  # noqa: ARG002 - every message is full
        """Pack the most significant ``bits`` of each master into ``host``, and return the message's size."""
        self._write(bits, summed=False)
        return _end_of(self.spans)

    def sum_squares(self, bits: Bits | None) -> SquareSums:
        """Return the sums of squares. With ``bits``, also pack the masters, in the same pass over memory."""
        if bits is None:
            return super().sum_squares(None)
        squares = self._write(bits, summed=True)
        for number, master in enumerate(self._masters):
            if master.dim() > 1 and number not in squares:  # not in the message
                squares[number] = _squares(master)
        return SquareSums(squares, _end_of(self.spans))

    def _write(self, bits: Bits, *, summed: bool) -> dict[int, float]:
        """Pack the masters into ``host`` and, if ``summed``, return the sums of the weights' squares."""
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
    """A carrier of lossless deltas of each end's words. Raises ``MissingPackageError`` without Triton."""

    def __init__(self, ends: Sequence[DeviceEnd], dtype: WordName, checked_every: int) -> None:
        masters = ends[0].masters
        weights = [number for number, each in enumerate(masters) if each.dim() > 1]
        self._encoders = {number: DeltaEncoder(masters[number], dtype) for number in weights}
        self._receivers = [_Receiver(each, weights, dtype) for each in ends]
        known = self._encoders
        sizes = (known[n].max_nbytes if n in known else each.nbytes for n, each in enumerate(masters))
        super().__init__(ends, sizes)
        self._dtype: WordName = dtype
        self._checked_every, self._version = checked_every, 0

    def pack(self, bits: Bits, *, full: bool) -> int:
        """Pack the changes since the last message, or all words, in the dtype's bits; return the size.

        Unencoded masters come first in the message, so that their positions don't change.
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
        """Return whether the host decodes this end's weights, because they are in host memory."""
        return bool(self._receivers[end].decoders)

    def receive(self, end: int) -> None:
        """Decode an end's message on the host if the end's weights are in host memory."""
        receiver = self._receivers[end]
        if numbers := [number for number in self.spans if number in receiver.decoders]:
            apply_message(
                self.on_device[end],
                [self.spans[number] for number in numbers],
                [receiver.decoders[number] for number in numbers],
                [receiver.words[number] for number in numbers],
            )
        receiver.is_decoded = True

    def unpack(self, end: int) -> None:
        """Write the end's replicas. If ``receive`` hasn't decoded the message, decode it first."""
        receiver = self._receivers[end]
        if not receiver.is_decoded:
            self.receive(end)
        receiver.is_decoded = False
        super().unpack(end)

    def _unpack(self, end: int, number: int, span: tuple[int, int], replica: torch.Tensor) -> None:
        """Copy a master's words to its replica as float32. On an accelerator, apply the delta first."""
        receiver = self._receivers[end]
        if number in receiver.device_decoders:
            payload, copy = self.on_device[end][slice(*span)], self.host[slice(*span)]
            receiver.device_decoders[number].apply(payload, copy, receiver.words[number])
        replica.copy_(receiver.shaped[number])


class _Receiver:
    """One end's words of each master with weights, and their decoders, on the host or on the device."""

    def __init__(self, end: DeviceEnd, weights: Sequence[int], dtype: WordName) -> None:
        is_here = all(each.is_cpu for each in end.replicas)
        self.decoders = {number: DeltaDecoder(dtype) for number in weights if is_here}
        self.device_decoders = {number: DeviceDeltaDecoder(dtype) for number in weights if not is_here}
        replicas = end.replicas
        self.words = {number: _words(replicas[number], end.device, dtype) for number in weights}
        self.shaped = {number: words.view(replicas[number].shape) for number, words in self.words.items()}
        self.is_decoded = False  # whether the host has decoded the message to unpack next


class DeviceDeltaDecoder:
    """A decoder of weight deltas on an accelerator. It updates weights in place and tracks their version.

    The host reads a payload's header, and kernels decode its body. The host waits for the device only to
    compare a hash. Therefore, the error for a malformed payload, which leaves the weights unchanged, is
    raised by the next call. Raises ``MissingPackageError`` if Triton isn't installed.
    """

    def __init__(self, dtype: WordName = "bf16") -> None:
        self._queue, self._faults = delta_kernels()
        self._decoder = DeltaDecoder(dtype)
        self._fault: tuple[torch.Tensor, Event] | None = None

    @property
    def version(self) -> int | None:
        """The version of the weights, as in ``DeltaDecoder``."""
        return self._decoder.version

    def apply(self, payload: torch.Tensor, copy: torch.Tensor, weights: torch.Tensor) -> int:
        """Queue the update of ``weights`` to the payload's version, and return that version.

        ``copy`` is the payload in host memory. Raises the errors of ``DeltaDecoder.apply``.
        """
        header = DeltaHeader.read(copy)
        try:
            self._confirm()
        except PayloadError:
            if header.base is not None:  # not for a full copy, which replaces a refused delta
                raise
        self._decoder.check(header, payload.numel(), weights)
        if weights.numel():
            self._launch(payload[header.nbytes :], weights, header)
        self._decoder.take(header, lambda: _native.hash64(on_host(weights)))
        return header.version

    def _launch(self, body: torch.Tensor, weights: torch.Tensor, header: DeltaHeader) -> None:
        device = device_of(weights)
        with torch.inference_mode(mode=False):
            fault = device.pinned(1).view(torch.int32)

        def queue() -> None:
            if header.plain:
                weights.view(torch.uint8).copy_(body)
                status = torch.zeros(1, dtype=torch.int32, device=weights.device)
            else:
                status = self._queue(body, weights, full=header.base is None)
            fault.copy_(status, non_blocking=True)

        device.launch(queue, [body, weights], [weights, fault])
        self._fault = fault, device.event()

    def _confirm(self) -> None:
        last, self._fault = self._fault, None
        if last is None:
            return
        fault, event = last
        event.wait()
        if int(fault):
            self._decoder.version = None
            raise PayloadError(
                "expected a delta of these weights in the last payload, got an invalid one: "
                f"{self._faults[int(fault) - 1]}; send a full copy"
            )


def _flat(master: torch.Tensor) -> torch.Tensor:
    flat = master.detach()  # keeps the memory alive if another thread replaces the master's memory
    return flat if flat.dim() == 1 and flat.is_contiguous() else flat.reshape(-1)


def _squares(master: torch.Tensor) -> float:
    flat = _flat(master)
    return _native.sum_norms(Pass.LOOK, flat, flat)


def _end_of(spans: Mapping[int, tuple[int, int]]) -> int:
    return max(end for _, end in spans.values())


def aligned(nbytes: int) -> int:
    """Return a size in bytes, rounded up to the alignment of tensors in a message."""
    return -(-nbytes // _ALIGN) * _ALIGN


def _words(replica: torch.Tensor, device: Device, dtype: WordName) -> torch.Tensor:
    count = replica.numel()
    with torch.inference_mode(mode=False):
        floats = device.zeros(count if dtype == "fp32" else -(-count // 2))
    return floats if dtype == "fp32" else floats.view(torch.bfloat16)[:count]
