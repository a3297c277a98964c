"""Checks of the kernel's TCP: its congestion control, and its settings for links between distant hosts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gradwire.doctor.finding import Card, Finding, Look, TcpSettings, name_ranks
from gradwire.errors import LinkError
from gradwire.links.rendezvous.options import CONGESTION, congestion, kernel_words
from gradwire.units import format_duration, format_rate, format_size

DISTANT_S = 5e-3
"""The round-trip time above which TCP's slow start costs more than a small bucket's exchange."""
WINDOW_SHARE = 0.5
"""The share of a TCP buffer in flight that shows a limit; at 100 ms, limited connections had 0.56 to 0.72."""
BUFFER_FACTOR = 4
"""The recommended size limit of TCP's buffers, as a multiple of the bytes that were in flight."""
_SEND, _RECEIVE, _IDLE = "tcp_wmem", "tcp_rmem", "tcp_slow_start_after_idle"
_LEAST, _SEND_DEFAULT, _RECEIVE_DEFAULT = 4096, 16384, 131072
"""The kernel's minimum and default buffer sizes, written before the size limit in its settings."""


def find_tcp() -> TcpSettings:
    """Return the kernel's TCP settings in this network namespace."""
    last = (kernel_words(name).rpartition(" ")[2] for name in (_SEND, _RECEIVE, _IDLE))
    return TcpSettings(*(int(word) if word.isdigit() else 0 for word in last))


def check_congestion(environment: Mapping[str, str]) -> Finding:
    """Return a finding about the congestion control of gradwire's connections."""
    try:
        chosen = congestion(environment)
    except LinkError as error:
        return Finding("TCP", "FAIL", str(error))
    if chosen:
        return Finding("TCP", "ok", f"congestion control {chosen} ({CONGESTION})")
    default = kernel_words("tcp_congestion_control") or "unknown"
    return Finding("TCP", "ok", f"congestion control {default} (the kernel's default)")


def check_distance(cards: Sequence[Card], looks: Mapping[int, Look]) -> list[Finding]:
    """Return findings on whether all ranks' TCP settings suit their hosts' distance from rank 0's host."""
    trip_s = 2 * max(look.latency_s for look in looks.values())
    if trip_s <= DISTANT_S:
        near = f"not important: the longest round trip is {format_duration(trip_s)}"
        return [Finding("distance", "ok", near)]
    found = [*_check_idle(cards, trip_s), *_check_buffers(cards, looks)]
    enough = f"the kernel's settings suit a round trip of {format_duration(trip_s)}"
    return found or [Finding("distance", "ok", enough)]


def _check_idle(cards: Sequence[Card], trip_s: float) -> list[Finding]:
    slow = [rank for rank, card in enumerate(cards) if card.tcp.slow_start_after_idle]
    detail = (
        f"{name_ranks(slow)}: after a pause, a connection starts slowly again, which takes several round "
        f"trips of {format_duration(trip_s)}; run sysctl -w net.ipv4.{_IDLE}=0"
    )
    return [Finding("idle links", "warn", detail)] if slow else []


def _check_buffers(cards: Sequence[Card], looks: Mapping[int, Look]) -> list[Finding]:
    """Return a warning if the bytes in flight on a link nearly fill the largest buffer at either end."""
    tight: dict[int, float] = {}
    for rank, look in looks.items():
        for sender, receiver, rate in (
            (cards[0].tcp, cards[rank].tcp, look.there_nbytes_per_s),
            (cards[rank].tcp, cards[0].tcp, look.back_nbytes_per_s),
        ):
            nbytes = 2 * look.latency_s * rate
            limits = [each for each in (sender.send_nbytes, receiver.receive_nbytes) if each]
            if limits and nbytes >= WINDOW_SHARE * min(limits):
                tight[rank] = max(nbytes, tight.get(rank, 0.0))
    if not tight:
        return []
    worst = max(tight, key=lambda rank: tight[rank])
    look, limit = looks[worst], int(BUFFER_FACTOR * tight[worst])
    rate = tight[worst] / (2 * look.latency_s)  # of the limited direction
    detail = (
        f"ranks 0 and {worst}: {format_size(tight[worst])} in flight ({format_rate(rate)} over a round "
        f"trip of {format_duration(2 * look.latency_s)}) are near the limit of TCP's buffers, which may "
        f"limit the rate; on all hosts, run sysctl -w net.ipv4.{_SEND}='{_LEAST} {_SEND_DEFAULT} {limit}' "
        f"net.ipv4.{_RECEIVE}='{_LEAST} {_RECEIVE_DEFAULT} {limit}', or use a plan with several lanes"
    )
    return [Finding("TCP buffers", "warn", detail)]
