"""Calibrate the relay that delays a testbed's frames where the kernel has no netem.

    python bench/relay.py --delay 25ms --seconds 5

First, one host sends single datagrams to the other host over an idle link. Each datagram's one-way time, by
the kernel's stamp of the arrival, is compared with the delay. Then the host sends four TCP streams. Rows show
their goodput without and with a relay, the relay's processor time, and the error of the relay's delays
against the kernel's stamps. In the last rows, every packet is a separate frame, as with ``--loss``.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import struct
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

from gradwire.tables import Column, Table, show
from gradwire.units import format_duration, parse_duration
from gradwire_lab.testbed import CommandRun, Testbed, Topology
from gradwire_lab.testbed.output import Stream

RATES = ("200mbit", "400mbit", "1gbit")
SINGLE = ("200mbit",)
SHORT_DELAY = "5ms"
"""The delay of streams without a rate limit; over a longer delay, the sockets' buffers would be the limit."""
NO_LOSS = 1e-12  # a loss that never happens, but makes every packet one frame
PORT, STREAMS, PROBES = 6000, 4, 500
SO_TIMESTAMPNS, TIMESPEC = 35, struct.Struct("=qq")
WARM_UP_S = 1.0
"""The time at the beginning of a stream that its goodput excludes, because TCP starts slowly."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--delay", default="25ms")
    parser.add_argument("--seconds", type=float, default=5.0)
    options = parser.parse_args()
    print_idle(options.delay)
    rows = [row(rate, options.delay, options.seconds) for rate in RATES]
    rows += [row(None, SHORT_DELAY, options.seconds)]
    rows += [row(rate, options.delay, options.seconds, NO_LOSS) for rate in SINGLE]
    rows += [row(None, SHORT_DELAY, options.seconds, NO_LOSS)]
    columns = ("delay", "frames", "without, Mbit/s", "with", "s per GB", "core", "error", "99 %")
    show(Table((Column.of_text("limit"), *map(Column, columns)), rows))


def print_idle(delay: str) -> None:
    for each in ("0", delay):
        run, (told,) = measure(Topology.even(2, delay=each), ["probe"])
        errors = sorted(abs(seconds - parse_duration(each)) for seconds in told)
        median, p99 = statistics.median(errors), errors[len(errors) * 99 // 100]
        by = f"{each} by a {run.impairment}" if run.impairment else "no delay"
        print(
            f"idle link, {by}: off by {format_duration(median)} (median), {format_duration(p99)} (99 %)",
            flush=True,
        )


def row(rate: str | None, delay: str, seconds: float, loss: float = 0.0) -> tuple[str, ...]:
    words = ["stream", str(seconds)]
    without = None if loss else measure(Topology.even(2, rate), words)[1][0]
    run, (goodput,) = measure(Topology.even(2, rate, delay=delay, loss=loss), words)
    report = run.relay
    assert report is not None
    assert report.processor_s_per_gb is not None
    return (
        rate or "none",
        delay,
        "1 packet" if loss else f"{report.nbytes / report.frames / 1e3:.1f} kB",
        "" if without is None else f"{without:.0f}",
        f"{goodput:.0f}",
        f"{report.processor_s_per_gb:.1f}",
        f"{100 * report.processor_s / (seconds + WARM_UP_S):.0f} %",
        format_duration(report.error_median_s or 0.0),
        format_duration(report.error_p99_s or 0.0),
    )


def measure(topology: Topology, words: Sequence[str]) -> tuple[CommandRun, list[Any]]:
    told: list[Any] = []

    def keep(_: int, stream: Stream, text: bytes) -> None:
        assert stream == "out", text.decode()
        told.extend(json.loads(line) for line in text.splitlines())

    with Testbed(topology, netem=False) as bed:
        run = bed.run([sys.executable, __file__, "host", *words], sinks=(keep,), timeout_s=300)
    assert run.failure is None, run.failure
    return run, told


# The programs of the hosts: host 0 sends, and host 1 receives and prints.


def host(kind: str, *words: str) -> None:
    address = json.loads(os.environ["GRADWIRE_TESTBED"])["addresses"][1]
    is_sender = os.environ["RANK"] == "0"
    if kind == "probe":
        send_probes(address) if is_sender else receive_probes(address)
    else:
        send_streams(address, float(words[0])) if is_sender else receive_streams(address)


def send_probes(address: str) -> None:
    with connected(address), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probes:
        for _ in range(PROBES):
            time.sleep(4e-3)
            probes.sendto(struct.pack("=q", time.time_ns()), (address, PORT))
        time.sleep(1.0)


def receive_probes(address: str) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probes:
        probes.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        probes.bind((address, PORT))
        with socket.create_server((address, PORT)) as server, server.accept()[0]:
            times: list[float] = []
            while len(times) < PROBES:
                data, stamp, _, _ = probes.recvmsg(8, 64)
                seconds, ns = TIMESPEC.unpack(stamp[0][2])
                times.append((seconds * 10**9 + ns - struct.unpack("=q", data)[0]) / 1e9)
    print(json.dumps(times))


def send_streams(address: str, seconds: float) -> None:
    def send() -> None:
        block = bytes(1 << 18)
        with connected(address) as stream:
            end = time.monotonic() + seconds + WARM_UP_S
            while time.monotonic() < end:
                stream.sendall(block)

    threads = [threading.Thread(target=send) for _ in range(STREAMS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def receive_streams(address: str) -> None:
    arrivals: list[tuple[float, int]] = []

    def receive(stream: socket.socket) -> None:
        buffer = bytearray(1 << 18)
        with stream:
            while nbytes := stream.recv_into(buffer):
                arrivals.append((time.monotonic(), nbytes))

    with socket.create_server((address, PORT)) as server:
        threads = [threading.Thread(target=receive, args=(server.accept()[0],)) for _ in range(STREAMS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    began, ended = min(arrivals)[0] + WARM_UP_S, max(arrivals)[0]
    nbytes = sum(each for at, each in arrivals if at > began)
    print(json.dumps(8e-6 * nbytes / (ended - began)))


def connected(address: str) -> socket.socket:
    while True:
        try:
            return socket.create_connection((address, PORT))
        except ConnectionRefusedError:
            time.sleep(0.02)


if __name__ == "__main__":
    host(*sys.argv[2:]) if sys.argv[1:2] == ["host"] else main()
