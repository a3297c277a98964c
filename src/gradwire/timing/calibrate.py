"""Measure what this machine's ends of a link cost: codecs on real gradients, and frames.

A codec is measured as an exchange uses it: segment by segment, into and out of frames with their checksums,
on gradients that the caller brings (a hook can record some) and on the sums of several of them, which are
what travels after the first hop.
"""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable, Sequence

import torch

from gradwire import _native
from gradwire.codecs import Codec
from gradwire.errors import TensorError
from gradwire.links.base import Link
from gradwire.timing.costs import CodecCost, CodecPoint, HostCost
from gradwire.wire import HEADER_NBYTES, frame_memory

SMALL_COUNT = 64
"""Values in the chunk that tells what a call costs besides its values."""
REPEATS = 9
FRAMES = 48
SMALL_NBYTES, LARGE_NBYTES = 1 << 10, 1 << 20
_WINDOW = 4


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
    return CodecCost(str(codec), tuple(points), call_s)


def host_cost(link: Link, barrier: Callable[[], None], cores: int, ranks_per_machine: int) -> HostCost:
    """Return what frames cost the ranks 0 and 1 of ``link``, in seconds of a core; all ranks call it.

    Streams of small and of large frames go from rank 0 to rank 1; the processor time that the two processes
    take for them, all threads and the system's share included, is divided among the frames and the bytes.
    Only what ranks 0 and 1 return means anything: the sender's costs on rank 0, the receiver's on rank 1.
    """
    small_s = _processor_s(link, SMALL_NBYTES, barrier)
    large_s = _processor_s(link, LARGE_NBYTES, barrier)
    per_nbyte = max(0.0, (large_s - small_s) / (LARGE_NBYTES - SMALL_NBYTES))
    per_frame = max(0.0, small_s - per_nbyte * SMALL_NBYTES)
    sends = link.rank == 0
    return HostCost(
        send_s=per_frame if sends else 0.0,
        receive_s=0.0 if sends else per_frame,
        send_s_per_nbyte=per_nbyte if sends else 0.0,
        receive_s_per_nbyte=0.0 if sends else per_nbyte,
        cores=cores,
        ranks_per_machine=ranks_per_machine,
    )


def _processor_s(link: Link, nbytes: int, barrier: Callable[[], None]) -> float:
    """Return the processor seconds of this process for one frame of a stream."""
    buffers = [frame_memory(nbytes) for _ in range(2 * _WINDOW)]
    barrier()
    started = time.process_time()
    if link.rank < 2:
        under_way = deque[object]()
        for i in range(FRAMES):
            if len(under_way) >= _WINDOW:
                under_way.popleft().wait()  # type: ignore[attr-defined]
            buffer = buffers[i % len(buffers)]
            under_way.append(link.isend(1, buffer) if link.rank == 0 else link.irecv(0, buffer))
        while under_way:
            under_way.popleft().wait()  # type: ignore[attr-defined]
    spent = time.process_time() - started
    barrier()
    return spent / FRAMES


def _sum(samples: Sequence[torch.Tensor], terms: int) -> torch.Tensor:
    total = torch.zeros_like(samples[0])
    for k in range(terms):
        again, which = divmod(k, len(samples))
        total += samples[which].roll(again * (len(total) // 7 + 1)) if again else samples[which]
    return total


def _point(codec: Codec, x: torch.Tensor, terms: int, count: int, call_s: float) -> CodecPoint:
    parts = [part for part in torch.split(x, count) if part.numel() == count]
    frame = torch.empty(HEADER_NBYTES + codec.max_nbytes(count), dtype=torch.uint8)
    decoded = torch.empty(count)
    sizes, errors = [], []
    seconds: dict[str, list[float]] = {"encode": [], "decode": [], "decode_add": []}
    for turn in range(max(REPEATS, len(parts))):
        part = parts[turn % len(parts)]
        started = time.perf_counter()
        payload = codec.encode(part, out=frame[HEADER_NBYTES:])
        _native.crc32c(payload)
        encoded = time.perf_counter()
        _native.crc32c(payload)
        codec.decode(payload, decoded)
        stored = time.perf_counter()
        if turn < len(parts):
            sizes.append(payload.numel())
            errors.append(_largest(decoded - part))
        accumulator = part.clone()
        adding = time.perf_counter()
        _native.crc32c(payload)
        codec.decode_add(payload, accumulator)
        added = time.perf_counter()
        for name, spent in (
            ("encode", encoded - started),
            ("decode", stored - encoded),
            ("decode_add", added - adding),
        ):
            seconds[name].append(spent)
    per_value = {name: max(0.0, statistics.median(spent) - call_s) / count for name, spent in seconds.items()}
    return CodecPoint(
        terms,
        statistics.fmean(sizes) / count,
        per_value["encode"],
        per_value["decode"],
        per_value["decode_add"],
        max(errors),
    )


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


def _largest(errors: torch.Tensor) -> float:
    finite = errors[errors.isfinite()]
    return float(finite.abs().max()) if finite.numel() else 0.0
