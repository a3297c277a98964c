from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire import collectives
from gradwire.timing.simulate import rounds
from gradwire_lab.closed_forms import formulas
from gradwire_lab.closed_forms.formulas import AlphaBetaGamma
from gradwire_lab.closed_forms.network import Groups, Network
from support.cases import for_each
from support.schedule_cost import cost

LINK = AlphaBetaGamma(13e-6, 0.8e-9, 0.11e-9)
POWERS = [2**k for k in range(1, 13)]
SPECS = [
    *sorted(collectives.TABLE),
    "hierarchical:4",
    "hierarchical:3,ring+star",
    "hierarchical:2x2,tree+star+ring",
]

Formula = Callable[[int, float, AlphaBetaGamma], float]


def total_s(spec: str, network: Network, nbytes: float) -> float:
    return network.simulate(collectives.get(spec), nbytes).total_s


@pytest.mark.parametrize("spec", SPECS)
@for_each("world", range(1, 18))
def test_on_a_uniform_network_it_is_the_walk(spec: str, world: int) -> None:
    algorithm = collectives.get(spec)
    found = Network.uniform(world, LINK).simulate(algorithm, 1e6, ratio=3.0)
    assert found.total_s == pytest.approx(cost(algorithm, world, 1e6, LINK, ratio=3.0).total_s, rel=1e-12)
    assert found.finish_s.shape == found.idle_s.shape == (world,)


@pytest.mark.parametrize(
    ("name", "formula"),
    [("star", formulas.star_s), ("tree", formulas.tree_s), ("butterfly", formulas.butterfly_s)],
)
@pytest.mark.parametrize("world", POWERS)
def test_powers_of_two_meet_the_closed_forms(name: str, formula: Formula, world: int) -> None:
    assert total_s(name, Network.uniform(world, LINK), 1e8) == pytest.approx(
        formula(world, 1e8, LINK), rel=1e-10
    )


def test_4096_ranks_in_a_ring_meet_the_closed_form_in_seconds() -> None:
    begin = time.perf_counter()
    found = Network.uniform(4096, LINK).simulate(collectives.get("ring"), 1e8)
    assert time.perf_counter() - begin < 30
    assert found.total_s == pytest.approx(formulas.ring_s(4096, 1e8, LINK), rel=1e-10)
    assert found.idle_s.max() < 1e-9


def test_4096_ranks_in_rings_of_rings_take_the_sum_of_the_levels() -> None:
    """Groups of 64: 4 x 63 hops, and 2 (p - 1)/p n bytes."""
    expected_s = 252 * LINK.alpha_s + formulas.ring_s(4096, 1e8, AlphaBetaGamma(0.0, 0.8e-9, 0.11e-9))
    assert total_s("hierarchical:64", Network.uniform(4096, LINK), 1e8) == pytest.approx(
        expected_s, rel=1e-10
    )


@pytest.mark.parametrize("world", [2, 5, 8])
def test_a_ring_runs_at_the_rate_of_its_slowest_link(world: int) -> None:
    """Every message waits for the slow one, which all chunks pass."""
    fast = Network.uniform(world, AlphaBetaGamma(1e-6, 1e-9))
    for rank in range(world):
        send = list(fast.per_rank(fast.send_nbytes_per_s))
        send[rank] /= 7
        slow = Network(world, tuple(send), fast.recv_nbytes_per_s, fast.latency_s)
        expected_s = formulas.ring_s(world, 1e6, AlphaBetaGamma(1e-6, 7e-9))
        assert total_s("ring", slow, 1e6) <= expected_s * (1 + 1e-12)
        # The slow rank sends 2 (p - 1) chunks, one after the other, at its own rate.
        assert total_s("ring", slow, 1e6) >= expected_s * (1 - 1e-12)


def test_a_slow_host_of_a_star_holds_up_its_own_messages_only() -> None:
    """Three workers at 1 s a bucket, one of them at 5: 1 + 1 + 5 up, and as much down."""
    network = Network(4, 100.0, 100.0).slowed(2, 5)
    assert total_s("star", network, 100) == pytest.approx(14.0)


@pytest.mark.parametrize("world", [2, 3, 8, 17])
def test_a_late_rank_delays_a_ring_by_just_that(world: int) -> None:
    network = Network.uniform(world, LINK)
    on_time_s = total_s("ring", network, 1e6)
    for rank in range(world):
        late = network.delayed(rank, 2.5).simulate(collectives.get("ring"), 1e6)
        assert late.total_s == pytest.approx(on_time_s + 2.5, rel=1e-12)
        assert late.idle_s[rank] == pytest.approx(0.0, abs=1e-9)
        others = np.delete(late.idle_s, rank)
        assert others == pytest.approx(2.5, rel=0.01)


def test_late_workers_delay_a_star_only_as_far_as_the_root_gets_to_them() -> None:
    """The root takes rank 1, 2 and 3 for 1 s each: rank 3 may be 2 s late, and then counts."""
    network = Network(4, 100.0, 100.0)
    assert total_s("star", network, 100) == pytest.approx(6.0)
    assert total_s("star", network.delayed(3, 2.0), 100) == pytest.approx(6.0)
    assert total_s("star", network.delayed(3, 2.5), 100) == pytest.approx(6.5)
    assert total_s("star", network.delayed(1, 2.5), 100) == pytest.approx(8.5)


def test_idle_is_what_neither_sends_nor_receives_nor_adds() -> None:
    """A star of three, 1 s a message and 0.5 s an addition.

    Up: rank 1 until 1 s, the root adds until 1.5, rank 2 until 2.5, the root adds until 3. Down: rank 1 until
    4 s, rank 2 until 5.
    """
    found = Network(3, 100.0, 100.0, reduce_s_per_nbyte=0.005).simulate(collectives.get("star"), 100)
    assert found.finish_s == pytest.approx([5.0, 4.0, 5.0])
    assert found.idle_s == pytest.approx([0.0, 4.0 - 2.0, 5.0 - 2.0])


def test_a_core_with_too_little_room_slows_what_crosses_it() -> None:
    """Two hosts of four ranks at 100 bytes/s, and 100 bytes/s between them; 800 bytes, 100 a chunk.

    Neighbours on one host: one message crosses each way, at full rate, and nothing is lost. Dealt in turn:
    four cross each way, at a quarter of the rate.
    """
    near = Network(8, 100.0, 100.0, groups=Groups.blocks(8, 4, 100.0))
    far = Network(8, 100.0, 100.0, groups=Groups.dealt(8, 2, 100.0))
    assert total_s("ring", near, 800) == pytest.approx(14.0)
    assert total_s("ring", far, 800) == pytest.approx(4 * 14.0)


def test_what_hierarchies_and_rings_cross_a_thin_core_with() -> None:
    """Two hosts of four ranks, 100 bytes/s within, 50 between: 800 bytes.

    A flat ring sends its 14 chunks of 100 bytes over the core at 50 bytes/s. In a hierarchy of rings four
    owners send a chunk of 100 twice at 12.5 bytes/s each, between 2 x 3 steps of 200 bytes at 100. With a
    star above, one rank of each host: the whole bucket, twice, at 50. Where the ranks are dealt in turn, the
    flat ring suffers on every step, and groups in the order of the ranks are of no use.
    """
    near = Network(8, 100.0, 100.0, groups=Groups.blocks(8, 4, 50.0))
    assert total_s("ring", near, 800) == pytest.approx(14 * 2)
    assert total_s("hierarchical:4", near, 800) == pytest.approx(6 * 2 + 2 * 8)
    assert total_s("hierarchical:4,tree+star", near, 800) == pytest.approx(4 * 8 + 2 * 16)
    far = Network(8, 100.0, 100.0, groups=Groups.dealt(8, 2, 50.0))
    assert total_s("ring", far, 800) == pytest.approx(14 * 8)
    assert total_s("hierarchical:4", near, 800) < total_s("ring", far, 800)


def test_latency_between_sites_counts_once_a_crossing() -> None:
    """Two sites of four ranks, 1 s apart, nothing else: 14 steps of a flat ring, 2 of a hierarchy."""
    sites = Network(8, 1.0, 1.0, groups=Groups.blocks(8, 4, 1.0, latency_s=1.0))
    assert total_s("ring", sites, 0) == pytest.approx(14.0)
    assert total_s("hierarchical:4", sites, 0) == pytest.approx(2.0)


@st.composite
def networks(draw: st.DrawFn) -> Network:
    world = draw(st.integers(2, 12))
    each = st.lists(st.floats(1e6, 1e9), min_size=world, max_size=world).map(tuple)
    late = st.lists(st.floats(0, 1), min_size=world, max_size=world).map(tuple)
    return Network(world, draw(each), draw(each), draw(st.floats(0, 1e-3)), 1e-9, draw(late))


@given(st.sampled_from(SPECS), networks(), st.floats(0, 1e8))
def test_more_latency_more_bytes_or_a_slower_rank_is_never_faster(
    spec: str, network: Network, nbytes: float
) -> None:
    before_s = total_s(spec, network, nbytes) * (1 - 1e-9)
    late = Network(
        network.world,
        network.send_nbytes_per_s,
        network.recv_nbytes_per_s,
        network.latency_s + 1e-4,
        network.reduce_s_per_nbyte,
        network.start_s,
    )
    assert total_s(spec, late, nbytes) >= before_s
    assert total_s(spec, network, nbytes * 1.5) >= before_s
    assert total_s(spec, network.slowed(network.world // 2, 2), nbytes) >= before_s
    assert total_s(spec, network.delayed(0, 0.1), nbytes) >= before_s


@given(st.sampled_from(SPECS), networks(), st.floats(0, 1e8))
def test_no_port_carries_more_than_its_rate(spec: str, network: Network, nbytes: float) -> None:
    found = network.simulate(collectives.get(spec), nbytes)
    card = cost(collectives.get(spec), network.world, nbytes, LINK)
    start = network.per_rank(network.start_s)
    for moved, rates in (
        (card.sent_nbytes, network.per_rank(network.send_nbytes_per_s)),
        (card.received_nbytes, network.per_rank(network.recv_nbytes_per_s)),
    ):
        for rank in range(network.world):
            least_s = moved[rank] / rates[rank]
            assert found.finish_s[rank] >= (start[rank] + least_s) * (1 - 1e-9)
    assert (found.idle_s >= 0).all()
    assert (found.finish_s - np.array(start) >= found.idle_s - 1e-12).all()


def test_uplinks_carry_no_more_than_their_rate() -> None:
    """Two of three groups are crossed by everything that leaves group 0, whatever its order."""
    network = Network(12, 1e9, 1e9, groups=Groups.blocks(12, 4, (1e6, 5e6, 9e6)))
    for spec in SPECS:
        crossing = sum(
            int((each.last - each.first)[(each.pairs.source < 4) & (each.pairs.target >= 4)].sum())
            for each in rounds(collectives.get(spec), 12)
        )
        nbytes = crossing * 1e6 / collectives.get(spec).chunks(12)
        assert nbytes > 0
        assert total_s(spec, network, 1e6) >= nbytes / 1e6 * (1 - 1e-9)
