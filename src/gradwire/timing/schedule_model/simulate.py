"""Simulate an all-reduce on a network that isn't uniform, with up to thousands of ranks.

A message starts when both its ranks have reached the step, and a step ends when its send, its receive, and
its addition have ended. A message travels at the lowest of three rates: its source's, its target's, and its
share of the uplinks that it crosses. The messages of one round share an uplink fairly (max-min), as if all of
them ran at once; if one ends early, the others don't get its share.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gradwire.collectives import Collective
from gradwire.timing.schedule_model.network import Network
from gradwire.timing.schedule_model.rounds import Index, Round, rounds
from gradwire.timing.schedule_model.uplinks import Wires

Seconds = NDArray[np.float64]


@dataclass(frozen=True, eq=False, slots=True)
class Simulation:
    """When every rank is done, counted from 0, and how long it waited.

    ``finish_s[r]`` is when rank ``r`` ends its last step. ``idle_s[r]`` are the seconds between its start and
    that in which it neither sent nor received nor added.
    """

    finish_s: Seconds
    idle_s: Seconds

    @property
    def total_s(self) -> float:
        """When the last rank is done."""
        return float(self.finish_s.max())


class _Clocks:
    """All ranks at once: when their current steps began, end so far, and what they are busy with in them."""

    def __init__(self, start: Seconds) -> None:
        self.begin, self.end, self.busy = start.copy(), start.copy(), np.zeros_like(start)
        self.busy_from, self.busy_to = start.copy(), start.copy()

    def enter(self, ranks: Index) -> None:
        """Let these ranks go on to their next step."""
        self.begin[ranks] = self.busy_from[ranks] = self.busy_to[ranks] = self.end[ranks]

    def occupy(self, ranks: Index, start: Seconds, stop: Seconds) -> None:
        """Let each of these ranks, none twice, send or receive; a step does each at most once."""
        both = np.minimum(stop, self.busy_to[ranks]) - np.maximum(start, self.busy_from[ranks])
        self.busy[ranks] += stop - start - np.maximum(both, 0.0)
        self.busy_from[ranks], self.busy_to[ranks] = start, stop
        self.end[ranks] = np.maximum(self.end[ranks], stop)


def simulate(collective: Collective, network: Network, nbytes: float, *, ratio: float = 1.0) -> Simulation:
    """Return what an all-reduce of ``nbytes`` bytes of float32 per rank costs on ``network``.

    ``ratio`` is how many bytes of float32 a codec makes one byte of: it divides what travels, not what is
    added. Chunks count as equal. Raises ``SpecError`` if the schedules of the ranks do not fit together.
    """
    chunk_nbytes = nbytes / collective.chunks(network.world)
    reduce_s_per_chunk = chunk_nbytes * np.array(network.per_rank(network.reduce_s_per_nbyte))
    start = np.array(network.per_rank(network.start_s), dtype=np.float64)
    clocks = _Clocks(start)
    wires, pairs = Wires(network), None
    for round_ in rounds(collective, network.world):
        if round_.pairs is not pairs:
            pairs = round_.pairs
            latency_s, move_s_per_chunk = wires.latency_s(pairs), chunk_nbytes / ratio / wires.rates(pairs)
        _run(round_, clocks, latency_s + (round_.last - round_.first) * move_s_per_chunk, reduce_s_per_chunk)
    return Simulation(clocks.end, np.maximum(clocks.end - start - clocks.busy, 0.0))


def _run(round_: Round, clocks: _Clocks, move_s: Seconds, reduce_s_per_chunk: Seconds) -> None:
    pairs = round_.pairs
    clocks.enter(round_.enter)
    start = np.maximum(clocks.begin[pairs.senders], clocks.begin[pairs.target])
    arrived = start + move_s
    clocks.occupy(pairs.senders, start, arrived)
    added = arrived + round_.combine * (round_.last - round_.first) * reduce_s_per_chunk[pairs.target]
    clocks.occupy(pairs.receivers, start[pairs.by_receiver], added[pairs.by_receiver])
