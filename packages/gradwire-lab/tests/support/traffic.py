"""A program for the hosts of a testbed: sends bytes along flows and tells how fast they came.

``python traffic.py NBYTES 1-0,2-0`` lets hosts 1 and 2 send NBYTES each to host 0, all at once. Every host
that receives prints the bytes per second of all its flows together, and every host its TCP's retransmissions.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from pathlib import Path
from threading import Barrier, Thread

PORT = 5000
PATIENCE_S = 30.0
BLOCK = bytes(1 << 18)


def main(nbytes: int, flows: list[tuple[int, int]]) -> None:
    own = int(os.environ["RANK"])
    addresses = json.loads(os.environ["GRADWIRE_TESTBED"])["addresses"]
    sources = [source for source, target in flows if target == own]
    targets = [target for source, target in flows if source == own]
    began: list[float] = []
    ended: list[float] = []
    ready = Barrier(len(sources) + 1)

    def receive(source: int) -> None:
        with socket.create_server((addresses[own], PORT + source)) as server:
            server.settimeout(PATIENCE_S)
            connection, _ = server.accept()
        with connection:
            connection.settimeout(PATIENCE_S)
            connection.recv(1)
            ready.wait(PATIENCE_S)
            connection.sendall(b"g")
            began.append(time.perf_counter())
            buffer, left = bytearray(len(BLOCK)), nbytes
            while left:
                left -= connection.recv_into(buffer)
            ended.append(time.perf_counter())
            connection.sendall(b"e")

    def send(target: int) -> None:
        with connect(addresses[target], PORT + own) as connection:
            connection.sendall(b"r")
            connection.recv(1)
            left = nbytes
            while left:
                left -= connection.send(BLOCK[:left])
            connection.recv(1)

    threads = [Thread(target=receive, args=(source,)) for source in sources]
    threads += [Thread(target=send, args=(target,)) for target in targets]
    for thread in threads:
        thread.start()
    ready.wait(PATIENCE_S)
    for thread in threads:
        thread.join()
    told: dict[str, float] = {"rank": own, "retransmitted": retransmitted()}
    if sources:
        told["nbytes_per_s"] = nbytes * len(sources) / (max(ended) - min(began))
    sys.stdout.write(json.dumps(told) + "\n")


def connect(address: str, port: int) -> socket.socket:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return socket.create_connection((address, port), timeout=PATIENCE_S)
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def retransmitted() -> int:
    names, values = (
        line.split()
        for line in Path("/proc/net/snmp").read_text(encoding="ascii").splitlines()
        if line.startswith("Tcp:")
    )
    return int(values[names.index("RetransSegs")])


if __name__ == "__main__":
    main(
        int(sys.argv[1]), [(int(a), int(b)) for a, b in (flow.split("-") for flow in sys.argv[2].split(","))]
    )
