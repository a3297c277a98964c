"""The relay of a testbed between real namespaces, on kernels with netem, too."""

from __future__ import annotations

import json
import math
import socket
import statistics
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

from gradwire.errors import TestbedError as _TestbedError  # pytest would take the name for a test's
from gradwire_lab.testbed import Testbed as _Testbed
from gradwire_lab.testbed import Topology, relay
from gradwire_lab.testbed.delay_line import DelayLine, Errors, RelayReport
from gradwire_lab.testbed.output import Stream
from gradwire_lab.testbed.relay_program import RelayProgram
from support.beds import TRAFFIC, needs_namespaces
from support.noise import likely, undisturbed

pytestmark = pytest.mark.processes
PROBES = Path(__file__).parent.parent / "support" / "probes.py"
OWN, PEER, ALL = bytes.fromhex("026777000001"), bytes.fromhex("026777000002"), b"\xff" * 6
LATE_S = 5e-3
"""What a quiet machine adds to a delay at most: the path without a relay, and the relay's wake-ups."""


@pytest.fixture(autouse=True)
def own_registry(folder: Path) -> Path:
    return folder


@dataclass(frozen=True)
class Probed:
    """The datagrams that arrived, in their order, and the relay's own report."""

    numbers: list[int]
    seconds: list[float]
    report: RelayReport


def probe(bed: _Testbed, count: int, per_ms: float, folder: Path) -> Probed:
    told: list[dict[str, list[float]]] = []

    def read(_host: int, stream: Stream, text: bytes) -> None:
        assert stream == "out", text.decode()
        told.append(json.loads(text))

    ready = folder / "ready"
    run = bed.run(
        [sys.executable, str(PROBES), str(count), str(per_ms), str(ready)], sinks=(read,), timeout_s=60
    )
    ready.unlink()
    assert run.failure is None
    assert (run.impairment, json.loads(run.to_json())["impairment"]) == ("relay", "relay")
    assert run.relay is not None
    assert json.loads(run.to_json())["relay"] == asdict(run.relay)
    (found,) = told
    return Probed([int(each) for each in found["numbers"]], found["seconds"], run.relay)


@needs_namespaces
@pytest.mark.parametrize(
    "topology",
    [
        Topology.even(2, delay="20ms"),
        Topology.even(2, "100mbit", delay="20ms"),
        Topology.even(4, groups=2, core="1gbit", delay="20ms"),
    ],
)
def test_every_frame_is_delayed_once(topology: Topology, tmp_path: Path) -> None:
    def attempt() -> None:
        probed = probe(bed, 200, 0.5, tmp_path)
        assert probed.numbers == list(range(200))
        # A relay that waits for a core doesn't know when a frame arrived between two of its looks.
        likely(min(probed.seconds) >= 0.020 - relay.MOST_TICK_S, sorted(probed.seconds))
        assert statistics.median(probed.seconds) >= 0.020 - relay.MOST_TICK_S
        likely(statistics.median(probed.seconds) <= 0.020 + LATE_S, sorted(probed.seconds))
        assert probed.report.frames >= 200
        assert (probed.report.lost, probed.report.overruns, probed.report.refused) == (0, 0, 0)
        assert probed.report.nbytes >= 200 * (14 + 20 + 8 + 16)
        assert 0 < probed.report.processor_s < probed.report.seconds
        assert probed.report.error_median_s is not None
        likely(probed.report.error_median_s < LATE_S, probed.report)

    with _Testbed(topology, netem=False) as bed:
        undisturbed(attempt)


@needs_namespaces
def test_jitter_spreads_the_delays_and_keeps_the_order(tmp_path: Path) -> None:
    def attempt() -> None:
        probed = probe(bed, 300, 0.2, tmp_path)
        assert probed.numbers == list(range(300))
        assert min(probed.seconds) >= 0.010 - relay.MOST_TICK_S
        assert statistics.stdev(probed.seconds) > 2e-3
        likely(max(probed.seconds) <= 0.030 + LATE_S, sorted(probed.seconds))

    with _Testbed(Topology.even(2, delay="20ms", jitter="10ms"), netem=False) as bed:
        undisturbed(attempt)


@needs_namespaces
def test_every_run_loses_the_same_share_and_the_same_packets(tmp_path: Path) -> None:
    count, loss = 4000, 0.1

    def attempt() -> None:
        first, second = (probe(bed, count, 8, tmp_path) for _ in range(2))
        for probed in (first, second):
            assert abs(probed.report.lost - count * loss) < 5 * math.sqrt(count * loss * (1 - loss))
            assert len(probed.numbers) <= count - probed.report.lost
            assert probed.numbers == sorted(probed.numbers)
        # a busy receiver may lose more
        likely(len(first.numbers) == count - first.report.lost, len(first.numbers), first.report)
        likely(first.numbers == second.numbers, len(first.numbers), len(second.numbers))

    with _Testbed(Topology.even(2, loss=loss), netem=False) as bed:
        undisturbed(attempt)


@needs_namespaces
def test_streams_in_both_directions_reach_the_rate_over_the_delay() -> None:
    nominal, nbytes = 25e6, 25_000_000

    def attempt() -> None:
        told: list[dict[str, float]] = []
        run = bed.run(
            [sys.executable, str(TRAFFIC), str(nbytes), "0-1,1-0"],
            sinks=(lambda _host, _stream, text: told.extend(map(json.loads, text.splitlines())),),
            timeout_s=60,
        )
        assert run.failure is None
        assert run.relay is not None
        assert run.relay.nbytes >= 2 * nbytes
        shares = [each["nbytes_per_s"] / nominal for each in told]
        assert len(shares) == 2
        assert max(shares) <= 1.02
        # of 0.95 in the long run, the beginning of a connection costs a few round trips
        likely(min(shares) >= 0.75, shares, run.relay)

    with _Testbed(Topology.even(2, "200mbit", delay="5ms"), netem=False) as bed:
        undisturbed(attempt)


@needs_namespaces
def test_no_frame_is_on_the_links_but_those_of_the_commands() -> None:
    """Otherwise, the packets lost of a command's would depend on what else was sent."""
    with _Testbed(Topology.even(3, delay="1ms", groups=3), netem=False) as bed:
        run = bed.run(["sleep", "1.5"])
    assert run.relay is not None
    assert (run.relay.frames, run.relay.overruns, run.relay.lost) == (0, 0, 0)


@needs_namespaces
def test_without_an_impairment_there_is_no_relay() -> None:
    with _Testbed(Topology.even(2), netem=False) as bed:
        run = bed.run(["true"])
    assert (run.impairment, run.relay) == (None, None)


def test_a_relay_without_its_interfaces_is_an_error() -> None:
    program = RelayProgram(Topology.even(1, delay="1ms"))
    with pytest.raises(
        _TestbedError, match=r"failed to start: (no interface|.*not permitted).*; omit the delay"
    ):
        program.start()
    assert program.pid is None
    assert program.end() is None


# A port between socket pairs, which keep the borders of frames, too.


def frame(target: bytes, source: bytes, number: int = 0) -> bytes:
    return bytes(10) + target + source + b"\x08\x00" + number.to_bytes(2, "big") + bytes(1000)


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[relay.Port, socket.socket, socket.socket]]:
    """Return a port of a line without a delay, what arrives at it, and what leaves it."""
    switch, source = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    link, host = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with switch, source, link, host:
        for each in (switch, source, link, host):
            each.setblocking(False)
        monkeypatch.setattr(relay, "packet_socket", lambda _name, reads: source if reads else link)
        yield relay.Port("r0", "h0", OWN, DelayLine(0.0, 0.0, 0.0, seed=0)), switch, host


def test_a_host_does_not_hear_its_own_broadcasts(
    port: tuple[relay.Port, socket.socket, socket.socket],
) -> None:
    own, switch, host = port
    others = [frame(ALL, PEER), frame(OWN, PEER), frame(OWN, OWN)]
    for each in (frame(ALL, OWN), others[0], frame(ALL, OWN), *others[1:]):
        switch.send(each)
    own.receive(bytearray(relay.FRAME_NBYTES), now=1.0)
    own.send(1.0, Errors())
    assert [host.recv(2000) for _ in others] == others
    with pytest.raises(BlockingIOError):
        host.recv(2000)


def test_frames_wait_in_order_while_the_link_is_full(
    port: tuple[relay.Port, socket.socket, socket.socket],
) -> None:
    own, switch, host = port
    arrived: list[bytes] = []
    sent = [frame(OWN, PEER, number) for number in range(600)]
    for each in sent:
        switch.send(each)
        own.receive(bytearray(relay.FRAME_NBYTES), now=1.0)
    own.send(1.0, Errors())
    assert 0 < own.sent < len(sent)
    assert own.due() == 1.0
    while len(arrived) < len(sent):
        arrived.append(host.recv(2000))
        own.send(1.0, Errors())
    assert arrived == sent
    assert (own.sent, own.refused, own.due()) == (len(sent), 0, math.inf)
    assert own.nbytes == sum(len(each) - 10 for each in sent)


def test_a_frame_that_the_link_refuses_is_counted_and_the_others_pass(
    port: tuple[relay.Port, socket.socket, socket.socket],
) -> None:
    own, switch, host = port
    switch.send(frame(OWN, PEER))
    own.receive(bytearray(relay.FRAME_NBYTES), now=1.0)
    host.close()
    own.send(1.0, Errors())
    assert (own.sent, own.refused, own.due()) == (0, 1, math.inf)
