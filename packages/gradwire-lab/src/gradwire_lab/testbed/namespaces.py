"""Calls that enter network namespaces, which Python offers from version 3.12 on."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from gradwire.errors import TestbedError
from gradwire_lab.testbed.tools import PACKAGES, find_tool

_CLONE_NEWNET = 0x40000000
_PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_RAISE = 2
_PR_CAP_AMBIENT_CLEAR_ALL = 4
CAP_NET_ADMIN, CAP_NET_RAW = 12, 13
_LIBC = ctypes.CDLL(None, use_errno=True)


def own_namespace() -> int:
    """Return a descriptor of this thread's network namespace, which keeps the namespace alive."""
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def new_namespace() -> int:
    """Return a descriptor of a new network namespace, without entering it. Raises ``OSError``."""
    with _returning():
        _check(_LIBC.unshare(_CLONE_NEWNET))
        return own_namespace()


@contextmanager
def inside(namespace: int) -> Iterator[None]:
    """Move this thread and the processes that it starts to a namespace for the ``with`` block."""
    with _returning():
        _check(_LIBC.setns(namespace, _CLONE_NEWNET))
        yield


@contextmanager
def lending(*capabilities: int) -> Iterator[None]:
    """Grant ``capabilities`` to programs that an ordinary user (not root) starts in the ``with`` block."""
    for capability in capabilities:
        _LIBC.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, capability, 0, 0)
    try:
        yield
    finally:
        forget_ambient_capabilities()


def forget_ambient_capabilities() -> None:
    """Stop programs that this process starts from inheriting its capabilities."""
    _check(_LIBC.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0))


@contextmanager
def _returning() -> Iterator[None]:
    home = own_namespace()
    try:
        yield
    finally:
        _check(_LIBC.setns(home, _CLONE_NEWNET))
        os.close(home)


def _check(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


# The programs that create a testbed, and the testbed's private namespaces.

_PROBE_TIMEOUT_S = 10.0
_AREA = (
    "--net",
    "--mount",
    "--propagation=slave",  # later mounts are visible inside as well
    "--pid",
    "--fork",
    "--kill-child",
    "--mount-proc",
)
_AS_ONESELF = ("--user", "--map-current-user", "--keep-caps")
"""The options of a user namespace in which an ordinary user keeps the same user ID."""


def private_area() -> list[str]:
    """Return the command that starts a program as process 1 of private namespaces. Raises ``TestbedError``.

    When process 1 ends for any reason, the kernel ends all processes inside and removes everything.
    """
    for name in PACKAGES:
        find_tool(name)
    unshare, reason = find_tool("unshare"), ""
    for words in ([unshare, *_AREA], [unshare, *_AS_ONESELF, *_AREA])[os.geteuid() != 0 :]:
        reason = _refusal(words)
        if not reason:
            return [*words, "--"]
    raise TestbedError(
        f"a testbed needs network namespaces, which this machine refuses ({reason}); run as root, or allow "
        "user namespaces (sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone, "
        "kernel.apparmor_restrict_unprivileged_userns)"
    )


def _refusal(words: list[str]) -> str:
    """Return the reason why ``unshare`` can't create the namespaces, or an empty string if it can."""
    try:
        done = subprocess.run(
            [*words, "--", "true"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PROBE_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"unshare did not end within {_PROBE_TIMEOUT_S:g} s"
    if done.returncode == 0:
        return ""
    complaint = done.stderr.strip().splitlines() or [f"unshare ended with exit code {done.returncode}"]
    return complaint[0]


# The parameters of a link's rate limit: its burst, the size of TCP's packets, and its queue.
#
# The figures come from measurements with Python sockets on two cores; docs/testbed.md has the table.

BURST_S = 250e-6
"""The burst of a rate limit's token bucket, which passes without a limit, as time at the link's rate.

With the usual burst of 64 KiB, 64 KB over an idle 100 Mbit link take 8 % of their nominal time; with this
burst, they take 99 %. Timers are late by only a fraction of 250 us.
"""
LEAST_BURST_FRAMES, FRAME_OVERHEAD_NBYTES = 2, 50
"""The least burst in frames (with less, a full frame would wait for a full bucket); a frame's overhead."""
GSO_SHARE = 0.9
"""The share of the burst for TCP's packets.

The kernel would split larger packets into frames in software, in the middle of the path: 83,000 frames per
second at 1 Gbit. Four hosts in a ring on two cores would then reach 0.45 of their rate instead of 0.95.
"""
MOST_GSO_NBYTES = 65536
SEND_BUFFER_NBYTES = 4 << 20
RECEIVE_BUFFER_NBYTES = 6 << 20
"""TCP's largest receive buffer; both are Linux's defaults, so that tuned machines give the same results."""
FLOWS_PER_PEER = 4
NETEM_QUEUE_PACKETS = 1_000_000


def burst_nbytes(rate_nbytes_per_s: float, mtu_nbytes: int) -> int:
    """Return the burst of a rate limit: the bytes that may pass without a limit after a pause."""
    least = LEAST_BURST_FRAMES * (mtu_nbytes + FRAME_OVERHEAD_NBYTES)
    return max(least, round(rate_nbytes_per_s * BURST_S))


def gso_nbytes(rate_nbytes_per_s: float, mtu_nbytes: int) -> int:
    """Return the size of the largest TCP packet that the link need not split."""
    return min(MOST_GSO_NBYTES, int(GSO_SHARE * burst_nbytes(rate_nbytes_per_s, mtu_nbytes)))


def queue_nbytes(hosts: int) -> int:
    """Return the maximum length of a rate limit's queue: all socket buffers of all hosts that send to it.

    A dropped frame would stop a connection for TCP's 200 ms or more, and distort measurements.
    """
    return hosts * FLOWS_PER_PEER * SEND_BUFFER_NBYTES


def tcp_settings(congestion_controls: Sequence[str]) -> dict[str, str]:
    """Return the settings to write below ``/proc/sys/net/ipv4`` of every host.

    CUBIC, the default, or Reno fills the window; with BBR, one exchange took from 650 to 880 ms.
    """
    return {
        "tcp_congestion_control": "cubic" if "cubic" in congestion_controls else "reno",
        "tcp_wmem": f"4096 16384 {SEND_BUFFER_NBYTES}",
        "tcp_rmem": f"4096 131072 {RECEIVE_BUFFER_NBYTES}",
    }
