from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire_lab.testbed.namespaces import burst_nbytes, gso_nbytes, queue_nbytes, tcp_settings

MTUS = st.sampled_from([1280, 1500, 9000])
HEADERS_NBYTES = 66  # Ethernet, IPv4 and TCP with timestamps, for every frame that a packet stands for


@given(st.floats(12_500, 50e9), MTUS)
def test_a_burst_is_short_and_holds_whole_frames(rate: float, mtu: int) -> None:
    burst = burst_nbytes(rate, mtu)
    assert burst >= 2 * (14 + mtu)
    assert burst <= max(2 * mtu + 100, rate / 3999)


@given(st.floats(12_500, 50e9), MTUS)
def test_what_tcp_hands_down_need_not_be_cut(rate: float, mtu: int) -> None:
    packet = gso_nbytes(rate, mtu)
    frames = packet // (mtu - 52) + 1
    assert packet <= 65536
    assert packet + (frames - 1) * HEADERS_NBYTES <= burst_nbytes(rate, mtu)
    assert packet > mtu


@pytest.mark.parametrize("hosts", [1, 2, 64])
def test_a_queue_holds_what_all_sockets_hold(hosts: int) -> None:
    send_nbytes = int(tcp_settings(["reno"])["tcp_wmem"].split()[-1])
    assert (hosts - 1) * send_nbytes < queue_nbytes(hosts) < 2**32


@pytest.mark.parametrize(
    ("allowed", "chosen"),
    [(["reno", "cubic"], "cubic"), (["reno", "bbr"], "reno"), (["bbr", "cubic"], "cubic")],
)
def test_hosts_do_not_inherit_an_unusual_congestion_control(allowed: list[str], chosen: str) -> None:
    assert tcp_settings(allowed)["tcp_congestion_control"] == chosen
