"""The lower bound is one: against the replay, for whatever lines, hosts and costs there may be."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradwire.planner.exchange_times import BucketPlan, least
from gradwire.timing.environment import CodecCost, CodecPoint, Environment
from gradwire.timing.line import HostCost, Line
from gradwire.timing.replay import replay

SECONDS = st.sampled_from([0.0, 1e-9, 1e-8])
POINTS = st.builds(
    CodecPoint,
    terms=st.just(1),
    nbytes=st.sampled_from([0.25, 1.0, 4.0]),
    encode_s=SECONDS,
    decode_s=SECONDS,
    decode_add_s=SECONDS,
)
HOSTS = st.builds(
    HostCost,
    send_s=st.sampled_from([0.0, 1e-4]),
    receive_s=st.sampled_from([0.0, 3e-4]),
    send_s_per_nbyte=st.sampled_from([0.0, 1e-10]),
    receive_s_per_nbyte=st.sampled_from([0.0, 1e-9]),
    beside_s_per_nbyte=st.sampled_from([0.0, 1e-9]),
    cores=st.sampled_from([1, 2, 16]),
    ranks_per_machine=st.sampled_from([1, 2, 16]),
)
LINES = st.builds(
    Line,
    latency_s=st.sampled_from([0.0, 1e-5, 1e-3]),
    nbytes_per_s=st.sampled_from([1e6, 1e8, 1e10, math.inf]),
    burst_nbytes=st.sampled_from([0.0, 2e5]),
)


@settings(max_examples=150)
@given(
    st.sampled_from(
        ["ring", "pairwise", "butterfly", "tree", "star", "hierarchical", "hierarchical:2,star+ring"]
    ),
    st.integers(2, 9),
    st.integers(1, 60_000),
    POINTS,
    st.sampled_from([1.0, 4.0]),
    st.sampled_from([0.0, 2e-5]),
    st.booleans(),
    HOSTS,
    LINES,
)
def test_no_replay_is_faster_than_the_bound(
    algorithm: str,
    world: int,
    count: int,
    point: CodecPoint,
    growth: float,
    call_s: float,
    exact: bool,
    host: HostCost,
    line: Line,
) -> None:
    late = CodecPoint(world, growth * point.nbytes, point.encode_s, 0.0, point.decode_add_s)
    environment = Environment(line, {"c": CodecCost("c", (point, late), call_s, exact)}, host)
    bound = least(BucketPlan(algorithm, 1 << 14, "c"), world, count, environment)
    found = replay(algorithm, world, count, 1 << 14, "c", environment)
    assert bound.total_s <= found.total_s * (1 + 1e-9)
    assert bound.raw_nbytes <= max(rank.raw_nbytes for rank in found.ranks)
    assert bound.wire_nbytes <= max(rank.wire_nbytes for rank in found.ranks)


def test_it_is_close_where_the_line_decides() -> None:
    environment = Environment(Line(1e-5, 1e8), {"c": CodecCost("c", (CodecPoint(1, 4.0, 0, 0, 0),))})
    bound = least(BucketPlan("ring", 1 << 20, "c"), 4, 10_000_000, environment)
    found = replay("ring", 4, 10_000_000, 1 << 20, "c", environment)
    assert bound.total_s == pytest.approx(found.total_s, rel=0.05)


@settings(max_examples=60)
@given(
    st.sampled_from(["reduce", "broadcast"]), st.integers(2, 7), st.integers(1, 60_000), POINTS, HOSTS, LINES
)
def test_no_half_of_a_ring_is_faster_than_its_bound(
    half: str, world: int, count: int, point: CodecPoint, host: HostCost, line: Line
) -> None:
    environment = Environment(line, {"c": CodecCost("c", (point,), 2e-5)}, host)
    bound = least(BucketPlan("ring", 1 << 14, "c", half=half), world, count, environment)
    found = replay("ring", world, count, 1 << 14, "c", environment, half)
    assert bound.total_s <= found.total_s * (1 + 1e-9)
    assert bound.wire_nbytes <= max(rank.wire_nbytes for rank in found.ranks)
