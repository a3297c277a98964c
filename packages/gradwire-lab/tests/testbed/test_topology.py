from __future__ import annotations

import json

import pytest
from hypothesis import given

from gradwire.errors import SpecError
from gradwire_lab.testbed.topology import Topology, address, hardware_address, host_name
from support.topologies import topologies


@given(topologies())
def test_json_keeps_every_bit_of_it(topology: Topology) -> None:
    assert Topology.from_json(json.dumps(topology.to_dict())) == topology


def test_it_is_written_as_people_write_it() -> None:
    topology = Topology.even(
        4, "1.5gbit", groups=2, core="100mbit", delay="50us", mtu_nbytes=9000, jitter="20us", loss=0.001
    )
    assert topology.to_dict() == {
        "rates": ["1.5gbit"] * 4,
        "groups": [2, 2],
        "core": "100mbit",
        "delay": "50us",
        "jitter": "20us",
        "loss": 0.001,
        "mtu": 9000,
    }
    assert topology.group_of == (0, 0, 1, 1)
    assert Topology.from_json('{"rates": ["unlimited", "12.5MBps"]}') == Topology((None, 12.5e6))


def test_groups_may_differ_in_size() -> None:
    assert Topology((None,) * 6, (1, 3, 2)).group_of == (0, 1, 1, 1, 2, 2)


def test_hosts_have_names_and_addresses_of_their_own() -> None:
    for naming in (host_name, address, hardware_address):
        assert len({naming(host) for host in range(64)}) == 64
    assert (address(0), address(63), hardware_address(63)) == ("10.77.0.1", "10.77.0.64", "02:67:77:00:00:40")
    assert len(host_name(63)) <= 15  # what Linux allows a link


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: Topology(()), "1 to 64 hosts in a testbed, got 0"),
        (lambda: Topology.even(65), "1 to 64 hosts in a testbed, got 65"),
        (lambda: Topology.even(-1), "1 to 64 hosts in a testbed, got -1"),
        (lambda: Topology((1.0,)), "rates from 100kbit to 400gbit, got 8bit"),
        (lambda: Topology.even(2, "500gbit"), "got 500gbit"),
        (lambda: Topology.even(2, "fast"), "expected a rate such as"),
        (lambda: Topology.even(4, groups=3), "expected a number of groups that divides the 4 hosts, got 3"),
        (lambda: Topology.even(4, groups=0), "expected a number of groups that divides the 4 hosts, got 0"),
        (lambda: Topology((None,) * 4, (2, 3)), "that add up to the 4 hosts"),
        (lambda: Topology((None,) * 4, (4, 0)), "that add up to the 4 hosts"),
        (lambda: Topology.even(4, core="1gbit"), "at least 2 groups"),
        (lambda: Topology((None,), delay_s=-1.0), "delay from 0 to 10s, got -1 s"),
        (lambda: Topology((None,), delay_s=float("nan")), "got nan s"),
        (
            lambda: Topology.even(2, delay="1ms", jitter="2ms"),
            "jitter from 0 to its delay of 1ms, got 0.002 s; lower the jitter",
        ),
        (lambda: Topology.even(2, jitter="2ms"), "jitter from 0 to its delay of 0, got 0.002 s"),
        (lambda: Topology((None,), loss=1.0), "at least 0 and below 1, got 1; pass e.g. 0.001"),
        (lambda: Topology((None,), loss=float("nan")), "at least 0 and below 1, got nan"),
        (
            lambda: Topology.from_json('{"rates": ["1gbit"], "loss": "1%"}'),
            "expected a finite number for loss in a topology, got '1%'",
        ),
        (lambda: Topology.even(2, mtu_nbytes=9001), "MTU from 1280 to 9000 bytes, got 9001"),
        (
            lambda: Topology.from_json('{"rates": ["1gbit"], "mtu": "9000"}'),
            "a whole number of at least 0 for mtu in a topology, got '9000'",
        ),
        (lambda: Topology.from_json("["), "got invalid JSON"),
        (lambda: Topology.from_json("[]"), "got a list"),
        (lambda: Topology.from_json("[" * 100_000), "got invalid JSON: maximum recursion"),
        (
            lambda: Topology.from_dict({"rates": [0] * 100}),
            r"for rates\[0\] in a topology, got 0; write, for example,",
        ),
        (lambda: Topology.from_json('{"rate": "1gbit"}'), "got the unknown field 'rate'"),
        (lambda: Topology.from_json('{"rates": "1gbit"}'), "expected a list for rates in a topology, got"),
        (lambda: Topology.from_json('{"rates": [1]}'), r"a line .* for rates\[0\] in a topology, got 1"),
        (
            lambda: Topology.from_json('{"rates": ["1gbit"], "groups": [true]}'),
            r"a whole number .* for groups\[0\] in a topology, got True",
        ),
        (
            lambda: Topology.from_json('{"rates": ["1gbit"], "core": 1}'),
            "a line .* for core in a topology, got 1",
        ),
        (lambda: Topology.from_json("{}"), "1 to 64 hosts in a testbed, got 0"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(make: object, reason: str) -> None:
    assert callable(make)
    with pytest.raises(SpecError, match=reason) as caught:
        make()
    assert "\n" not in str(caught.value)
