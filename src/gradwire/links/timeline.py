"""When a wire is busy: the bookkeeping of a throttled link, in nanoseconds; it never reads a clock."""

from __future__ import annotations

import bisect


class Timeline:
    """The busy times of one direction of a wire, kept as disjoint intervals in order.

    What is late to be asked for still gets the time that was free when it came, so it does not matter in
    which order a receiver looks at frames that arrived in another. Neighbouring intervals are merged and
    those older than ``horizon_ns`` are forgotten: a wire that is always busy is one interval.
    """

    def __init__(self, horizon_ns: int = 60 * 10**9) -> None:
        self._horizon_ns = horizon_ns
        self._busy: list[tuple[int, int]] = []

    def occupy(self, start_ns: int, duration_ns: int) -> tuple[int, int]:
        """Take ``duration_ns`` of the free time from ``start_ns`` on; return where that begins and ends."""
        if duration_ns <= 0:
            return start_ns, start_ns
        pieces = self._free_pieces(start_ns, duration_ns)
        for piece in pieces:
            bisect.insort(self._busy, piece)
        self._busy = _merged(self._busy, self._busy[-1][1] - self._horizon_ns)
        return pieces[0][0], pieces[-1][1]

    def _free_pieces(self, start: int, left: int) -> list[tuple[int, int]]:
        pieces = []
        for begin, end in self._busy:
            if begin > start:
                piece = min(left, begin - start)
                pieces.append((start, start + piece))
                left -= piece
                if left == 0:
                    return pieces
            start = max(start, end)
        return [*pieces, (start, start + left)]


def _merged(intervals: list[tuple[int, int]], oldest: int) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for begin, end in intervals:
        if end < oldest:
            continue
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((begin, end))
    return merged
