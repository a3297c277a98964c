"""Measure what this machine's ends of a link cost: codecs on real gradients, and frames.

A codec is measured as an exchange uses it: segment by segment, into and out of frames with their checksums,
in memory that no cache holds any more, on gradients that the caller brings (a hook can record some) and on
the sums of several of them, which are what travels after the first hop. Frames are measured with an exchange
of the identity, whose own costs per byte are taken off.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from gradwire import _native
from gradwire.codecs import Codec, Identity
from gradwire.errors import TensorError
from gradwire.exchange import Exchange
from gradwire.links.base import Link, Receiving, Sending
from gradwire.plan import SEGMENT_UNIT_NBYTES, Plan
from gradwire.timing.costs import CodecCost, CodecPoint, HostCost
from gradwire.wire import HEADER_NBYTES

SMALL_COUNT = 64
"""Values in the chunk that tells what a call costs besides its values."""
COLD_NBYTES = 48 << 20
"""So much memory is gone through between two uses of the same part, that a cache has forgotten it."""
REPEATS = 9
FRAMES, SMALL_NBYTES, LARGE_NBYTES = 8, SEGMENT_UNIT_NBYTES, 1 << 20


def codec_cost(
    codec: Codec, samples: Sequence[torch.Tensor], world: int, segment_nbytes: int = 1 << 20
) -> CodecCost:
    """Return the costs of ``codec`` on sums of 1, 2, 4, ... up to ``world`` of the samples.

    Parameters
    ----------
    codec
        What to measure.
    samples
        1-D contiguous float32 CPU tensors of one length: gradients of different ranks or steps. With fewer
        samples than terms they are used again, shifted, so that equal values do not meet.
    world
        The most terms in a sum.
    segment_nbytes
        What is encoded at once, as in the plan.

    Raises
    ------
    TensorError
        Without a sample, or for samples of different shapes.
    """
    if not samples or any(sample.shape != samples[0].shape for sample in samples):
        shapes = [tuple(sample.shape) for sample in samples]
        raise TensorError(f"calibration wants one or more gradients of one shape, but got {shapes}")
    if samples[0].numel() == 0:
        raise TensorError("calibration wants gradients with values in them, but these are empty")
    count = min(segment_nbytes // 4, samples[0].numel())
    call_s = _call_s(codec, samples[0][: min(SMALL_COUNT, count)].contiguous())
    counts = sorted({1 << k for k in range(world.bit_length()) if 1 << k <= world} | {world})
    points = [_point(codec, _sum(samples, terms), terms, count, call_s) for terms in counts]
    return CodecCost(str(codec), tuple(points), call_s, codec.EXACT)


def host_cost(link: Link, barrier: Callable[[], None], cores: int, ranks_per_machine: int) -> HostCost:
    """Return what a frame costs a host, in seconds of a core; all ranks of ``link`` call it.

    Rank 1 sends rank 0 buckets of small and of large segments, and both count the processor time of their own
    thread and of the others', the system's share included. Rank 0 knows of the receiving side only and rank 1
    of the sending side: ``merge_hosts`` makes one of both.
    """
    sides = [_frame_cost(link, nbytes, barrier) for nbytes in (SMALL_NBYTES, LARGE_NBYTES)]
    span = LARGE_NBYTES - SMALL_NBYTES
    identity = codec_cost(Identity(), [torch.zeros(LARGE_NBYTES // 4)], 1, LARGE_NBYTES).at(1)
    codec_s_per_nbyte = (identity.decode_add_s if link.rank == 0 else identity.encode_s) / 4
    per_nbyte = max(0.0, (sides[1].thread_s - sides[0].thread_s) / span - codec_s_per_nbyte)
    per_frame = max(0.0, sides[0].thread_s - per_nbyte * SMALL_NBYTES)
    sends = link.rank != 0
    return HostCost(
        send_s=per_frame if sends else 0.0,
        receive_s=0.0 if sends else per_frame,
        send_s_per_nbyte=per_nbyte if sends else 0.0,
        receive_s_per_nbyte=0.0 if sends else per_nbyte,
        beside_s_per_nbyte=max(0.0, (sides[1].beside_s - sides[0].beside_s) / span),
        cores=cores,
        ranks_per_machine=ranks_per_machine,
    )


def merge_hosts(receiver: HostCost, sender: HostCost) -> HostCost:
    """Return the costs of a host that does what rank 0 and rank 1 measured."""
    return HostCost(
        sender.send_s,
        receiver.receive_s,
        sender.send_s_per_nbyte,
        receiver.receive_s_per_nbyte,
        (sender.beside_s_per_nbyte + receiver.beside_s_per_nbyte) / 2,
        receiver.cores,
        receiver.ranks_per_machine,
    )


@dataclass(frozen=True)
class _FrameCost:
    """Processor seconds for one frame of the identity: of the rank's own thread, and of the others."""

    thread_s: float = 0.0
    beside_s: float = 0.0


class _Two(Link):
    """The first two ranks of a link, as a link."""

    def __init__(self, inner: Link) -> None:
        self.rank, self.world, self.timeout_s = inner.rank, 2, inner.timeout_s
        self._inner = inner

    def isend(self, to: int, frame: torch.Tensor) -> Sending:
        return self._inner.isend(to, frame)

    def irecv(self, source: int, buffer: torch.Tensor) -> Receiving:
        return self._inner.irecv(source, buffer)

    def close(self) -> None:
        self._inner.close()


def _frame_cost(link: Link, nbytes: int, barrier: Callable[[], None]) -> _FrameCost:
    """Return the medians of some streams, since what else the processor does falls into one or the other."""
    barrier()
    costs = [_FrameCost()]
    if link.rank < 2:
        exchange = Exchange(_Two(link), Plan(algorithm="star", segment_nbytes=nbytes))
        bucket = torch.zeros(FRAMES * nbytes // 4)
        exchange.reduce(bucket)  # the first one makes the buffers
        costs = [_stream_cost(exchange, bucket) for _ in range(REPEATS)]
    barrier()
    return _FrameCost(
        statistics.median(cost.thread_s for cost in costs), statistics.median(cost.beside_s for cost in costs)
    )


def _stream_cost(exchange: Exchange, bucket: torch.Tensor) -> _FrameCost:
    process_s, thread_s = time.process_time(), time.thread_time()
    exchange.reduce(bucket)
    process_s, thread_s = time.process_time() - process_s, time.thread_time() - thread_s
    return _FrameCost(thread_s / FRAMES, max(0.0, process_s - thread_s) / FRAMES)


def _sum(samples: Sequence[torch.Tensor], terms: int) -> torch.Tensor:
    total = torch.zeros_like(samples[0])
    for k in range(terms):
        again, which = divmod(k, len(samples))
        total += samples[which].roll(again * (len(total) // 7 + 1)) if again else samples[which]
    return total


def _point(codec: Codec, x: torch.Tensor, terms: int, count: int, call_s: float) -> CodecPoint:
    parts = [part for part in torch.split(x, count) if part.numel() == count]
    sizes = [codec.encode(part).numel() for part in parts]
    seconds = _seconds(codec, parts, count)
    per_value = {name: max(0.0, statistics.median(spent) - call_s) / count for name, spent in seconds.items()}
    return CodecPoint(
        terms,
        statistics.fmean(sizes) / count,
        per_value["encode"],
        per_value["decode"],
        per_value["decode_add"],
        max(_largest_error(codec, part) for part in parts),
    )


def _seconds(codec: Codec, parts: list[torch.Tensor], count: int) -> dict[str, list[float]]:
    """Return the seconds of some encodings and decodings of cold chunks into and out of cold frames."""
    copies = max(REPEATS, min(COLD_NBYTES // (4 * count), 4 * REPEATS))
    chunks = [parts[i % len(parts)].clone() for i in range(copies)]
    frames = [torch.zeros(HEADER_NBYTES + codec.max_nbytes(count), dtype=torch.uint8) for _ in chunks]
    seconds: dict[str, list[float]] = {"encode": [], "decode_add": [], "decode": []}
    payloads = []
    for chunk, frame in zip(chunks, frames, strict=True):
        started = time.perf_counter()
        payloads.append(codec.encode(chunk, out=frame[HEADER_NBYTES:]))
        _native.crc32c(payloads[-1])
        seconds["encode"].append(time.perf_counter() - started)
    for name, decode in (("decode_add", codec.decode_add), ("decode", codec.decode)):
        for chunk, payload in zip(chunks, payloads, strict=True):
            started = time.perf_counter()
            _native.crc32c(payload)
            decode(payload, chunk)
            seconds[name].append(time.perf_counter() - started)
    return seconds


def _call_s(codec: Codec, x: torch.Tensor) -> float:
    frame = torch.empty(codec.max_nbytes(x.numel()), dtype=torch.uint8)
    decoded = torch.empty_like(x)
    seconds = []
    for _ in range(5 * REPEATS):
        started = time.perf_counter()
        payload = codec.encode(x, out=frame)
        _native.crc32c(payload)
        codec.decode(payload, decoded)
        seconds.append((time.perf_counter() - started) / 2)
    return statistics.median(seconds)


def _largest_error(codec: Codec, part: torch.Tensor) -> float:
    decoded = torch.empty_like(part)
    codec.decode(codec.encode(part), decoded)
    errors = (decoded - part).abs()
    finite = errors[errors.isfinite()]
    return float(finite.max()) if finite.numel() else 0.0
