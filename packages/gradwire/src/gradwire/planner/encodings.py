"""Costs of encodings behind compressing NICs, the accuracy budget, and the cost of weight deltas."""

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
from gradwire.errors import refuse
from gradwire.plan import FLOAT_NBYTES
from gradwire.planner.calibration import SEGMENT_NBYTES, excerpt, use_threads
from gradwire.timing.calibrate import disagreement
from gradwire.timing.environment import CodecCost, CodecPoint

_MTU_NBYTES = 1500


def behind_nics(
    costs: Mapping[str, CodecCost], encodings: Sequence[Codec], summed: Mapping[int, torch.Tensor]
) -> dict[str, CodecCost]:
    """Add the bytes on the link to the costs of encodings that NICs compress, and return all costs.

    ``summed`` contains the sums of gradients to encode (``calibrate.sums``). The NICs are assumed to merge
    segments, as ``gradwire nic`` does, and to keep up with the link.
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
    """Return the bytes per value on the link behind a NIC with this codec, including packet headers."""
    floats = encoding.encode(values)[-FLOAT_NBYTES * values.numel() :].clone().view(torch.float32)
    ratio = floats.nbytes / max(1, nic.encode(floats).numel())
    return FLOAT_NBYTES / packet_ratio(ratio, _MTU_NBYTES)


# NICs encode the payload of TCP segments, not the packet headers. If a NIC encodes each segment separately,
# headers limit a codec's gain; if a packet merges several segments, headers shrink almost as values do.

IP_AND_TCP_NBYTES = 20 + 32
"""The size of every packet's headers, including TCP's usual timestamps."""
ETHERNET_NBYTES = 14
SHIM_NBYTES = 8
"""The size of the header before the body of a compressed packet."""


MOST_AT_ONCE_NBYTES = 1 << 16
"""The largest packet that a host's kernel passes to a NIC, for the NIC to divide into segments."""
FILL = 0.97
"""The share of a packet that a NIC tries to fill by merging segments (kCaution in native/nic/engine.cc)."""


def packet_ratio(
    ratio: float, mtu_nbytes: int, *, merge: bool = True, at_once_nbytes: float = MOST_AT_ONCE_NBYTES
) -> float:
    """Return the compression ratio on the link, headers included, for a codec with the ratio ``ratio``.

    Acknowledgements aren't included.

    Parameters
    ----------
    merge
        Whether NICs merge segments into packets.
    at_once_nbytes
        The bytes of payload that a host's kernel passes to its NIC in one piece. A piece's last packet isn't
        full.

    Raises
    ------
    SpecError
        If the MTU has no room for a segment.

    Examples
    --------
    >>> round(packet_ratio(4.6, 1400, merge=False), 2), round(packet_ratio(4.6, 1400), 2)
    (3.85, 4.56)
    """
    segment_nbytes = mtu_nbytes - IP_AND_TCP_NBYTES
    if segment_nbytes <= SHIM_NBYTES:
        least_nbytes = mtu_nbytes - segment_nbytes + SHIM_NBYTES
        refuse(f"an MTU above {least_nbytes} bytes for a NIC", mtu_nbytes, "pass the MTU of the NIC's link")
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


@dataclass(frozen=True)
class CodecCandidate:
    """A candidate codec, and the largest error that it may cause in the sum of all ranks' gradients.

    ``error`` is the error of one encoding times the number of ranks, because an exchange encodes a value once
    per rank. It is a bound if ``guaranteed``, otherwise the largest error in the calibration.
    """

    codec: Codec
    error: float
    guaranteed: bool
    admitted: bool


def admit(
    codecs: Iterable[Codec], costs: Mapping[str, CodecCost], world: int, largest_error: float | None
) -> list[CodecCandidate]:
    """Return each codec's error in a sum over ``world`` ranks, and whether the accuracy budget admits it.

    ``largest_error`` is the largest allowed absolute error of an element of the sum (for the average, divide
    by ``world``); None means no limit.
    """
    limit, found = math.inf if largest_error is None else largest_error, []
    for codec in codecs:
        # a bound that doesn't depend on the values; a scale's bound is in proportion to the values
        promised = 0.0 if isinstance(codec, Scaled) else codec.bound(torch.empty(0))
        error = world * (promised or max(point.largest_error for point in costs[str(codec)].points))
        guaranteed = promised > 0 or codec.EXACT
        found.append(CodecCandidate(codec, error, guaranteed=guaranteed, admitted=error <= limit))
    return found


WEIGHTS = "delta:bf16"
"""The encoding of weights that ``Sharded`` uses by default."""
WARM_UP, MEASURED = 10, 9
"""The number of steps until the optimizer's moving averages are typical, and the number of measured steps."""
_SPREAD = 0.02
"""The standard deviation of the synthetic weights, as in many transformers."""


def measure_weights(gradients: Sequence[torch.Tensor], learning_rate: float, threads: int) -> CodecCost:
    """Return the cost of lossless bfloat16 weight deltas between Adam steps with this learning rate.

    The steps cycle through the gradients. A delta covers one segment of weights.
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
