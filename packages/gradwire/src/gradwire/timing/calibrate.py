"""Measure what codecs and frames cost at one end of a link, on this machine and on real gradients.

A codec is measured as in an exchange: segment by segment, with checksums and cold caches, on gradients and
their sums. Each call follows a sleep as long as a frame's time on the link, because a core that slept for 5
ms encoded at half its speed.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from gradwire import _native
from gradwire.codecs import Codec, Identity
from gradwire.codecs.native import is_compiled
from gradwire.errors import TensorError
from gradwire.exchange import Exchange
from gradwire.links.base import Link, Receiving, Sending, Wrapper
from gradwire.plan import Plan
from gradwire.timing.environment import CodecCost, CodecPoint
from gradwire.timing.line import FRAMES, LARGE_NBYTES, SMALL_NBYTES, EndCost, FrameCost, Line
from gradwire.wire import HEADER_NBYTES


def disagreement(seconds: Sequence[float]) -> float:
    """Return the relative scatter of repeats: half the interquartile range over the quartiles' midpoint.

    With fewer than four repeats, the extremes replace the quartiles. The scatter is 0 if all repeats agree,
    and a third if the quartiles differ by a factor of two.

    Examples
    --------
    >>> disagreement([1.0, 1.0, 1.0, 9.0, 1.0]), disagreement([2.0, 4.0])
    (0.0, 0.3333333333333333)
    """
    if len(seconds) < 2:
        return 0.0
    low, high = min(seconds), max(seconds)
    if len(seconds) >= 4:
        low, _, high = statistics.quantiles(seconds, n=4, method="inclusive")
    return (high - low) / (high + low) if high > 0 else 0.0


SMALL_COUNT = 64
"""The number of values in the small chunk on which the fixed cost of a codec's call is measured."""
COLD_NBYTES = 48 << 20
"""The number of bytes to read between two uses of the same memory, enough to evict it from caches."""
LONGEST_REST_S = 5e-3
"""The longest sleep before a call; longer sleeps change little."""
_USUAL_RATIO = 4
REPEATS = 9


def codec_cost(
    codec: Codec,
    samples: Sequence[torch.Tensor],
    world: int,
    segment_nbytes: int = 1 << 20,
    rest_s: float = 0.0,
    repeats: int = REPEATS,
) -> CodecCost:
    """Return the costs of ``codec`` on sums of 1, 2, 4, ... up to ``world`` of the samples.

    ``samples`` are 1-D contiguous float32 CPU tensors of one length: gradients of different ranks or steps.
    If there are fewer samples than terms, samples are reused with an offset, so that no value is added to
    itself. Each call encodes one segment of ``segment_nbytes``, after a sleep of ``rest_s``
    (``rest_between_segments``). Costs are medians of ``repeats`` calls, or of more calls if ``rest_s`` is 0.
    Raises ``TensorError`` if there is no sample, or if samples differ in shape.
    """
    return cost_on(codec, sums(samples, world), segment_nbytes, rest_s, repeats)


def sums(samples: Sequence[torch.Tensor], world: int) -> dict[int, torch.Tensor]:
    """Return the sums of 1, 2, 4, ... up to ``world`` of the samples, keyed by the number of terms.

    Raises ``TensorError`` if there is no sample, or if samples are empty or differ in shape.
    """
    if not samples or any(sample.shape != samples[0].shape for sample in samples):
        shapes = [tuple(sample.shape) for sample in samples]
        raise TensorError(
            f"expected one or more gradients of equal shape for calibration, got the shapes {shapes}; pass "
            "gradients of one model"
        )
    if samples[0].numel() == 0:
        raise TensorError(
            "expected gradients with values for calibration, got empty gradients; pass the gradients of the "
            "model itself"
        )
    counts = {1 << k for k in range(world.bit_length()) if 1 << k <= world} | {world}
    found, total = {}, torch.zeros_like(samples[0])
    for k in range(world):
        again, which = divmod(k, len(samples))
        total += samples[which].roll(again * (len(total) // 7 + 1)) if again else samples[which]
        if k + 1 in counts:
            found[k + 1] = total.clone()
    return found


def cost_on(
    codec: Codec,
    summed: Mapping[int, torch.Tensor],
    segment_nbytes: int,
    rest_s: float,
    repeats: int = REPEATS,
) -> CodecCost:
    """Return the costs of ``codec`` on ``summed``, the result of ``sums``, which all codecs can share."""
    count = min(segment_nbytes // 4, summed[1].numel())
    call_s = _call_s(codec, summed[1][: min(SMALL_COUNT, count)].contiguous())
    how = count, call_s, rest_s, repeats
    found = [_point(codec, x, terms, *how) for terms, x in summed.items()]
    world, finished = max(summed), None
    if codec.of_sums != codec:
        finished, _ = _point(codec.of_sums, summed[world], world, *how)
    points, disagreements = zip(*found, strict=True)
    return CodecCost(str(codec), points, call_s, codec.EXACT, statistics.fmean(disagreements), finished)


def cost_on_other_gradients(known: CodecCost, codec: Codec, summed: Mapping[int, torch.Tensor]) -> CodecCost:
    """Return the costs of ``codec`` on other gradients, with the seconds taken from ``known``.

    A codec is equally fast on all gradients. Each sum of ``summed`` (``sums``) is encoded as one chunk.
    """
    terms_and_sums = sorted(summed.items())
    points = [_as_fast(_untimed(codec, x, terms), known.at(terms)) for terms, x in terms_and_sums]
    finished = known.finished
    if finished is not None:
        world, x = terms_and_sums[-1]
        finished = _as_fast(_untimed(codec.of_sums, x, world), finished)
    return replace(known, points=tuple(points), finished=finished)


def _as_fast(point: CodecPoint, known: CodecPoint) -> CodecPoint:
    return replace(point, encode_s=known.encode_s, decode_s=known.decode_s, decode_add_s=known.decode_add_s)


def encode_and_add_s(codec: Codec, sample: torch.Tensor, segment_nbytes: int, rest_s: float) -> float:
    """Measure the median seconds per value of encoding and of decoding and adding, and return their sum."""
    count = min(segment_nbytes // 4, sample.numel())
    seconds = _seconds(codec, [sample[:count]], count, rest_s)
    return (statistics.median(seconds["encode_s"]) + statistics.median(seconds["decode_add_s"])) / count


def rest_between_segments(line: Line, segment_nbytes: int = 1 << 20) -> float:
    """Return about how many seconds a rank sleeps in an exchange while the link sends one segment."""
    return min(LONGEST_REST_S, segment_nbytes / _USUAL_RATIO / line.nbytes_per_s)


def end_cost(link: Link, barrier: Callable[[], None], rounds: int = REPEATS) -> EndCost:
    """Return the cost of frames at this end of a link, in CPU seconds. All ranks of ``link`` call it.

    Every odd rank sends buckets of small and of large segments to the rank before it. All pairs send
    concurrently, because hosts that share a machine also work concurrently in an exchange. Costs are medians
    of ``rounds`` buckets, and include user and system time of the rank's thread and of other threads. If the
    number of ranks is odd, the last rank has no partner, and its result is meaningless. A pair sends slightly
    more than ``rounds * FRAMES * LARGE_NBYTES`` bytes.
    """
    small, large = (_frame_cost(link, nbytes, barrier, rounds) for nbytes in (SMALL_NBYTES, LARGE_NBYTES))
    identity = identity_cost(rounds)
    codec_s_per_nbyte = (identity.encode_s if link.rank % 2 else identity.decode_add_s) / 4
    return EndCost.fit(small, large, codec_s_per_nbyte)


def identity_cost(repeats: int = REPEATS) -> CodecPoint:
    """Return the identity codec's cost, which measurements of frames include and must subtract."""
    return codec_cost(Identity(), [torch.zeros(LARGE_NBYTES // 4)], 1, LARGE_NBYTES, repeats=repeats).at(1)


class _Two(Wrapper):
    """A link of two ranks, an even rank and the next rank, over a link of more ranks."""

    def __init__(self, inner: Link) -> None:
        super().__init__(inner)
        self.rank, self.world, self._first = inner.rank % 2, 2, inner.rank - inner.rank % 2

    def isend(self, to: int, frame: torch.Tensor) -> Sending:
        return self._inner.isend(self._first + to, frame)

    def irecv(self, source: int, buffer: torch.Tensor) -> Receiving:
        return self._inner.irecv(self._first + source, buffer)

    def name_of(self, rank: int) -> str:
        return self._inner.name_of(self._first + rank)


def _frame_cost(link: Link, nbytes: int, barrier: Callable[[], None], rounds: int) -> FrameCost:
    """Return the cost of a frame: the median over ``rounds`` streams, as other load slows some streams."""
    barrier()
    costs = [(0.0, 0.0)] if link.rank + 1 == link.world and link.rank % 2 == 0 else []
    if not costs:
        exchange = Exchange(_Two(link), Plan(algorithm="star", segment_nbytes=nbytes))
        bucket = torch.zeros(FRAMES * nbytes // 4)
        exchange.reduce(bucket)  # the first exchange allocates the buffers
        for _ in range(rounds):
            process_s, thread_s = time.process_time(), time.thread_time()
            exchange.reduce(bucket)
            process_s, thread_s = time.process_time() - process_s, time.thread_time() - thread_s
            costs.append((thread_s / FRAMES, max(0.0, process_s - thread_s) / FRAMES))
    barrier()
    return FrameCost(*map(statistics.median, zip(*costs, strict=True)))


def _point(
    codec: Codec, x: torch.Tensor, terms: int, count: int, call_s: float, rest_s: float, repeats: int
) -> tuple[CodecPoint, float]:
    """Return the codec's costs on ``x``, a sum of ``terms`` gradients, and the scatter of the repeats."""
    seconds = _seconds(codec, _whole_parts(x, count), count, rest_s, repeats)
    per_value: dict[str, Any] = {
        name: max(0.0, statistics.median(spent) - call_s) / count for name, spent in seconds.items()
    }
    scatter = (disagreement(seconds["encode_s"]) + disagreement(seconds["decode_add_s"])) / 2
    return replace(_untimed(codec, x, terms, count), **per_value), scatter


def _untimed(codec: Codec, x: torch.Tensor, terms: int, count: int | None = None) -> CodecPoint:
    """Measure payload size and encoding error, but no seconds, in chunks of ``count`` values or in one."""
    count = x.numel() if count is None else count
    parts = _whole_parts(x, count)
    return CodecPoint(
        terms,
        statistics.fmean(codec.encode(part).numel() for part in parts) / count,
        *(0.0, 0.0, 0.0),
        max(_largest_error(codec, part) for part in parts),
        lost=lost_share(codec, torch.cat(parts), count),
    )


def _whole_parts(x: torch.Tensor, count: int) -> list[torch.Tensor]:
    return [part for part in torch.split(x, count) if part.numel() == count]


def _seconds(
    codec: Codec, parts: list[torch.Tensor], count: int, rest_s: float, repeats: int = REPEATS
) -> dict[str, list[float]]:
    """Return the seconds of each call with cold caches, keyed by the field of ``CodecPoint``."""
    copies = repeats if rest_s else max(repeats, min(COLD_NBYTES // (4 * count), 4 * repeats))
    chunks = [parts[i % len(parts)].clone() for i in range(copies)]
    frames = [torch.zeros(HEADER_NBYTES + codec.max_nbytes(count), dtype=torch.uint8) for _ in chunks]
    seconds: dict[str, list[float]] = {"encode_s": [], "decode_add_s": [], "decode_s": []}
    payloads, clock = [], _clock_of(codec)
    for chunk, frame in zip(chunks, frames, strict=True):
        time.sleep(rest_s)
        started = clock()
        payloads.append(codec.encode(chunk, out=frame[HEADER_NBYTES:]))
        _native.crc32c(payloads[-1])
        seconds["encode_s"].append(clock() - started)
    for name, decode in (("decode_add_s", codec.decode_add), ("decode_s", codec.decode)):
        for chunk, payload in zip(chunks, payloads, strict=True):
            time.sleep(rest_s)
            started = clock()
            _native.crc32c(payload)
            decode(payload, chunk)
            seconds[name].append(clock() - started)
    return seconds


def _clock_of(codec: Codec) -> Callable[[], float]:
    """Return the clock that times a codec: the thread's CPU time for a compiled codec with one thread.

    CPU time excludes the time in which other ranks and programs use the core. A prediction accounts for ranks
    that share cores separately (``HostCost``).
    """
    is_alone = is_compiled(codec) and _native.threads() == 1
    return time.thread_time if is_alone else time.perf_counter


def _call_s(codec: Codec, x: torch.Tensor) -> float:
    frame = torch.empty(codec.max_nbytes(x.numel()), dtype=torch.uint8)
    decoded = torch.empty_like(x)
    seconds, clock = [], _clock_of(codec)
    for _ in range(5 * REPEATS):
        started = clock()
        payload = codec.encode(x, out=frame)
        _native.crc32c(payload)
        codec.decode(payload, decoded)
        seconds.append((clock() - started) / 2)
    return statistics.median(seconds)


def _largest_error(codec: Codec, part: torch.Tensor) -> float:
    decoded = torch.empty_like(part)
    codec.decode(codec.encode(part), decoded)
    errors = decoded.sub_(part).abs_()
    largest = float(errors.max())
    if math.isfinite(largest):
        return largest
    finite = errors[errors.isfinite()]
    return float(finite.max()) if finite.numel() else 0.0


def lost_share(codec: Codec, values: torch.Tensor, count: int | None = None) -> float:
    """Return the relative error of one encoding of ``values``, in chunks of ``count`` values.

    The relative error is 1 if it isn't finite, or if zeros are decoded to other values.
    """
    decoded = torch.empty_like(values)
    parts = (torch.split(each, count or len(values)) for each in (values, decoded))
    for part, out in zip(*parts, strict=True):
        codec.decode(codec.encode(part), out)
    own, lost = (
        float(torch.linalg.vector_norm(each, dtype=torch.float64)) for each in (values, decoded.sub_(values))
    )
    if lost == 0:
        return 0.0
    share = lost / own if own else 1.0
    return share if math.isfinite(share) else 1.0
