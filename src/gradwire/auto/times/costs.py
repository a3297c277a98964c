"""What rank 0 measures of its codecs and its host, once, so that another choice need not wait for it."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from gradwire.codecs import Codec
from gradwire.errors import LinkError
from gradwire.machine import cores
from gradwire.plan import FLOAT_NBYTES
from gradwire.planner.inputs.calibration import SEGMENT_NBYTES, excerpt
from gradwire.planner.inputs.cluster import Cluster
from gradwire.planner.inputs.frame_cost import measure_host
from gradwire.planner.inputs.threads import use_threads
from gradwire.timing.measure.calibrate import codec_cost, cost_on_other_gradients, rest_between_segments
from gradwire.timing.replay.environment import CodecCost, Environment
from gradwire.timing.replay.host import HostCost
from gradwire.timing.replay.line import Line

_REPEATS = 3
"""Enough to tell codecs apart, and for the cost of frames; training waits meanwhile."""


class Costs:
    """The seconds of codecs and frames on this host, for ``world`` ranks."""

    def __init__(self, world: int) -> None:
        self._world = world
        self._host: HostCost | None = None
        self._codecs: dict[str, CodecCost] = {}
        self._counts: dict[str, int] = {}  # of the values for which a codec was timed
        self._outdated: set[str] = set()

    def forget_sizes(self) -> None:
        """Measure the sizes of payloads anew, because gradients may be others; codecs stay as fast."""
        self._outdated |= self._codecs.keys()

    def environment(self, line: Line, codecs: Iterable[Codec], values: torch.Tensor) -> Environment:
        """Return where plans with these codecs run, with what they take of ``values``.

        Codecs are timed that were not yet, for as many values; of others, sizes that are outdated are
        measured again. Raises ``GradwireError`` where that fails.
        """
        cluster = Cluster(self._world, line)
        rest_s, found = rest_between_segments(line, SEGMENT_NBYTES), dict[str, CodecCost]()
        with use_threads(cluster.threads):
            for codec in codecs:
                name = str(codec)
                if self._counts.get(name) != values.numel():
                    found[name] = codec_cost(codec, [values], 1, SEGMENT_NBYTES, rest_s, _REPEATS)
                elif name in self._outdated:
                    found[name] = cost_on_other_gradients(self._codecs[name], codec, {1: values})
                else:
                    found[name] = self._codecs[name]
        self._codecs |= found
        self._counts |= dict.fromkeys(found, values.numel())
        self._outdated -= found.keys()
        return Environment(line, found, self._of(cluster))

    def _of(self, cluster: Cluster) -> HostCost:
        """Return what frames cost."""
        if self._host is None:
            sharing = self._world if cluster.is_shared else 1
            try:
                self._host = measure_host(cores(), sharing, _REPEATS)
            except LinkError:  # no local network
                self._host = HostCost(cores=cores(), ranks_per_machine=sharing)
        return self._host


def typical(values: torch.Tensor) -> torch.Tensor:
    """Return the part of a gradient with which codecs are measured."""
    return excerpt(values, SEGMENT_NBYTES // FLOAT_NBYTES)
