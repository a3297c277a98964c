"""Checks between ranks: versions, kernels and plans, a trial of the plan, links, and clocks."""

from __future__ import annotations

import hashlib
import statistics
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from gradwire.doctor.finding import Card, Finding, Look, Offset, Result, name_ranks
from gradwire.doctor.software import fixed_vector, release
from gradwire.errors import GradwireError
from gradwire.exchange import Exchange
from gradwire.exchange.norms import error_bound
from gradwire.launch.addresses import VARIABLE
from gradwire.links.base import Link
from gradwire.plan import FLOAT_NBYTES, Plan
from gradwire.timing.line_rate import STREAM_TRIPS, Pair, without_trip
from gradwire.units import format_duration, format_rate
from gradwire.wire import frame_memory


def compare(cards: Sequence[Card]) -> list[Finding]:
    """Compare the cards of all ranks, given in rank order, and return the findings."""
    versions, frames = [card.gradwire for card in cards], [f"version {card.wire_version}" for card in cards]
    plans = [card.plan_digest or "no plan" for card in cards]
    everywhere = "install the same gradwire on all machines"
    found = [
        _alike("same gradwire", versions, "FAIL", "install the same version on all machines"),
        _alike("same frames", frames, "FAIL", everywhere),
        _alike_releases("same torch", [card.torch for card in cards]),
        _alike_releases("same Python", [card.python for card in cards]),
        _compare_kernels(cards, everywhere),
        _compare_interfaces(cards),
    ]
    if {*plans} != {"no plan"}:
        found.append(_alike("same plan", plans, "FAIL", "use a copy of the same file on all ranks"))
    return found


def groups(values: Sequence[str]) -> dict[str, list[int]]:
    """Group ranks by value, the most frequent value first; ``values`` are in rank order."""
    found: dict[str, list[int]] = {}
    for rank, value in enumerate(values):
        found.setdefault(value, []).append(rank)
    return dict(sorted(found.items(), key=lambda each: -len(each[1])))


def _who_has_what(found: Mapping[str, Sequence[int]]) -> str:
    return "; ".join(f"{value} on {name_ranks(ranks)}" for value, ranks in found.items())


def _alike(check: str, values: Sequence[str], otherwise: Result, remedy: str) -> Finding:
    found = groups(values)
    if len(found) == 1:
        return Finding(check, "ok", f"{values[0]} on all {len(values)} ranks")
    return Finding(check, otherwise, f"{_who_has_what(found)}: {remedy}")


def _alike_releases(check: str, versions: Sequence[str]) -> Finding:
    """Return a warning if major or minor numbers differ; patches and builds do not affect an exchange."""
    if len({release(version) or version for version in versions}) > 1:
        remedy = "only equal releases are tested; install one release on all machines"
        return _alike(check, versions, "warn", remedy)
    return Finding(check, "ok", _who_has_what(groups(versions)))


def _compare_kernels(cards: Sequence[Card], everywhere: str) -> Finding:
    if len({card.kernels_digest for card in cards}) > 1:
        payloads = [
            f"{card.target or 'no target'} with payloads {card.kernels_digest or 'none'}" for card in cards
        ]
        scalar = "or set GRADWIRE_TARGET=scalar, so that all ranks encode the same bytes"
        return _alike("same kernels", payloads, "FAIL", f"{everywhere}, {scalar}")
    targets = _who_has_what(groups([card.target for card in cards]))
    return Finding("same kernels", "ok", f"equal payloads; {targets}")


def _compare_interfaces(cards: Sequence[Card]) -> Finding:
    machines = len({card.machine_id for card in cards})
    stuck = [rank for rank, card in enumerate(cards) if card.loopback]
    if machines > 1 and stuck:
        detail = (
            f"{name_ranks(stuck)}: expected an address that other machines can reach, got a loopback "
            f"address; set {VARIABLE} on these ranks to the interface of the network between the "
            f"{machines} machines"
        )
        return Finding("reachable", "FAIL", detail)
    where = "1 machine" if machines == 1 else f"{machines} machines, none at a loopback address"
    return Finding("reachable", "ok", f"{len(cards)} ranks on {where}")


# A trial of the plan: all ranks sum known vectors with the plan, and compare the bits and errors of the sums.

COUNT = (1 << 20) // FLOAT_NBYTES
_PERIOD = 4096 + 3
"""The number of values after which a trial's vector repeats: no multiple of a block size, so blocks vary."""


@dataclass(frozen=True)
class Outcome:
    """One rank's result of the plan's trial: digest and error of the sum, or the reason for a failure."""

    digest: str = ""
    largest_error: float = 0.0  # the distance from the exact sum; nan if the sum contains a nan
    error: str = ""


def try_plan(link: Link, plan: Plan, count: int = COUNT) -> Outcome:
    """Sum ``count`` known float32 values over all ranks with ``plan``; all ranks call this together."""
    bucket = _bucket(link.rank, count)
    try:
        Exchange(link, plan).all_reduce(bucket, average=False)
    except GradwireError as error:
        return Outcome(error=str(error))
    exact = sum((_bucket(rank, count).double() for rank in range(link.world)), torch.zeros(()))
    distance = (bucket.double() - exact).abs().max().item()
    return Outcome(hashlib.sha256(bucket.numpy().tobytes()).hexdigest()[:12], distance)


def allowed_error(plan: Plan, world: int, count: int = COUNT) -> float:
    """Return the error bound of the trial's sum with the plan's codec."""
    envelope = sum((_bucket(rank, count).abs() for rank in range(world)), torch.zeros(()))
    return error_bound(plan, envelope, world)


def check_trial(outcomes: Mapping[int, Outcome], allowed: float) -> Finding:
    """Return the finding of the plan's trial, from each rank's outcome and the plan's error bound."""
    failed = [rank for rank, outcome in outcomes.items() if outcome.error]
    if failed:
        reason = f"{name_ranks(failed)} could not run the plan: {outcomes[failed[0]].error}"
        return Finding("trial", "FAIL", reason)
    if len({outcome.digest for outcome in outcomes.values()}) > 1:
        most, others, *_ = groups([outcomes[rank].digest for rank in sorted(outcomes)]).values()
        unlike = (
            f"expected identical results on all ranks, got other bits on {name_ranks(others)} than on "
            f"{name_ranks(most)}; please report this bug"
        )
        return Finding("trial", "FAIL", unlike)
    worst = max(outcome.largest_error for outcome in outcomes.values())
    if not worst <= allowed:
        wrong = f"expected an error of at most {allowed:.3g}, got {worst:.3g}; please report this bug"
        return Finding("trial", "FAIL", wrong)
    summed = f"1 MiB summed: identical bits on all ranks, an error of {worst:.3g} ({allowed:.3g} allowed)"
    return Finding("trial", "ok", summed)


def _bucket(rank: int, count: int) -> torch.Tensor:
    period = fixed_vector(min(count, _PERIOD), seed=rank + 1)
    return period.repeat(-(-count // period.numel()))[:count].contiguous()


# The link between two ranks: the rate of each direction, within about a second, and the clocks' offset.
#
# The rates are rough; ``gradwire line-rate`` measures them precisely.

UNLIKE = 2.0
"""The factor between two rates above which the doctor warns; it exceeds the noise of short measurements."""
_WINDOW = 8
_TRIPS = 8
_FIRST = (1 << 16, 4)
"""Message size in bytes, and number of messages, of the first and shortest stream."""
_MOST_NBYTES, _MOST_COUNT = 1 << 20, 256
_ENOUGH_S = 0.1
"""The minimum duration of a stream that measures the rate, longer than a rate limiter's burst.

Between distant hosts, the minimum is ``STREAM_TRIPS`` round trips.
"""
_ORDER = struct.Struct("<qq")
_ENOUGH = (0, 0)


def look_at_line(link: Link, peer: int) -> Look:
    """Measure the link to a higher rank, which calls ``show_line``. Raises ``LinkError``."""
    pair = Pair(link, peer, _WINDOW)
    trips = pair.round_trips(1, _TRIPS)
    there, back = (_measure_rate(pair, min(trips), back=back) for back in (False, True))
    return Look(statistics.median(trips) / 2, there, back)


def show_line(link: Link, peer: int) -> None:
    """Answer the lower rank ``peer``, which measures the link with ``look_at_line``. Raises ``LinkError``."""
    pair = Pair(link, peer, _WINDOW)
    pair.round_trips(1, _TRIPS)
    for back in (False, True):
        while (order := _ORDER.unpack(pair.hear(_ORDER.size))) != _ENOUGH:
            _stream(pair, *order, back=back)


def check_lines(looks: Mapping[int, Look]) -> list[Finding]:
    """Return findings about the links between rank 0 and each other rank, keyed by rank."""
    slowest = min(looks, key=lambda rank: looks[rank].slower_nbytes_per_s)
    typical = statistics.median(look.slower_nbytes_per_s for look in looks.values())
    rate = looks[slowest].slower_nbytes_per_s
    figures = f"{format_rate(rate)}, {format_duration(looks[slowest].latency_s)}"
    found = Finding("line rate", "ok", f"slowest: ranks 0 and {slowest}, {figures}")
    if typical > UNLIKE * rate:
        remedy = "all-reduces wait for this link: check its cable, port and other traffic"
        detail = f"ranks 0 and {slowest}: {figures}, below the median of {format_rate(typical)}; {remedy}"
        found = Finding("line rate", "warn", detail)
    return [found, _check_directions(looks)]


def _check_directions(looks: Mapping[int, Look]) -> Finding:
    worst = max(looks, key=lambda rank: looks[rank].unlikeness)
    there, back = format_rate(looks[worst].there_nbytes_per_s), format_rate(looks[worst].back_nbytes_per_s)
    rates = f"{there} from rank 0 to {worst}, {back} back"
    if looks[worst].unlikeness > UNLIKE:
        remedy = "an all-reduce needs both directions; check duplex settings, shaping and other traffic"
        return Finding("directions", "warn", f"{rates}: {remedy}")
    return Finding("directions", "ok", f"similar; largest difference: {rates}")


def _measure_rate(pair: Pair, trip_s: float, *, back: bool) -> float:
    """Return one direction's rate, from a long enough stream after shorter streams that open TCP's window."""
    nbytes, count = _FIRST
    enough_s = max(_ENOUGH_S, STREAM_TRIPS * trip_s)
    while True:
        pair.tell(_ORDER.pack(nbytes, count))
        seconds = max(without_trip(_stream(pair, nbytes, count, back=back), trip_s), 1e-9)
        if seconds >= enough_s or count >= _MOST_COUNT:
            pair.tell(_ORDER.pack(*_ENOUGH))
            return nbytes * count / seconds
        nbytes, count = min(2 * nbytes, _MOST_NBYTES), 2 * count


def _stream(pair: Pair, nbytes: int, count: int, *, back: bool) -> float:
    """Send a stream from the lower rank, or from the higher rank if ``back``; return this rank's seconds."""
    pair.leads ^= back
    seconds = pair.stream(nbytes, count)
    pair.leads ^= back
    return seconds


# The offset of two ranks' clocks, by messages over the link.
#
# The leader reads its clock before and after a round trip, and the peer reads its own clock in between. The
# offset is the difference between the peer's time and the middle of the leader's two times. Its error is at
# most half the round trip, so the shortest of several round trips is used (Cristian, "Probabilistic clock
# synchronization", 1989).

TRIPS = 16
LARGEST_OFFSET_S = 0.1
_READING = struct.Struct("<q")

Clock = Callable[[], int]
"""A wall clock, in ns since 1970."""


def measure_offset(link: Link, peer: int, now: Clock = time.time_ns) -> Offset:
    """Measure the offset of the peer's clock, while the peer calls ``tell_time``. Raises ``LinkError``."""
    readings = []
    for _ in range(TRIPS):
        receiving = link.irecv(peer, frame_memory(_READING.size))
        before = now()
        link.isend(peer, _message(0)).wait()
        (there,) = _READING.unpack(receiving.wait().numpy().tobytes())
        after = now()
        readings.append((after - before, there - (before + after) // 2))
    trip_ns, offset_ns = min(readings)
    return Offset(offset_ns / 1e9, trip_ns / 2e9)


def tell_time(link: Link, peer: int, now: Clock = time.time_ns) -> None:
    """Send clock readings to ``peer``, which calls ``measure_offset``. Raises ``LinkError``."""
    for _ in range(TRIPS):
        link.irecv(peer, frame_memory(_READING.size)).wait()
        link.isend(peer, _message(now())).wait()


def check_clocks(offsets: Mapping[int, Offset]) -> Finding:
    """Return a finding about the ranks' clock offsets from rank 0, keyed by rank."""
    far = [rank for rank, each in offsets.items() if abs(each.offset_s) > LARGEST_OFFSET_S]
    worst = max(offsets, key=lambda rank: abs(offsets[rank].offset_s))
    if not far:
        return Finding("clocks", "ok", f"largest offset from rank 0: rank {worst}, {offsets[worst]}")
    detail = (
        f"{name_ranks(far)}: expected clocks within {format_duration(LARGEST_OFFSET_S)} of rank 0's, got "
        f"{offsets[worst]} on rank {worst}, which affects logs and certificates; start a time service such "
        "as chrony on all machines"
    )
    return Finding("clocks", "warn", detail)


def _message(reading: int) -> torch.Tensor:
    return torch.frombuffer(bytearray(_READING.pack(reading)), dtype=torch.uint8)
