"""Which pairs of ranks are measured, and which of them at the same time."""

from __future__ import annotations

from itertools import pairwise

import pytest

from gradwire.timing import pairs
from gradwire.timing.pairs import HostMap, directions, map_hosts, matchings
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


@pytest.mark.parametrize("hosts", ["ab", "abc", "abcd", "aabb", "abab", "aaaabbbb", "aaa", "aab"])
def test_no_host_sends_or_receives_twice_at_once(hosts: str) -> None:
    alone, both = directions(hosts)
    places = range(len(hosts)) if len({*hosts}) == 1 else hosts
    for group in alone:
        busy = [place for pair in group for place in {places[rank] for rank in pair}]
        assert len(busy) == len({*busy})
    for group in both:
        for end in (0, 1):
            busy = [places[pair[end]] for pair in group]
            assert len(busy) == len({*busy})
    every = [pair for group in both for pair in group]
    assert len(every) == len({*every})
    assert all(second == (first + 1) % len(hosts) for first, second in every), "as a ring sends"
    assert {pair for group in alone for pair in group} <= {*every}
    between = {(i, (i + 1) % len(hosts)) for i in range(len(hosts)) if hosts[i] != hosts[i - len(hosts) + 1]}
    assert between <= {*every}, "all links between hosts are measured"


def test_all_ranks_know_who_shares_a_host(monkeypatch: pytest.MonkeyPatch) -> None:
    here = run_ranks(3, map_hosts)
    assert here[0] == here[1] == here[2]
    assert len({*here[0].hosts}) == 1
    assert here[0].firsts() == (0,)
    assert not here[0].is_shared
    assert here[0].ranks_per_machine(1) == 3
    machines = iter("aba")
    monkeypatch.setattr(pairs, "machine_id", lambda: next(machines))
    seen = run_ranks(3, map_hosts)
    assert seen[0] == seen[1] == seen[2]
    assert len({*seen[0].hosts}) == 2
    assert seen[0].is_shared


def test_one_rank_of_each_kind_of_host_is_the_first() -> None:
    hosts, fast = tuple(b"aabbccd"[i : i + 1] for i in range(7)), (b"fast",) * 2
    known = HostMap(hosts, hosts, (*fast, *fast, b"slow", b"slow", b"fast"))
    assert known.firsts() == (0, 4, 6), "the last host has one rank, and so more cores for it"
    assert [known.ranks_per_machine(rank) for rank in range(7)] == [2] * 6 + [1]
