from __future__ import annotations

import re
from collections import Counter

from hypothesis import given

from gradwire_lab.testbed.layout import (
    host_limits,
    host_links,
    nic_limits,
    nic_links,
    relay_links,
    relay_routes,
    switch_limits,
    switch_links,
)
from gradwire_lab.testbed.topology import Topology
from support.topologies import topologies


def test_two_hosts_at_a_switch() -> None:
    topology = Topology((12.5e6, None))
    assert switch_links(topology, ["/a", "/b"]) == [
        "link add name g0 type bridge mcast_snooping 0",
        "link set dev g0 up",
        "link add name h0 mtu 1500 type veth peer name eth0 mtu 1500 address 02:67:77:00:00:01 netns /a",
        "link set dev h0 master g0 up",
        "link add name h1 mtu 1500 type veth peer name eth0 mtu 1500 address 02:67:77:00:00:02 netns /b",
        "link set dev h1 master g0 up",
    ]
    limit = "tbf rate 12500000bps burst 3125 limit 33554432"
    assert switch_limits(topology) == [f"qdisc add dev h0 root handle 1: {limit}"]
    assert host_limits(topology, 0) == [f"qdisc add dev eth0 root handle 1: {limit}"]
    assert host_limits(topology, 1) == []
    assert host_links(topology, 0) == [
        "link set dev lo up",
        "link set dev eth0 gso_max_size 2812 up",
        "address add 10.77.0.1/24 dev eth0",
        "neighbour add 10.77.0.2 lladdr 02:67:77:00:00:02 dev eth0 nud permanent",
    ]
    assert host_links(topology, 1)[1] == "link set dev eth0 up"


def test_a_nic_gets_the_link_and_the_host_a_new_interface() -> None:
    topology = Topology((12.5e6, None))
    assert nic_links(topology, 1, "/b") == [
        "link set dev link address 02:67:77:00:01:02 up",
        "link add name host mtu 1500 type veth peer name eth0 mtu 1500 address 02:67:77:00:00:02 netns /b",
        "link set dev host up",
    ]
    assert host_links(topology, 0, has_nic=True)[1] == "link set dev eth0 up"
    (limit,) = nic_limits(topology, 0)
    assert limit.replace("dev link", "dev eth0") == host_limits(topology, 0)[0]
    assert nic_limits(topology, 1) == []


def test_a_core_is_limited_in_both_directions() -> None:
    topology = Topology((None, None), (1, 1), 125e6)
    assert switch_links(topology, ["/a", "/b"])[-8:] == [
        "link add name core type bridge mcast_snooping 0",
        "link set dev core up",
        "link add name up0 mtu 1500 type veth peer name down0 mtu 1500",
        "link set dev up0 master g0 up",
        "link set dev down0 master core up",
        "link add name up1 mtu 1500 type veth peer name down1 mtu 1500",
        "link set dev up1 master g1 up",
        "link set dev down1 master core up",
    ]
    limited = [line.split()[3] for line in switch_limits(topology)]
    assert limited == ["up0", "down0", "up1", "down1"]
    assert all("tbf rate 125000000bps burst 31250 " in line for line in switch_limits(topology))


def test_every_link_has_the_mtu() -> None:
    topology = Topology((12.5e6, None), (1, 1), mtu_nbytes=9000)
    lines = [*switch_links(topology, ["/a", "/b"]), *nic_links(topology, 0, "/a")]
    pairs = [line for line in lines if " veth " in line]
    assert len(pairs) == 2 + 2 + 1
    assert all(line.count("mtu 9000") == 2 for line in pairs)
    assert "burst 18100 " in host_limits(topology, 0)[0]
    assert "gso_max_size 16290 " in host_links(topology, 0)[1]


def test_netem_impairs_frames_once_on_their_way() -> None:
    topology = Topology((12.5e6, None), delay_s=0.00125)
    limit, delay, only_delay = switch_limits(topology, "netem")
    assert limit.startswith("qdisc add dev h0 root handle 1: tbf ")
    assert delay == "qdisc add dev h0 parent 1:1 handle 10: netem delay 1250.000us limit 1000000"
    assert only_delay == "qdisc add dev h1 root handle 10: netem delay 1250.000us limit 1000000"
    assert "netem" not in "".join(host_limits(topology, 0))
    assert switch_limits(topology, "relay") == [limit]


def test_netem_keeps_the_order_of_frames_by_a_rate_above_all_others() -> None:
    topology = Topology((None,), delay_s=0.025, jitter_s=0.002, loss=0.0125)
    assert switch_limits(topology, "netem") == [
        "qdisc add dev h0 root handle 10: netem delay 25000.000us 2000.000us rate 50000000000bps "
        "loss random 1.25% limit 1000000"
    ]


def test_packets_that_may_be_lost_are_frames_of_their_own() -> None:
    topology = Topology((12.5e6, None), loss=0.01)
    assert host_links(topology, 0)[1].endswith("gso_max_size 2812 gso_max_segs 1 up")
    assert host_links(topology, 1)[1].endswith("eth0 gso_max_segs 1 up")
    assert "gso_max_segs" not in host_links(Topology((12.5e6, None), delay_s=0.01), 0)[1]


def test_a_relay_stands_between_the_switch_and_every_host() -> None:
    topology = Topology((12.5e6, None), (1, 1), delay_s=0.01, mtu_nbytes=9000)
    assert relay_links(topology)[5:] == [
        "link add name r1 mtu 9000 type veth peer name q1 mtu 9000",
        "link set dev r1 up",
        "link set dev q1 master g1 up",
        "link set dev h1 type bridge_slave learning off flood off mcast_flood off bcast_flood off",
        "link set dev q1 type bridge_slave learning off flood off",
    ]
    assert relay_routes(topology) == [
        "fdb add 02:67:77:00:00:01 dev q0 master static",
        "fdb add 02:67:77:00:00:02 dev q1 master static",
    ]


@given(topologies())
def test_every_link_is_made_once_and_every_host_limited_once_each_way(topology: Topology) -> None:
    paths = [f"/ns{host}" for host in range(topology.hosts)]
    links, limits = switch_links(topology, paths), switch_limits(topology, "netem")
    made = Counter(name for line in links for name in re.findall(r"name (\w+)", line) if name != "eth0")
    assert set(made.values()) == {1}
    assert all(len(name) <= 15 for name in made)
    used = {name for line in [*links, *limits] for name in re.findall(r"(?:dev|master) (\w+)", line)}
    assert used == set(made)
    assert [path for line in links for path in re.findall(r"netns (\S+)", line)] == paths
    shaped = Counter(line.split()[3] for line in limits if " tbf " in line)
    core = {"up", "down"} if topology.core_nbytes_per_s is not None else set()
    for name in made:
        rate = re.fullmatch(r"h(\d+)", name)
        wanted = (
            topology.rates_nbytes_per_s[int(rate[1])] is not None
            if rate
            else name.strip("0123456789") in core
        )
        assert shaped[name] == wanted
    for host, nbytes_per_s in enumerate(topology.rates_nbytes_per_s):
        assert len(host_limits(topology, host)) == (nbytes_per_s is not None)
        peers = [line.split()[2] for line in host_links(topology, host) if line.startswith("neighbour")]
        assert len(set(peers)) == topology.hosts - 1
