"""Measure what an estimate needs beside steps: what frames and codecs cost, what is lost, and the noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gradwire.auto.estimates.estimate import Estimator
from gradwire.auto.estimates.observed import Observed
from gradwire.auto.settings import Auto
from gradwire.errors import DataError
from gradwire.machine import cores
from gradwire.planner.inputs.calibration import SEGMENT_NBYTES, excerpt
from gradwire.planner.inputs.frame_cost import measure_host
from gradwire.planner.inputs.threads import use_threads
from gradwire.planner.loss.noise import noise_scale
from gradwire.planner.search.candidates import SEGMENTS_NBYTES
from gradwire.timing.measure.calibrate import codec_cost, rest_between_segments
from gradwire.timing.replay.line import Line

PART_NBYTES = min(SEGMENTS_NBYTES)
"""What codecs encode at once: of an excerpt, it holds about as few parameters as segments do of the gradient.

A codec with one scale for all that it encodes takes fewer bytes of many parameters together than of each.
"""
CAREFUL, QUICK = 9, 3
"""How often each codec is measured: on a machine that does nothing else, and while a training waits."""


def estimator(
    observed: Observed,
    lines: Sequence[Line],
    most_hosts: int,
    *,
    settings: Auto | None = None,
    repeats: int = CAREFUL,
) -> Estimator:
    """Return what estimates steps on such lines, up to so many hosts; measuring takes some seconds.

    Raises ``DataError`` where no gradients were observed, ``TensorError`` for gradients that are not finite,
    and ``LinkError`` where frames cannot be measured.
    """
    if not observed.gradients:
        raise DataError(
            "no gradients were observed, without which nothing is known of codecs; run more steps"
        )
    settings = Auto() if settings is None else settings
    host = replace(measure_host(cores(), 1), ranks_per_machine=1)
    samples = [excerpt(each) for each in observed.gradients]
    rest_s = max(rest_between_segments(line, SEGMENT_NBYTES) for line in lines)
    with use_threads(observed.threads):
        costs = {
            str(codec): codec_cost(codec, samples, most_hosts, PART_NBYTES, rest_s, repeats)
            for codec in settings.candidates
        }
    return Estimator(observed, host, costs, noise_scale(observed.gradients), settings)
