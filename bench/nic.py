"""Measure the rate of a marked stream of gradients around a ring of hosts, with and without software NICs.

    python bench/nic.py --hosts 2 --rates 100mbit,200mbit --codec inceptionn:2^-10 --mtu 1500

All hosts send to their next host simultaneously, so every link is busy in both directions. The values have a
Laplace distribution of scale 0.002.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import sys
import threading
import time

import numpy as np

from gradwire_lab.testbed import Testbed, Topology
from gradwire_lab.testbed.output import Stream

PORT = 6000
TOS = 0x28
SETTLE_S = 0.3


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--rates", default="100mbit,200mbit")
    parser.add_argument("--codec", default="inceptionn:2^-10")
    parser.add_argument("--megabytes", type=int, default=48)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--mtu", type=int, default=1500)
    options = parser.parse_args()
    print(f"{options.hosts} hosts in a ring, {options.megabytes} MB each, {options.codec}, MTU {options.mtu}")
    print(f"{'link':>9}{'plain':>11}{'with NICs':>11}{'speed-up':>10}   (Mbit/s of values, each host)")
    for rate in options.rates.split(","):
        plain, fast = (measure(rate, nic, options) for nic in ([], command(options.codec)))
        print(f"{rate:>9}{plain:>11.0f}{fast:>11.0f}{fast / plain:>10.2f}", flush=True)


def command(codec: str) -> list[str]:
    return [sys.executable, "-m", "gradwire", "nic", "--codec", codec]


def measure(rate: str, nic: list[str], options: argparse.Namespace) -> float:
    """Return the hosts' median rate in Mbit/s."""
    times: list[float] = []

    def keep(_: int, stream: Stream, text: bytes) -> None:
        if stream == "out":
            times.extend(json.loads(line) for line in text.splitlines())

    with Testbed(Topology.even(options.hosts, rate, mtu_nbytes=options.mtu), nic=nic) as bed:
        for _ in range(options.repeats):
            words = [sys.executable, __file__, "host", str(options.megabytes)]
            run = bed.run(words, sinks=(keep,), timeout_s=300)
            assert run.failure is None, run.failure
    return 8.0 * float(options.megabytes) / statistics.median(times)


def host(megabytes: int) -> None:
    """Send to the next host and receive from the previous host; print the seconds."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    values = np.random.default_rng(rank).laplace(0, 2e-3, megabytes * 250_000).astype(np.float32).tobytes()
    server = socket.socket()
    server.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, TOS)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind(("", PORT))
    server.listen()
    out = connected((rank + 1) % world)
    incoming, _ = server.accept()
    time.sleep(SETTLE_S)
    began = time.monotonic()
    sender = threading.Thread(target=out.sendall, args=(values,))
    sender.start()
    left = len(values)
    while left:
        left -= len(incoming.recv(1 << 20))
    print(time.monotonic() - began)
    sender.join()


def connected(peer: int) -> socket.socket:
    address = json.loads(os.environ["GRADWIRE_TESTBED"])["addresses"][peer]
    while True:
        stream = socket.socket()
        stream.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, TOS)
        if stream.connect_ex((address, PORT)) == 0:
            return stream
        stream.close()
        time.sleep(0.02)


if __name__ == "__main__":
    host(int(sys.argv[2])) if sys.argv[1:2] == ["host"] else main()
