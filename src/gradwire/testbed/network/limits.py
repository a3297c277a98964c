"""The parameters of a link's rate limit: its burst, the size of TCP's packets, and its queue.

The figures come from measurements with Python sockets on two cores; docs/testbed.md has the table.
"""

from __future__ import annotations

from collections.abc import Sequence

BURST_S = 250e-6
"""A token bucket lets its burst pass at once after a pause. With the usual 64 KiB, a message of 64 KB over
an idle 100 Mbit link takes 8 % of its nominal time, so small messages would have no limit. With 250 us, it
takes 99 %; and 250 us are several times the lateness of timers."""
LEAST_BURST_FRAMES, FRAME_OVERHEAD_NBYTES = 2, 50
"""A burst is two whole frames at least; with less, a full frame would have to wait for a full bucket."""
GSO_SHARE = 0.9
"""The share of the burst for TCP's packets. The kernel would split a larger packet into frames in software,
in the middle of the path: 83,000 a second at 1 Gbit. Four hosts in a ring on two cores would then reach 0.45
of their rate instead of 0.95."""
MOST_GSO_NBYTES = 65536
SEND_BUFFER_NBYTES = 4 << 20
RECEIVE_BUFFER_NBYTES = 6 << 20
"""The largest buffers of a TCP socket: every host uses Linux's defaults, so that a machine tuned for wide
networks gives the same results."""
FLOWS_PER_PEER = 4
NETEM_QUEUE_PACKETS = 1_000_000


def burst_nbytes(rate_nbytes_per_s: float, mtu_nbytes: int) -> int:
    """Return the number of bytes that may pass at once after a pause."""
    least = LEAST_BURST_FRAMES * (mtu_nbytes + FRAME_OVERHEAD_NBYTES)
    return max(least, round(rate_nbytes_per_s * BURST_S))


def gso_nbytes(rate_nbytes_per_s: float, mtu_nbytes: int) -> int:
    """Return the largest packet that TCP may pass to the link, so that the link needn't split it."""
    return min(MOST_GSO_NBYTES, int(GSO_SHARE * burst_nbytes(rate_nbytes_per_s, mtu_nbytes)))


def queue_nbytes(hosts: int) -> int:
    """Return the maximum length of a limit's queue.

    If all hosts send to one host, everything that their sockets hold may wait at its link. A dropped frame
    would stop a connection for 200 ms or more, TCP's shortest timeout, which would distort measurements; so
    the queue has room for everything. It uses memory only for frames that are actually queued.
    """
    return hosts * FLOWS_PER_PEER * SEND_BUFFER_NBYTES


def tcp_settings(congestion_controls: Sequence[str]) -> dict[str, str]:
    """Return the settings to write below ``/proc/sys/net/ipv4`` of every host.

    Hosts use CUBIC, Linux's default, if the machine allows it, or otherwise Reno, which is always available.
    If nothing is dropped, both send everything that the receiver has room for. BBR, which some machines use,
    paces by its estimate of the rate: the time of one exchange varied from 650 to 880 ms.
    """
    return {
        "tcp_congestion_control": "cubic" if "cubic" in congestion_controls else "reno",
        "tcp_wmem": f"4096 16384 {SEND_BUFFER_NBYTES}",
        "tcp_rmem": f"4096 131072 {RECEIVE_BUFFER_NBYTES}",
    }
