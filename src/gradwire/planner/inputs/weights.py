"""Measure what the changes of weights take, which a sharded exchange sends without loss."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import cycle, islice
from statistics import fmean, median

import torch

from gradwire import _native
from gradwire.codecs.spec import is_real
from gradwire.entropy import DeltaDecoder, DeltaEncoder
from gradwire.errors import SpecError, shown
from gradwire.planner.inputs.calibration import SEGMENT_NBYTES, excerpt
from gradwire.planner.inputs.threads import use_threads
from gradwire.timing.measure.repeats import disagreement
from gradwire.timing.replay.environment import CodecCost, CodecPoint

WEIGHTS = "delta:bf16"
"""The encoding of weights that ``Sharded`` uses by default."""
WARM_UP, MEASURED = 10, 9
"""Steps of an optimizer, before its averages are those of a training, and after."""
_SPREAD = 0.02
"""The standard deviation of made-up weights, as in many a transformer."""


def check_rate(learning_rate: float | None) -> None:
    """Raise ``SpecError`` unless it is None or a learning rate."""
    if learning_rate is not None and not (is_real(learning_rate, 0.0, 1e3) and learning_rate > 0):
        raise SpecError(
            "sharded must be the learning rate with which weights are updated, a number above 0, but is "
            f"{shown(learning_rate)}"
        )


def measure_weights(gradients: Sequence[torch.Tensor], learning_rate: float, threads: int) -> CodecCost:
    """Return what lossless changes of bfloat16 weights cost in steps of Adam with this learning rate.

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
