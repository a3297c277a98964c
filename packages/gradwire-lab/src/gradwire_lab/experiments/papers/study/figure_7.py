"""Figure 7: the link between two hosts by message size, and the model with latency and rate."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from statistics import median
from typing import TYPE_CHECKING

from gradwire.units import parse_rate
from gradwire_lab.experiments.claim import RATIO, Bound, Claim, Explanation, Published, at_least, near, only
from gradwire_lab.experiments.experiment import Cell, Row, cells_of
from gradwire_lab.experiments.hosts import measured_by
from gradwire_lab.experiments.papers.exhibit import RUN_TIME, chosen, exhibit, paper
from gradwire_lab.testbed.namespaces import burst_nbytes
from gradwire_lab.testbed.topology import USUAL_MTU_NBYTES

if TYPE_CHECKING:  # these modules import torch, which only the hosts need
    from gradwire_lab.experiments.hosts.ranks import Ranks

PLACE = "figure 7"
HOSTS = 2
RATES = ("1gbit", "unlimited")
NOMINAL_SHARE, LATENCY_US = 0.85, 2.5
"""The published plateau as a share of the vendor's rate, and the time of a message of 1 byte."""
VARIANCE = 0.01
"""The published relative difference between repeated runs."""
LARGE_NBYTES, LARGE_SHARE = 1_000_000, 5.5 / 6
"""At 1 MB, the rate is "slightly less than 6 GB/s", the largest of any message size."""
LATENCY_PRECISION = 0.05 / 2.5
WITHIN = 0.15
FRAME_SHARE = 1448 / 1514
OVER_TCP = 1.5
TRIPS = 2000


@dataclass(frozen=True)
class StudyFigure7Options:
    """The options: message sizes as powers of two, and the seconds for each figure."""

    powers: tuple[int, ...]
    time_s: float


def measure(ranks: Ranks, cells: Sequence[Cell], powers: Sequence[int], time_s: float) -> None:
    """Measure the link as ``gradwire line-rate`` does, and a bare socket's latency."""
    from gradwire.timing.line_rate import Effort
    from gradwire.timing.line_rate import measure as measure_line

    effort = Effort(tuple(1 << power for power in powers), repeats=3, time_s=time_s)
    for cell in cells:
        points = measure_line(ranks.link, 1 - ranks.rank, effort)
        found = [
            {"nbytes": point.nbytes, "time_s": point.time_s, "nbytes_per_s": point.nbytes_per_s}
            for point in points
        ]
        ranks.report(cell, {"points": found, "socket_s": _socket_s(ranks)})


def _socket_s(ranks: Ranks) -> float:
    """Return half of the median round trip of one byte between plain TCP sockets of both hosts."""
    host = os.environ["MASTER_ADDR"]  # the address of rank 0
    if ranks.rank:
        with socket.create_connection((host, ranks.gather(None)[0])) as peer:
            return _half_trip_s(peer, leads=False)
    with socket.create_server((host, 0)) as server:
        ranks.gather(server.getsockname()[1])
        with server.accept()[0] as peer:
            return _half_trip_s(peer, leads=True)


def _half_trip_s(peer: socket.socket, *, leads: bool) -> float:
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    seconds = []
    for _ in range(TRIPS):
        began = time.perf_counter()
        if leads:
            peer.sendall(b"x")
            peer.recv(1)
        else:
            peer.recv(1)
            peer.sendall(b"x")
        seconds.append(time.perf_counter() - began)
    return median(seconds) / 2


def claims(rows: Sequence[Row]) -> list[Claim]:
    """Compare each link's plateau, latency, and times of all sizes with the model."""
    return [claim for row in rows for claim in _claims(row)]


def _claims(row: Row) -> Iterator[Claim]:
    points, claim = row["points"], partial(Claim, system=f"({row['rate']})")
    nominal = parse_rate(row["rate"])
    plateau = max(point["nbytes_per_s"] for point in points)
    large = [point["nbytes_per_s"] for point in points if point["nbytes"] >= LARGE_NBYTES]
    latency_s = next(point["time_s"] for point in points if point["nbytes"] == 1)
    socket_us = 1e6 * row["socket_s"]
    if nominal is not None:
        yield claim(
            "plateau, of the nominal rate",
            only(plateau / nominal),
            near(NOMINAL_SHARE, VARIANCE),
            published=Published(PLACE, NOMINAL_SHARE),
            better=Explanation(
                "a rate limit carries frames at the nominal rate, and 95.6 % of a frame are data.",
                Bound(NOMINAL_SHARE, (1 + VARIANCE) * FRAME_SHARE),
            ),
        )
    text, of_plateau = "rate of messages of 1 MB and more, of the plateau", min(large, default=0.0) / plateau
    yield claim(text, only(of_plateau), at_least(LARGE_SHARE), published=Published(PLACE))
    yield claim(
        "latency: time of a message of 1 byte",
        only(1e6 * latency_s),
        near(LATENCY_US, LATENCY_PRECISION),
        unit="us",
        published=Published(PLACE, LATENCY_US),
        otherwise=Explanation(
            f"hosts exchange over TCP, not InfiniBand's verbs. A byte takes {socket_us:.1f} us "
            f"between plain sockets of these hosts, and at most {OVER_TCP:g} times as long through a link.",
            Bound(socket_us, OVER_TCP * socket_us),
        ),
    )
    text = "latency of a link over two plain TCP sockets of the same hosts"
    yield claim(text, only(latency_s / row["socket_s"]), Bound(1.0, OVER_TCP), unit=RATIO)
    times_s = {point["nbytes"]: point["time_s"] for point in points if point["nbytes"] > 1}
    expected_s = {nbytes: latency_s + nbytes / plateau for nbytes in times_s}
    yield claim(
        "time of each size over latency + bytes / rate",
        {str(nbytes): time_s / expected_s[nbytes] for nbytes, time_s in times_s.items()},
        near(1.0, WITHIN),
        of_each=True,
        unit="",
        published=Published("section 6.1"),
        otherwise=None if nominal is None else _at_once(nominal, latency_s, plateau, expected_s),
    )


def _at_once(
    nominal: float, latency_s: float, plateau: float, expected_s: Mapping[int, float]
) -> Explanation:
    """Return the bound for a rate limit's burst, which passes at once."""
    burst = burst_nbytes(nominal, USUAL_MTU_NBYTES)
    shares = [(latency_s + max(0.0, n - burst) / plateau) / time_s for n, time_s in expected_s.items()]
    return Explanation(
        f"{burst / 1000:.0f} kB pass a rate limit at once after a pause, which the model doesn't have.",
        Bound((1 - WITHIN) * min(shares, default=1.0), 1 + WITHIN),
    )


EXHIBIT = exhibit(
    "study",
    PLACE,
    "what rate and latency does a link have, by message size?",
    cells=lambda _options: cells_of({"hosts": HOSTS}, rate=RATES),
    run=measured_by(__name__, asdict),
    claims=claims,
    quick=StudyFigure7Options((0, 10, 14, 18, 20, 22, 23), 0.1),
    full=StudyFigure7Options(tuple(range(25)), 0.1),
    scaling="hosts are two network namespaces of one machine that exchange over TCP, with a rate limit of "
    "1 Gbit/s and without a limit, instead of InfiniBand with 56 Gbit/s. To measure a cluster's own links, "
    "run gradwire line-rate on the cluster.",
    origins={
        "HOSTS LATENCY_US powers": paper("figure 7"),
        "NOMINAL_SHARE VARIANCE LARGE_NBYTES LARGE_SHARE LATENCY_PRECISION": paper("section 6.1"),
        "WITHIN": chosen("the formula omits additions and CPU time"),
        "FRAME_SHARE": chosen("1448 of an Ethernet frame's 1514 bytes are data"),
        "OVER_TCP": chosen("a frame has a header and a checksum, which may take half as long as TCP"),
        "TRIPS time_s": RUN_TIME,
    },
    seconds=(14, 35),
    version=2,
)
