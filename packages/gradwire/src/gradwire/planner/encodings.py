"""The encodings that a search may use, and what NICs on the way make of their frames."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice
from statistics import fmean, median

import torch

from gradwire import _native
from gradwire.codecs import Codec
from gradwire.codecs.wrappers import Projected, Scaled
from gradwire.entropy import DeltaDecoder, DeltaEncoder
from gradwire.errors import SpecError
from gradwire.plan import FLOAT_NBYTES
from gradwire.planner.calibration import SEGMENT_NBYTES, excerpt, use_threads
from gradwire.timing.calibrate import disagreement
from gradwire.timing.environment import CodecCost, CodecPoint

_MTU_NBYTES = 1500


def behind_nics(
    costs: Mapping[str, CodecCost], encodings: Sequence[Codec], summed: Mapping[int, torch.Tensor]
) -> dict[str, CodecCost]:
    """Return the costs with what frames for NICs take on the line, on the sums of ``calibrate.sums``.

    NICs merge segments, as ``gradwire nic`` does, and keep up with the line.
    """
    found = dict(costs)
    for encoding in encodings:
        inner = encoding.codec if isinstance(encoding, Scaled) else encoding
        if isinstance(inner, Projected):
            cost = costs[str(encoding)]
            points = [
                replace(point, line_nbytes=_line_nbytes(encoding, inner.codec, summed[point.terms]))
                for point in cost.points
            ]
            found[str(encoding)] = replace(cost, points=tuple(points))
    return found


def _line_nbytes(encoding: Codec, nic: Codec, values: torch.Tensor) -> float:
    """Return the bytes of a value behind a NIC with this codec, in packets with their headers."""
    floats = encoding.encode(values)[-FLOAT_NBYTES * values.numel() :].clone().view(torch.float32)
    ratio = floats.nbytes / max(1, nic.encode(floats).numel())
    return FLOAT_NBYTES / packet_ratio(ratio, _MTU_NBYTES)


# What NICs make of a stream: they encode what TCP sends, not the headers of its packets. Where a NIC encodes
# each segment by itself, headers cap what a codec gains; where a packet stands for several segments, they
# shrink almost as values do.

IP_AND_TCP_NBYTES = 20 + 32
"""The headers of every packet, with TCP's timestamps, which are usual."""
ETHERNET_NBYTES = 14
SHIM_NBYTES = 8
"""The header of a compressed packet before its body."""


MOST_AT_ONCE_NBYTES = 1 << 16
"""A host's kernel leaves no larger packets to a NIC."""
FILL = 0.97
"""The share of a packet that a NIC which merges segments tries to fill (kCaution in native/nic/engine.cc)."""


def packet_ratio(
    ratio: float, mtu_nbytes: int, *, merge: bool = True, at_once_nbytes: float = MOST_AT_ONCE_NBYTES
) -> float:
    """Return how many times fewer bytes of frames cross a link for a codec with this ratio.

    Acknowledgements aren't counted.

    Parameters
    ----------
    merge
        As the NICs' setting.
    at_once_nbytes
        The payload that a host's kernel leaves to its NIC at once. The last packet of it isn't full.

    Raises
    ------
    SpecError
        For an MTU that has no room for a segment.

    Examples
    --------
    >>> round(packet_ratio(4.6, 1400, merge=False), 2), round(packet_ratio(4.6, 1400), 2)
    (3.85, 4.56)
    """
    segment_nbytes = mtu_nbytes - IP_AND_TCP_NBYTES
    if segment_nbytes <= SHIM_NBYTES:
        raise SpecError(f"a NIC needs an MTU of more than {mtu_nbytes - segment_nbytes + SHIM_NBYTES} bytes")
    headers_nbytes = IP_AND_TCP_NBYTES + ETHERNET_NBYTES
    frame_nbytes = segment_nbytes + headers_nbytes
    single_nbytes = headers_nbytes + min(segment_nbytes, segment_nbytes / ratio + SHIM_NBYTES)
    if not merge:
        return frame_nbytes / single_nbytes
    segments = max(2, math.floor(at_once_nbytes / segment_nbytes))
    body_nbytes = segments * segment_nbytes / ratio
    packets = math.ceil(body_nbytes / (FILL * (segment_nbytes - SHIM_NBYTES)))
    merged_nbytes = packets * (headers_nbytes + SHIM_NBYTES) + body_nbytes
    return max(frame_nbytes / single_nbytes, segments * frame_nbytes / merged_nbytes)


# Which codecs an accuracy budget admits.


@dataclass(frozen=True)
class CodecCandidate:
    """A codec that may be chosen, and its largest error in units of the gradients' sum over all ranks.

    ``error`` is ``p`` times that of one encoding, because an exchange encodes a value ``p`` times.
    ``guaranteed`` says that it is a bound for all gradients; otherwise it is the largest error in the
    calibration. ``admitted`` says whether it is within the budget.
    """

    codec: Codec
    error: float
    guaranteed: bool
    admitted: bool


def admit(
    codecs: Iterable[Codec], costs: Mapping[str, CodecCost], world: int, largest_error: float | None
) -> list[CodecCandidate]:
    """Return each codec's error in a sum over ``world`` ranks, and whether the budget allows it.

    ``largest_error`` is the largest absolute error that an element of the sum may have (for the average,
    divide by ``world``); None means no limit.
    """
    limit = math.inf if largest_error is None else largest_error
    return [_candidate(codec, costs[str(codec)], world, limit) for codec in codecs]


def _candidate(codec: Codec, cost: CodecCost, world: int, limit: float) -> CodecCandidate:
    # what it promises without having seen a value; a scale's bound is in proportion to the values
    promised = 0.0 if isinstance(codec, Scaled) else codec.bound(torch.empty(0))
    measured = max(point.largest_error for point in cost.points)
    error = world * (promised or measured)
    return CodecCandidate(codec, error, guaranteed=promised > 0 or codec.EXACT, admitted=error <= limit)


# Measure what the changes of weights take, which a sharded exchange sends without loss.

WEIGHTS = "delta:bf16"
"""The encoding of weights that ``Sharded`` uses by default."""
WARM_UP, MEASURED = 10, 9
"""Steps of an optimizer, before its averages are those of a training, and after."""
_SPREAD = 0.02
"""The standard deviation of made-up weights, as in many a transformer."""


def measure_weights(gradients: Sequence[torch.Tensor], learning_rate: float, threads: int) -> CodecCost:
    """Return the cost of lossless changes of bfloat16 weights in steps of Adam with this learning rate.

    The steps use the gradients one after the other, and begin at normal weights. Frames carry a segment.
    """
    samples = [excerpt(each, SEGMENT_NBYTES // 4) for each in gradients]
    count = samples[0].numel()
    masters = torch.nn.Parameter(_SPREAD * torch.randn(count, generator=torch.Generator().manual_seed(0)))
    optimizer = torch.optim.Adam([masters], lr=learning_rate)
    encoder, decoder = DeltaEncoder(masters.data), DeltaDecoder()
    words, out = torch.empty(count, dtype=torch.bfloat16), torch.empty(count)
    nbytes, encode_s, decode_s = [], [], []
    with use_threads(threads):
        for step, gradient in enumerate(islice(cycle(samples), WARM_UP + MEASURED), start=1):
            masters.grad = gradient.clone()
            optimizer.step()
            began = time.perf_counter()
            payload = encoder.encode(masters.data, step, bounded=True)
            _native.crc32c(payload)
            encoded = time.perf_counter()
            _native.crc32c(payload)
            decoder.apply(payload, words)
            out.copy_(words)
            decode_s.append((time.perf_counter() - encoded) / count)
            encode_s.append((encoded - began) / count)
            nbytes.append(payload.numel() / count)
    encode_s, decode_s = encode_s[WARM_UP:], decode_s[WARM_UP:]
    point = CodecPoint(
        1, fmean(nbytes[WARM_UP:]), median(encode_s), median(decode_s), median(decode_s), lost=0.0
    )
    disagrees = fmean(map(disagreement, (encode_s, decode_s)))
    return CodecCost(WEIGHTS, (point,), exact=True, disagreement=disagrees)
