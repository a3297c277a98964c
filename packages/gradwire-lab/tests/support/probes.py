"""A program for the hosts of a testbed: host 0 sends numbered datagrams, and the last host times them.

``python probes.py COUNT PER_MS READY`` sends COUNT datagrams, PER_MS of them per millisecond, once the file
READY exists. The receiver prints the numbers of the datagrams in the order of their arrival, and the seconds
between the call that sent each and the kernel's own stamp of its arrival.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import sys
import time
from pathlib import Path

PORT = 5000
SO_TIMESTAMPNS = 35
QUIET_S = 1.0
PATIENCE_S = 20.0
HEAD = struct.Struct("=qq")


def send(address: str, count: int, per_ms: float, ready: Path) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not ready.exists():
        assert time.monotonic() < deadline, "no host receives"
        time.sleep(0.01)
    began = time.monotonic()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for number in range(count):
            time.sleep(max(0.0, began + number / per_ms * 1e-3 - time.monotonic()))
            sender.sendto(HEAD.pack(number, time.time_ns()), (address, PORT))


def receive(address: str, count: int, ready: Path) -> None:
    numbers: list[int] = []
    seconds: list[float] = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver:
        receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        receiver.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        receiver.bind((address, PORT))
        ready.touch()
        receiver.settimeout(PATIENCE_S)
        while len(numbers) < count:
            try:
                data, told, _, _ = receiver.recvmsg(HEAD.size, 64)
            except TimeoutError:
                break
            receiver.settimeout(QUIET_S)
            number, sent_ns = HEAD.unpack(data)
            whole, rest = HEAD.unpack(told[0][2])
            numbers.append(number)
            seconds.append((whole * 10**9 + rest - sent_ns) / 1e9)
    sys.stdout.write(json.dumps({"numbers": numbers, "seconds": seconds}) + "\n")


def main(count: int, per_ms: float, ready: Path) -> None:
    addresses = json.loads(os.environ["GRADWIRE_TESTBED"])["addresses"]
    match int(os.environ["RANK"]):
        case 0:
            send(addresses[-1], count, per_ms, ready)
        case rank if rank == len(addresses) - 1:
            receive(addresses[-1], count, ready)


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), Path(sys.argv[3]))
