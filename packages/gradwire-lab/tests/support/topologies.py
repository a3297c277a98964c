"""Topologies of every kind, for property tests."""

from __future__ import annotations

from hypothesis import strategies as st

from gradwire_lab.testbed.topology import Topology

RATES = st.none() | st.floats(12_500, 50e9) | st.sampled_from([12.5e6, 125e6, 1e9 / 3])


@st.composite
def topologies(draw: st.DrawFn) -> Topology:
    groups = draw(st.just(()) | st.lists(st.integers(1, 4), min_size=2, max_size=8).map(tuple))
    hosts = sum(groups) if groups else draw(st.integers(1, 64))
    delay_s = draw(st.just(0.0) | st.floats(1e-9, 10.0))
    return Topology(
        tuple(draw(st.lists(RATES, min_size=hosts, max_size=hosts))),
        groups,
        draw(RATES) if groups else None,
        delay_s,
        draw(st.integers(1280, 9000)),
        draw(st.sampled_from([0.0, delay_s / 3, delay_s])),
        draw(st.just(0.0) | st.floats(0.0, 0.99)),
    )
