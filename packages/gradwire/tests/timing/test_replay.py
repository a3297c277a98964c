"""The replay against closed forms, against hand-made timelines and against what must always hold."""

from __future__ import annotations

import math
from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradwire.collectives import TABLE
from gradwire.errors import SpecError
from gradwire.timing import replay as replay_module
from gradwire.timing.environment import CodecCost, CodecPoint, Environment
from gradwire.timing.line import HostCost, Line
from gradwire.timing.replay import replay

COUNT = 16 * 27720  # divisible by every world up to 12, and small: one frame makes a chunk
BIG_SEGMENT = 1 << 24
NBYTES = 4 * COUNT
ALGORITHMS = sorted(TABLE)
ALONE = HostCost()
FREE = CodecCost("free", (CodecPoint(1, 4.0, 0.0, 0.0, 0.0),), exact=True)


def environment(
    latency_s: float = 1e-4,
    rate: float = 1e8,
    cost: CodecCost = FREE,
    host: HostCost = ALONE,
    **more: object,
) -> Environment:
    return Environment(
        Line(latency_s, rate),
        {cost.codec: cost},
        host,
        header_nbytes=0,
        **more,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("world", range(2, 13))
def test_the_ring_takes_what_its_formula_says(world: int) -> None:
    found = replay("ring", world, COUNT, BIG_SEGMENT, "free", environment())
    wanted = 2 * (world - 1) * (1e-4 + NBYTES / world / 1e8)
    assert found.total_s == pytest.approx(wanted, rel=1e-9)


@pytest.mark.parametrize(("algorithm", "rounds"), [("butterfly", 1), ("tree", 2)])
def test_two_ranks_take_what_the_formulas_say(algorithm: str, rounds: int) -> None:
    found = replay(algorithm, 2, COUNT, BIG_SEGMENT, "free", environment())
    assert found.total_s == pytest.approx(2 * 1e-4 + rounds * NBYTES / 1e8)


@pytest.mark.parametrize("world", [4, 8, 16])
@pytest.mark.parametrize("algorithm", ["butterfly", "tree", "hierarchical"])
def test_streams_that_meet_cost_up_to_twice_what_the_busiest_line_needs(algorithm: str, world: int) -> None:
    found = replay(algorithm, world, COUNT, BIG_SEGMENT, "free", environment(latency_s=0.0))
    busiest_s = max(rank.raw_nbytes for rank in found.ranks) / 1e8
    levels = math.log2(world)
    whole_tree_s = 2 * levels * NBYTES / 1e8
    assert busiest_s * (1 - 1e-9) <= found.total_s <= 2 * max(busiest_s, whole_tree_s * (algorithm == "tree"))


@pytest.mark.parametrize("world", range(2, 9))
def test_the_root_of_a_star_passes_everything_twice(world: int) -> None:
    found = replay("star", world, COUNT, BIG_SEGMENT, "free", environment(latency_s=1e-7))
    assert found.total_s == pytest.approx(2 * (world - 1) * NBYTES / 1e8, rel=1e-3)


@pytest.mark.parametrize("segment_nbytes", [1 << 14, 1 << 16, BIG_SEGMENT])
def test_uploads_that_share_the_servers_line_end_together_whatever_the_segments(segment_nbytes: int) -> None:
    """So nothing is left that a download could begin beside."""
    found = replay("star", 4, COUNT, segment_nbytes, "free", environment(latency_s=1e-7))
    assert found.total_s == pytest.approx(2 * 3 * NBYTES / 1e8, rel=0.02)


def test_two_ranks_spend_what_their_codec_costs() -> None:
    """A ring of two: encode, travel, add; encode, decode the own half, travel, decode."""
    cost = CodecCost("c", (CodecPoint(1, 1.0, 3e-9, 5e-9, 7e-9),), call_s=1e-5)
    found = replay("ring", 2, COUNT, BIG_SEGMENT, "c", environment(cost=cost))
    half = COUNT // 2
    travel = 1e-4 + half * 1.0 / 1e8
    encode, decode, add = (1e-5 + half * each for each in (3e-9, 5e-9, 7e-9))
    assert found.total_s == pytest.approx(encode + travel + add + encode + decode + travel + decode)
    times = found.ranks[0]
    assert times.encode_s == pytest.approx(2 * encode)
    assert times.decode_s == pytest.approx(add + 2 * decode)
    assert times.wait_s == pytest.approx(2 * travel)
    assert times.wire_nbytes == 2 * half
    assert times.raw_nbytes == 8 * half


def test_the_owner_of_a_chunk_decodes_it_unless_the_codec_is_exact() -> None:
    points = (CodecPoint(1, 1.0, 0.0, 5e-9, 0.0),)
    exact, lossy = (
        replay("ring", 2, COUNT, BIG_SEGMENT, "c", environment(cost=CodecCost("c", points, exact=exact)))
        for exact in (True, False)
    )
    assert lossy.total_s - exact.total_s == pytest.approx(COUNT // 2 * 5e-9)


def test_partial_sums_grow_with_their_terms() -> None:
    """A ring of four sends sums of 1, 2 and 3 terms, and then the whole sum three times."""
    cost = CodecCost("c", tuple(CodecPoint(k, float(k), 0.0, 0.0, 0.0) for k in (1, 2, 3, 4)))
    found = replay("ring", 4, COUNT, BIG_SEGMENT, "c", environment(cost=cost))
    assert found.ranks[2].wire_nbytes == pytest.approx(COUNT / 4 * (1 + 2 + 3 + 4 * 3))


def test_ranks_that_share_a_core_encode_one_after_the_other() -> None:
    cost = CodecCost("c", (CodecPoint(1, 4.0, 1e-8, 0.0, 0.0),))
    alone = replay("star", 5, COUNT, BIG_SEGMENT, "c", environment(rate=math.inf, latency_s=0.0, cost=cost))
    shared = replay(
        "star",
        5,
        COUNT,
        BIG_SEGMENT,
        "c",
        environment(rate=math.inf, latency_s=0.0, cost=cost, host=HostCost(cores=1, ranks_per_machine=5)),
    )
    encode_s = COUNT * 1e-8
    assert alone.total_s == pytest.approx(2 * encode_s)  # the workers together, then the root
    assert shared.total_s == pytest.approx(5 * encode_s)


def test_the_slowest_line_sets_the_pace_of_a_ring() -> None:
    lines = (Line(0.0, 1e8), Line(0.0, 1e7), Line(0.0, 1e8))
    found = replay("ring", 3, COUNT, BIG_SEGMENT, "free", environment(lines=lines))
    assert found.total_s == pytest.approx(4 * NBYTES / 3 / 1e7, rel=0.1)


def test_both_directions_at_once_have_their_own_rate() -> None:
    lines = tuple(Line(0.0, 1e8, duplex_share=0.5) for _ in range(2))
    ring, star = (
        replay(name, 2, COUNT, BIG_SEGMENT, "free", environment(lines=lines)).total_s
        for name in ("ring", "star")
    )
    assert ring == pytest.approx(NBYTES / 0.5e8)
    assert star == pytest.approx(2 * NBYTES / 1e8)  # up, then down


def test_a_core_link_is_shared_by_its_group() -> None:
    flat = environment(latency_s=0.0)
    narrow = environment(latency_s=0.0, groups=(2, 2), core_nbytes_per_s=1e7)
    for algorithm in ("ring", "star"):
        fast = replay(algorithm, 4, COUNT, BIG_SEGMENT, "free", flat).total_s
        slow = replay(algorithm, 4, COUNT, BIG_SEGMENT, "free", narrow).total_s
        assert slow > 4 * fast
    ring = replay("ring", 4, COUNT, BIG_SEGMENT, "free", narrow)
    assert ring.line_busy_s == pytest.approx(6 * NBYTES / 4 / 1e7)  # one chunk a step crosses each way


@settings(max_examples=40)
@given(
    st.sampled_from(ALGORITHMS),
    st.integers(1, 9),
    st.integers(1, 50_000),
    st.sampled_from([1 << 14, 1 << 16, 1 << 22]),
    st.floats(0, 1e-2),
    st.floats(1e5, 1e10),
)
def test_what_always_holds(
    algorithm: str, world: int, count: int, segment: int, latency_s: float, rate: float
) -> None:
    found = replay(algorithm, world, count, segment, "free", environment(latency_s, rate))
    assert found.total_s >= found.line_busy_s * (1 - 1e-9)
    assert sum(rank.raw_nbytes for rank in found.ranks) == sum(rank.wire_nbytes for rank in found.ranks)
    slower = replay(algorithm, world, count, segment, "free", environment(latency_s, rate / 2))
    later = replay(algorithm, world, count, segment, "free", environment(2 * latency_s, rate))
    # A latency may change which of two frames gets a line first, which moves the end by a frame at most.
    frame_s = min(4 * count, segment) / rate
    assert slower.total_s >= found.total_s * (1 - 1e-9)
    assert later.total_s >= found.total_s * (1 - 1e-9) - frame_s
    if world == 1:
        assert found.total_s == 0.0


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_bytes_are_those_of_the_card(algorithm: str) -> None:
    for world in (2, 3, 8):
        found = replay(algorithm, world, 16 * 27720, 1 << 16, "free", environment())
        busiest = max(rank.raw_nbytes for rank in found.ranks)
        assert busiest == pytest.approx(TABLE[algorithm].nbytes(world, NBYTES), rel=1e-9)


@pytest.mark.parametrize("lanes", [2, 4, 16])
def test_small_frames_of_lanes_leave_one_by_one_so_that_the_second_half_overlaps_the_first(
    lanes: int,
) -> None:
    """Lane j's frame arrives after j + 1 frames and returns at once: both latencies, and all frames once."""
    frame_s = 4 * 8192 / 1e6
    found = replay("ring", 2, 16384, BIG_SEGMENT, "free", environment(0.05 * lanes, 1e6), lanes=lanes)
    assert found.total_s == pytest.approx(2 * 0.05 * lanes + (lanes + 1) * frame_s, rel=1e-6)


@pytest.mark.parametrize("lanes", [2, 4, 16])
def test_lanes_share_the_line_and_wait_for_the_latency_together(lanes: int) -> None:
    """Two ranks: each half of a bucket leaves, and waits for the latency, twice.

    At most, all lanes' halves leave together; at least, one by one.
    """
    found = replay("ring", 2, COUNT, BIG_SEGMENT, "free", environment(latency_s=0.05), lanes=lanes)
    half_s = NBYTES / 2 / 1e8
    assert 2 * 0.05 + (lanes + 1) * half_s <= found.total_s <= 2 * (0.05 + lanes * half_s)
    assert len(found.ranks) == 2 * lanes
    assert sum(rank.wire_nbytes for rank in found.ranks) == pytest.approx(2 * lanes * NBYTES)


@pytest.mark.parametrize(
    ("cores", "threads", "times"), [(1, 1, 8), (2, 1, 4), (8, 1, 1), (8, 4, 4), (8, 8, 4)]
)
def test_lanes_encode_at_once_on_as_many_cores_as_their_codecs_leave(
    cores: int, threads: int, times: int
) -> None:
    cost = CodecCost("c", (CodecPoint(1, 4.0, 1e-8, 0.0, 0.0),))
    place = environment(rate=math.inf, latency_s=0.0, cost=cost, host=HostCost(cores=cores), threads=threads)
    encode_s = COUNT // 2 * 1e-8
    one, eight = (replay("ring", 2, COUNT, BIG_SEGMENT, "c", place, lanes=lanes) for lanes in (1, 8))
    assert one.total_s == pytest.approx(2 * encode_s)
    assert eight.total_s == pytest.approx(times * 2 * encode_s)


def test_the_halves_are_replayed_alone() -> None:
    both = [
        replay("ring", 4, COUNT, BIG_SEGMENT, "free", environment(), half).total_s
        for half in ("reduce", "broadcast")
    ]
    assert sum(both) == pytest.approx(replay("ring", 4, COUNT, BIG_SEGMENT, "free", environment()).total_s)


SEND, ADD = (0, 1, 0, 8, 0, 0, 0, 0, 0), (3, 1, 0, 8, 0, 0, 0, 0, 0)
"""Rows of a rank that sends eight values to rank 1, and of a rank that adds eight values of rank 1."""


@pytest.mark.parametrize(
    ("orders", "words"),
    [
        ([ADD, SEND], "rank 0 doesn't match"),
        ([(0, 2, *SEND[2:]), (3, 0, *ADD[2:])], "rank 0 doesn't match"),
        ([SEND, (3, -1, *ADD[2:])], "rank 1 doesn't match"),
        ([SEND, 2 * (3, 0, *ADD[2:])], "rank 1 doesn't match"),
        (
            [2 * SEND + (4, 1, *ADD[2:]), 2 * (3, 0, *ADD[2:]) + (1, 0, *SEND[2:])],
            "a sum of 3 gradients, of 2",
        ),
    ],
)
def test_a_schedule_whose_ranks_do_not_match_is_refused(
    orders: list[tuple[int, ...]], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [(array("q", each), 1) for each in orders]
    monkeypatch.setattr(replay_module, "_rows", lambda _algorithm, _half, rank, *_rest: rows[rank])
    with pytest.raises(SpecError, match=words):
        replay("ring", 2, 8, BIG_SEGMENT, "free", environment())
