"""Which pairs of ranks are measured, and which of them at the same time."""

from __future__ import annotations

import threading
import time
from itertools import pairwise

import pytest

from gradwire.links import Link
from gradwire.timing import pairs
from gradwire.timing.pairs import hosts_of, matchings
from support.ranks import run_ranks


@pytest.mark.parametrize("world", range(1, 18))
@pytest.mark.parametrize("alone", [True, False])
def test_every_line_of_the_ring_is_measured_once_and_no_rank_twice_at_once(world: int, alone: bool) -> None:
    groups = matchings(range(world) if alone else [0] * world)
    pairs = [pair for group in groups for pair in group]
    ring = {tuple(sorted((rank, (rank + 1) % world))) for rank in range(world)} if world > 1 else set()
    assert len(pairs) == len(set(pairs))
    assert {*pairs} == ring
    assert all(low < high for low, high in pairs)
    for group in groups:
        ranks = [rank for pair in group for rank in pair]
        assert len(ranks) == len(set(ranks))
    assert len(groups) <= 3


@pytest.mark.parametrize("hosts", ["aabb", "aaaabbbbcccc", "abab", "aab", "abcabc", "aaaaaaaabbbbbbbb"])
def test_no_host_takes_part_in_two_measurements_at_once(hosts: str) -> None:
    groups = matchings(hosts)
    measured = {pair for group in groups for pair in group}
    ring = [*pairwise(range(len(hosts))), (0, len(hosts) - 1)]
    assert {pair for pair in ring if hosts[pair[0]] != hosts[pair[1]]} <= measured <= {*ring}
    inside = [hosts[low] for low, high in measured if hosts[low] == hosts[high]]
    crowded = {hosts[low] for low, high in ring if hosts[low] == hosts[high]}
    assert sorted(inside) == sorted(crowded), "one pair inside each host"
    for group in groups:
        taking_part = [host for pair in group for host in {hosts[rank] for rank in pair}]
        assert len(taking_part) == len({*taking_part})
    assert len(groups) <= 6


def test_ranks_of_shared_hosts_wait_for_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = [b"a", b"a", b"b", b"b"]
    monkeypatch.setattr(pairs, "hosts_of", lambda _: hosts)
    busy, crowded, lock = list[bytes](), list[bytes](), threading.Lock()

    def measure_for_a_while(link: Link) -> list[int]:
        found = []
        for peer in pairs.peers_in_turn(link):
            found.append(peer)
            if link.rank < peer:
                both = {hosts[link.rank], hosts[peer]}
                with lock:
                    crowded.extend(both & {*busy})
                    busy.extend(both)
                time.sleep(0.05)
                with lock:
                    for host in both:
                        busy.remove(host)
        return found

    assert run_ranks(4, measure_for_a_while) == [[1, 3], [0, 2], [3, 1], [2, 0]]
    assert crowded == []


def test_all_ranks_know_who_shares_a_host(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len({*map(tuple, run_ranks(3, hosts_of))}) == 1
    assert len({*run_ranks(3, hosts_of)[0]}) == 1
    machines = iter("aba")

    def on_one_of_two(link: Link) -> list[bytes]:
        return hosts_of(link)

    monkeypatch.setattr(pairs, "machine_id", lambda: next(machines))
    seen = run_ranks(3, on_one_of_two)
    assert seen[0] == seen[1] == seen[2]
    assert len({*seen[0]}) == 2
