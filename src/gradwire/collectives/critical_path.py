"""The number of hops on a schedule's critical path, if a message waits only for its two ends."""

from __future__ import annotations

from collections.abc import Sequence

from gradwire.collectives.step import Step


def hops_after(schedules: Sequence[Sequence[Step]], begun: Sequence[int]) -> list[int]:
    """Return after how many hops each rank is through, if rank ``r`` begins after ``begun[r]`` of them.

    A message passes in one hop once both its ends are at their steps; a step ends when both its ways have
    passed. The schedules are free of deadlock.
    """
    through = list(begun)
    at = [-1] * len(schedules)
    waiting = [0] * len(schedules)
    came: dict[tuple[int, int], int] = {}  # sender and receiver of a message that one end is at: since when
    idle = list(range(len(schedules)))
    while idle:
        rank = idle.pop()
        at[rank] += 1
        if at[rank] == len(schedules[rank]):
            continue
        step, begin = schedules[rank][at[rank]], through[rank]
        ways = _ways(rank, step)
        waiting[rank] = len(ways)
        for way in ways:
            if way not in came:
                came[way] = begin
                continue
            passed = 1 + max(begin, came.pop(way))
            for end in way:
                through[end] = max(through[end], passed)
                waiting[end] -= 1
                if waiting[end] == 0:
                    idle.append(end)
    return through


def _ways(rank: int, step: Step) -> list[tuple[int, int]]:
    out = [] if step.send_to is None else [(rank, step.send_to)]
    back = [] if step.recv_from is None else [(step.recv_from, rank)]
    return out + back
