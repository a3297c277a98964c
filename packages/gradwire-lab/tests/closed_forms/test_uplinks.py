from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire.timing.simulate import Pairs
from gradwire_lab.closed_forms.network import Groups, Network


def pairs(*ends: tuple[int, int]) -> Pairs:
    source, target = np.array(ends, dtype=np.intp).T
    return Pairs.some(source, target)


def rates(network: Network, *ends: tuple[int, int]) -> list[float]:
    found: list[float] = network.wires().rates(pairs(*ends)).tolist()
    return found


def test_a_message_goes_at_the_slower_of_its_ends() -> None:
    network = Network(3, (1.0, 5.0, 9.0), (4.0, 8.0, 3.0))
    assert rates(network, (0, 1), (1, 2), (2, 0)) == [1.0, 3.0, 4.0]


def test_messages_out_of_a_group_share_its_uplink() -> None:
    network = Network(8, 10.0, 10.0, groups=Groups.blocks(8, 4, 20.0))
    assert rates(network, (0, 4), (1, 5), (2, 6), (3, 7)) == [5.0] * 4
    assert rates(network, (0, 4), (1, 5), (2, 3), (3, 2)) == [10.0] * 4
    assert rates(network, (0, 4), (4, 0)) == [10.0, 10.0]


def test_uplinks_are_shared_into_a_group_as_well() -> None:
    network = Network(6, 10.0, 10.0, groups=Groups((0, 1, 2, 3, 3, 3), 9.0))
    assert rates(network, (0, 3), (1, 4), (2, 5)) == pytest.approx([3.0, 3.0, 3.0])


def test_who_cannot_use_its_share_leaves_it_to_the_others() -> None:
    """Of 12 bytes a second, a port of 2 takes 2, the others 5 each."""
    network = Network(6, (2.0, 9.0, 9.0, 9.0, 9.0, 9.0), 9.0, groups=Groups.blocks(6, 3, 12.0))
    assert rates(network, (0, 3), (1, 4), (2, 5)) == pytest.approx([2.0, 5.0, 5.0])


def test_two_bottlenecks_in_a_row() -> None:
    """Group 0 has 10 for two messages, but group 1 lets one of them in at 2: the other gets 8."""
    network = Network(4, 100.0, 100.0, groups=Groups((0, 0, 1, 2), (10.0, 2.0, 100.0)))
    assert rates(network, (0, 2), (1, 3)) == pytest.approx([2.0, 8.0])


def test_only_messages_between_groups_take_their_latency() -> None:
    network = Network(4, 1.0, 1.0, 0.5, groups=Groups.blocks(4, 2, 1.0, latency_s=2.0))
    assert network.wires().latencies_s(pairs((0, 1), (1, 2), (3, 0))).tolist() == [0.5, 2.5, 2.5]


@given(st.data())
def test_rates_are_max_min_fair(data: st.DataObject) -> None:
    """Nothing is overfull, and every message has a bottleneck: full, and nobody there has more than it."""
    world = data.draw(st.integers(2, 12))
    each = st.lists(st.floats(0.1, 100), min_size=world, max_size=world).map(tuple)
    of = tuple(data.draw(st.lists(st.integers(0, 3), min_size=world, max_size=world)))
    uplink = tuple(data.draw(st.lists(st.floats(0.1, 100), min_size=max(of) + 1, max_size=max(of) + 1)))
    network = Network(world, data.draw(each), data.draw(each), groups=Groups(of, uplink))
    ends = list(enumerate(data.draw(st.permutations(range(world)))))
    found = rates(network, *ends)
    places: dict[tuple[str, int], list[int]] = {}
    rooms: dict[tuple[str, int], float] = {}
    send, recv = network.per_rank(network.send_nbytes_per_s), network.per_rank(network.recv_nbytes_per_s)
    for i, (a, b) in enumerate(ends):
        ways = [("send", a, send[a]), ("recv", b, recv[b])]
        if of[a] != of[b]:
            ways += [("out", of[a], uplink[of[a]]), ("into", of[b], uplink[of[b]])]
        for kind, number, room in ways:
            places.setdefault((kind, number), []).append(i)
            rooms[kind, number] = room
    full = set()
    for place, users in places.items():
        used = sum(found[i] for i in users)
        assert used <= rooms[place] * (1 + 1e-9)
        if used >= rooms[place] * (1 - 1e-9):
            most = max(found[i] for i in users)
            full |= {i for i in users if found[i] >= most * (1 - 1e-9)}
    assert full == set(range(world))
