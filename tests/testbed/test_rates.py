from __future__ import annotations

import json
import sys

import pytest

from gradwire import testbed
from gradwire.testbed.output import Stream
from support.beds import TRAFFIC, needs_namespaces

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


def test_a_host_is_limited_in_both_directions() -> None:
    with testbed.Testbed(Topology.even(3, "100mbit")) as bed:
        for flows, wanted in (("1-0,0-1", {0, 1}), ("1-0,2-0", {0})):
            shares = rates(bed, 3_000_000, flows)
            assert set(shares) == wanted
            assert all(0.7 <= share <= 1.02 for share in shares.values()), (flows, shares)


def test_every_host_has_its_own_rate() -> None:
    with testbed.Testbed(Topology((None, 12.5e6, None))) as bed:
        assert 0.7 <= rates(bed, 2_000_000, "1-0")[0] <= 1.02
        assert 0.7 <= rates(bed, 2_000_000, "0-1")[1] <= 1.02
        assert rates(bed, 20_000_000, "0-2")[2] > 1.1


def test_the_core_is_limited_in_both_directions_and_groups_are_not() -> None:
    with testbed.Testbed(Topology.even(4, groups=2, core="100mbit")) as bed:
        assert 0.7 <= rates(bed, 1_500_000, "0-2,1-2")[2] <= 1.02
        assert 0.7 <= rates(bed, 2_000_000, "3-1")[1] <= 1.02
        both = rates(bed, 2_000_000, "0-2,3-1")  # acknowledgements wait behind the others' data
        assert all(0.2 <= share <= 1.02 for share in both.values()), both
        assert rates(bed, 20_000_000, "0-1")[1] > 1.1


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
