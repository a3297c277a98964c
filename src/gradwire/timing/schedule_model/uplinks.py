"""The rate of each of several messages, from the rates at its ends and the uplinks that it shares."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gradwire.timing.schedule_model.network import Groups, Network
from gradwire.timing.schedule_model.rounds import Pairs

Rates = NDArray[np.float64]

_SAME = 1 + 1e-12
"""Shares that differ only by rounding are settled together."""


class Wires:
    """The rates and latencies of a network as arrays, for one set of messages after the other."""

    def __init__(self, network: Network) -> None:
        self._send = np.array(network.per_rank(network.send_nbytes_per_s), dtype=np.float64)
        self._recv = np.array(network.per_rank(network.recv_nbytes_per_s), dtype=np.float64)
        groups = network.groups or Groups((0,) * network.world, 1.0)
        self._group = np.array(groups.of, dtype=np.intp)
        self._uplink = np.full(groups.count, groups.uplink_nbytes_per_s, dtype=np.float64)
        self._latency_s, self._crossing_s = network.latency_s, groups.latency_s

    def latency_s(self, pairs: Pairs) -> NDArray[np.float64]:
        """Return the seconds that each message takes beyond its bytes."""
        crossing = self._group[pairs.source] != self._group[pairs.target]
        return np.where(crossing, self._latency_s + self._crossing_s, self._latency_s)

    def rates(self, pairs: Pairs) -> Rates:
        """Return the bytes per second of each message while all of them run.

        They are max-min fair (Bertsekas and Gallager, Data Networks, section 6.5.2): none can be raised
        without lowering one that is no higher.
        """
        rates: Rates = np.minimum(self._send[pairs.source], self._recv[pairs.target])
        source, target = self._group[pairs.source], self._group[pairs.target]
        crossing = np.flatnonzero(source != target)
        if len(crossing):
            rates[crossing] = _share(rates[crossing], source[crossing], target[crossing], self._uplink)
        return rates


def _share(most: Rates, source: NDArray[np.intp], target: NDArray[np.intp], uplink: Rates) -> Rates:
    """Raise all messages' rates at the same pace, until each reaches its own rate or a full uplink."""
    rates = np.zeros_like(most)
    out, into = uplink.copy(), uplink.copy()
    open_ = np.arange(len(most))
    while len(open_):
        up, down = source[open_], target[open_]
        out_share = out / np.maximum(np.bincount(up, minlength=len(out)), 1)
        into_share = into / np.maximum(np.bincount(down, minlength=len(into)), 1)
        limit = np.minimum(most[open_], np.minimum(out_share[up], into_share[down]))
        settled = limit <= limit.min() * _SAME
        done, rate = open_[settled], limit[settled]
        rates[done] = rate
        out -= np.bincount(up[settled], rate, minlength=len(out))
        into -= np.bincount(down[settled], rate, minlength=len(into))
        open_ = open_[~settled]
    return rates
