"""Measure the codecs that a search considers: on recorded gradients, or on synthetic ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from gradwire.codecs import Codec
from gradwire.errors import TensorError
from gradwire.planner.inputs.threads import use_threads
from gradwire.timing.measure.calibrate import cost_on, encode_and_add_s, rest_between_segments, sums
from gradwire.timing.measure.repeats import disagreement
from gradwire.timing.replay.environment import CodecCost
from gradwire.timing.replay.line import Line

SAMPLE_COUNT = 1 << 20
"""Floats of a gradient that are measured on: stretches of it from the first layer to the last."""
STRETCHES = 16
SYNTHETIC_SCALE = 1e-3
SYNTHETIC_SAMPLES = 4
SEGMENT_NBYTES = 1 << 20
ROUNDS = 3
"""The measurements of each codec, seconds apart, because other work on the machine varies."""

Show = Callable[[int, int, str], None]
"""Called with the number of codecs done, the number of codecs, and the codec that is measured now."""


def measure_codecs(
    codecs: Sequence[Codec],
    gradients: Sequence[torch.Tensor],
    world: int,
    threads: int,
    line: Line,
    show: Show = lambda _done, _total, _what: None,
) -> dict[str, CodecCost]:
    """Return the cost of every codec, by its spec, on sums of up to ``world`` of the gradients.

    The gradients are those of different steps or ranks, of any shape and floating dtype, all of one size; the
    threads are those of one rank; frames will wait for the line. Raises ``TensorError`` for gradients that
    are empty or of different sizes.
    """
    samples = [excerpt(gradient) for gradient in gradients]
    rest_s, total = rest_between_segments(line, SEGMENT_NBYTES), ROUNDS * len(codecs)
    costs: dict[str, CodecCost] = {}
    seconds: dict[str, list[float]] = {str(codec): [] for codec in codecs}
    with use_threads(threads):
        summed = sums(samples, world)
        for done, codec in enumerate(codecs):
            show(done, total, str(codec))
            costs[str(codec)] = cost_on(codec, summed, SEGMENT_NBYTES, rest_s)
            seconds[str(codec)].append(encode_and_add_s(codec, samples[0], SEGMENT_NBYTES, rest_s))
        for done, codec in enumerate((ROUNDS - 1) * list(codecs), start=len(codecs)):
            show(done, total, f"{codec} again")
            seconds[str(codec)].append(encode_and_add_s(codec, samples[0], SEGMENT_NBYTES, rest_s))
    show(total, total, "")
    return {
        spec: replace(cost, disagreement=max(cost.disagreement, disagreement(seconds[spec])))
        for spec, cost in costs.items()
    }


def synthetic_gradients(count: int) -> list[torch.Tensor]:
    """Return independent samples of a Laplace distribution, the typical distribution of gradients."""
    generator = torch.Generator().manual_seed(0)
    size = (min(count, SAMPLE_COUNT),)
    samples = []
    for _ in range(SYNTHETIC_SAMPLES):
        uniform = torch.rand(size, generator=generator) - 0.5
        inside = 1 - 2 * uniform.abs().clamp(max=0.5 - 2**-24)
        samples.append(-SYNTHETIC_SCALE * uniform.sign() * inside.log())
    return samples


def excerpt(gradient: torch.Tensor, count: int = SAMPLE_COUNT) -> torch.Tensor:
    """Return at most ``count`` values as 1-D float32 on the CPU, from all over the gradient.

    Raises ``TensorError`` for anything but a tensor of finite floating point numbers.
    """
    if not isinstance(gradient, torch.Tensor) or not gradient.is_floating_point():
        kind = gradient.dtype if isinstance(gradient, torch.Tensor) else type(gradient).__name__
        raise TensorError(f"a gradient must be a tensor of floating point numbers, but this one is {kind}")
    if gradient.is_meta:
        raise TensorError("a gradient must have values, but this one is on the device 'meta'")
    flat = (gradient if gradient.layout is torch.strided else gradient.to_dense()).detach().flatten()
    if flat.numel() > count:
        length = count // STRETCHES
        apart = (flat.numel() - length) // (STRETCHES - 1)
        flat = torch.cat([flat[i * apart : i * apart + length] for i in range(STRETCHES)])
    values = flat.to(device="cpu", dtype=torch.float32).contiguous()
    if not values.isfinite().all():
        raise TensorError("a gradient to measure codecs on must be finite, but NaN or infinity is in it")
    return values
