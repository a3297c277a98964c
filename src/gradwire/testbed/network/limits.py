"""How a link's limit is cut: the burst that passes at once, the packets of TCP, and the queue behind them.

The figures were chosen by measuring, with Python sockets on two cores; docs/testbed.md has the table.
"""

from __future__ import annotations

from collections.abc import Sequence

MTU_NBYTES = 1500
BURST_S = 250e-6
"""A bucket filter lets its burst pass at once after a rest. With the usual 64 KiB, a message of 64 KB over an
idle 100 Mbit link takes 8 % of its time: the link would have no limit for small messages. With 250 us it
takes 99 % there; and they are several times what timers are late by."""
LEAST_BURST_NBYTES = 3100
"""Two whole frames: with less, a full frame would have to wait for a full bucket."""
GSO_SHARE = 0.9
"""Of the burst, for the packets that TCP hands down. A larger one would be cut into frames in software, in
the middle of the path: 83,000 a second at 1 Gbit. Four hosts in a ring on two cores reach 0.45 of their rate
then, instead of 0.95."""
MOST_GSO_NBYTES = 65536
SEND_BUFFER_NBYTES = 4 << 20
RECEIVE_BUFFER_NBYTES = 6 << 20
"""The largest buffers of a TCP socket: Linux's defaults, which every host is given, so that a machine tuned
for wide networks measures the same."""
FLOWS_PER_PEER = 4
NETEM_QUEUE_PACKETS = 1_000_000


def burst_nbytes(rate_nbytes_per_s: float) -> int:
    """Return how many bytes may pass at once after a rest."""
    return max(LEAST_BURST_NBYTES, round(rate_nbytes_per_s * BURST_S))


def gso_nbytes(rate_nbytes_per_s: float) -> int:
    """Return the largest packet that TCP may hand to the link, to be cut into frames by nobody."""
    return min(MOST_GSO_NBYTES, int(GSO_SHARE * burst_nbytes(rate_nbytes_per_s)))


def queue_nbytes(hosts: int) -> int:
    """Return how long a limit's queue may grow.

    When all hosts send to one, all that their sockets hold may stand before its link. A dropped frame there
    would stop a connection for 200 ms or more, TCP's shortest timeout, which is no property of the
    algorithm under test; so there is room for everything. Memory is used only by what really stands there.
    """
    return hosts * FLOWS_PER_PEER * SEND_BUFFER_NBYTES


def tcp_settings(congestion_controls: Sequence[str]) -> dict[str, str]:
    """Return what is written below ``/proc/sys/net/ipv4`` of every host.

    Of the congestion controls that the machine allows them, hosts get CUBIC, Linux's default, or else Reno,
    which is always there: where nothing is dropped, both send all that the receiver has room for. BBR, which
    some machines have set, paces by what it believes of the rate: one exchange took from 650 to 880 ms.
    """
    return {
        "tcp_congestion_control": "cubic" if "cubic" in congestion_controls else "reno",
        "tcp_wmem": f"4096 16384 {SEND_BUFFER_NBYTES}",
        "tcp_rmem": f"4096 131072 {RECEIVE_BUFFER_NBYTES}",
    }
