from __future__ import annotations

import json
import sys
from collections.abc import Callable

import pytest

from gradwire_lab import testbed
from gradwire_lab.testbed.output import Stream
from support.beds import TRAFFIC, needs_namespaces
from support.noise import likely, undisturbed

pytestmark = [pytest.mark.processes, needs_namespaces]
Topology = testbed.Topology
NOMINAL = 12.5e6
"""100 Mbit in bytes per second; of each frame of 1514 bytes TCP carries 1448."""


def rates(bed: testbed.Testbed, nbytes: int, flows: str) -> dict[int, float]:
    """Return what each receiving host got, as a share of 100 Mbit."""
    shares: dict[int, float] = {}

    def read(_host: int, stream: Stream, text: bytes) -> None:
        assert stream == "out", text.decode()
        for told in map(json.loads, text.splitlines()):
            if "nbytes_per_s" in told:
                shares[told["rank"]] = told["nbytes_per_s"] / NOMINAL

    run = bed.run([sys.executable, str(TRAFFIC), str(nbytes), flows], sinks=(read,), timeout_s=60)
    assert run.failure is None
    return shares


def check_limited(measure: Callable[[], dict[int, float]], receivers: set[int], least: float = 0.7) -> None:
    """Assert that nobody ever gets more than the limit, and that once everybody got ``least`` of it."""

    def attempt() -> None:
        shares = measure()
        assert set(shares) == receivers
        assert max(shares.values()) <= 1.02, shares
        likely(min(shares.values()) >= least, shares)

    undisturbed(attempt)


def test_a_host_is_limited_in_both_directions() -> None:
    with testbed.Testbed(Topology.even(3, "100mbit")) as bed:
        check_limited(lambda: rates(bed, 3_000_000, "1-0,0-1"), {0, 1})
        check_limited(lambda: rates(bed, 3_000_000, "1-0,2-0"), {0})


def check_unlimited(measure: Callable[[], dict[int, float]]) -> None:
    """Assert that a receiver got more than 100 Mbit at least once; there should be many times that."""

    def attempt() -> None:
        shares = measure()
        likely(min(shares.values()) > 1.1, shares)

    undisturbed(attempt)


def test_every_host_has_its_own_rate() -> None:
    with testbed.Testbed(Topology((None, 12.5e6, None))) as bed:
        check_limited(lambda: rates(bed, 2_000_000, "1-0"), {0})
        check_limited(lambda: rates(bed, 2_000_000, "0-1"), {1})
        check_unlimited(lambda: rates(bed, 20_000_000, "0-2"))


def test_the_core_is_limited_in_both_directions_and_groups_are_not() -> None:
    with testbed.Testbed(Topology.even(4, groups=2, core="100mbit")) as bed:
        check_limited(lambda: rates(bed, 1_500_000, "0-2,1-2"), {2})
        check_limited(lambda: rates(bed, 2_000_000, "3-1"), {1})
        # acknowledgements wait behind the others' data
        check_limited(lambda: rates(bed, 2_000_000, "0-2,3-1"), {1, 2}, least=0.2)
        check_unlimited(lambda: rates(bed, 20_000_000, "0-1"))


def test_an_incast_of_many_does_not_drop() -> None:
    told: list[dict[str, float]] = []
    hosts = 8
    flows = ",".join(f"{host}-0" for host in range(1, hosts))
    with testbed.Testbed(Topology.even(hosts, "1gbit")) as bed:
        run = bed.run(
            [sys.executable, str(TRAFFIC), "4000000", flows],
            sinks=(lambda _host, _stream, text: told.extend(map(json.loads, text.splitlines())),),
            timeout_s=60,
        )
    assert run.failure is None
    received = [host["nbytes_per_s"] for host in told if "nbytes_per_s" in host]
    assert len(told) == hosts
    assert received[0] <= 1.02 * 10 * NOMINAL
    # A lost frame is one retransmission at least; some are sent again without need, when the queue has grown
    # faster than TCP's idea of the round trip. A queue too short for an incast would lose hundreds.
    assert sum(host["retransmitted"] for host in told) < 3 * hosts
