"""Train over marked connections, with and without software NICs, and capture the frames on the links.

    GRADWIRE_DATA=FOLDER python bench/offload.py --rates 100mbit,200mbit --codec inceptionn:2^-10

Four hosts train an MLP on MNIST three times: with the codec in software, with the codec as the plan's offload
while the NICs ignore the mark, and with NICs that compress. A program next to each NIC captures the frames
that arrive on the link. At the same time, hosts 0 and 1 talk over an unmarked connection, as in a shell; the
bytes of this talk at the hosts are compared with the captured bytes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from gradwire_lab.testbed import Testbed, Topology
from gradwire_lab.testbed.output import Stream

TALK_PORT = 2222
PATIENCE_S = 60.0
MARK, COMPRESSED = 0x28, 253
IGNORED = "0x04"
"""A mark that no connection has, for NICs that must not compress."""
ETH_P_ALL, SOL_PACKET, PACKET_IGNORE_OUTGOING, PACKET_STATISTICS = 3, 263, 23, 6
BUFFER_NBYTES = 64 << 20


class Result(NamedTuple):
    """A training run: its row of the record, the frames captured, and whether the talk was unaltered."""

    name: str
    record: dict[str, Any]
    captured: Counter[str]
    talk: bool


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rates", default="100mbit,200mbit")
    parser.add_argument("--codec", default="inceptionn:2^-10")
    parser.add_argument("--scale", choices=["auto"], help="scale of each frame (none)")
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--steps", type=int, default=100)
    options = parser.parse_args()
    scale = [] if options.scale is None else ["--scale", options.scale]
    title = " ".join([options.codec, *scale])
    print(f"{options.hosts} hosts, MNIST-MLP, {options.steps} steps, {title}")
    print(f"{'link':>8} {'':<22}{'step ms':>9}{'link MB':>9}{'accuracy':>10}  weights   talk")
    for rate in options.rates.split(","):
        ways = [
            ("codec in software", ["--codec", options.codec, *scale], IGNORED),
            ("offload, NICs idle", ["--offload", options.codec, *scale], IGNORED),
            ("offload, NICs at work", ["--offload", options.codec, *scale], hex(MARK)),
        ]
        results = [train(rate, options, *way) for way in ways]
        for each in results:
            run = each.record
            print(
                f"{rate:>8} {each.name:<22}{1e3 * run['step_s']:>9.1f}{each.captured['bytes'] / 1e6:>9.2f}"
                f"{run['accuracy']:>10.4f}  {run['weights_sha256'][:8]}  "
                f"{'identical' if each.talk else 'DIFFERENT'}",
                flush=True,
            )
        report_marked(results[0].record["ratio"], *(each.captured for each in results[1:]))


def report_marked(ratio: float, idle: Counter[str], work: Counter[str]) -> None:
    """Print the reduction of the marked connections' bytes on the link, and the codec's ratio in software."""
    frames, payload = (idle[name] / max(1, work[name]) for name in ("marked", "marked payload"))
    print(
        f"{'':>8} marked frames: {idle['marked'] / 1e6:.2f} MB, with NICs {work['marked'] / 1e6:.2f} MB, "
        f"{frames:.2f}x smaller; their payload {payload:.2f}x; the codec in software {ratio:.2f}x; "
        f"{idle['lost'] + work['lost']} frames not captured"
    )


def train(rate: str, options: argparse.Namespace, name: str, words: list[str], mark: str) -> Result:
    """Train once in a testbed whose NICs compress packets with the mark."""
    told: list[dict[str, Any]] = []
    rest: dict[tuple[int, Stream], bytes] = {}

    def keep(host: int, stream: Stream, text: bytes) -> None:
        *lines, rest[host, stream] = (rest.get((host, stream), b"") + text).split(b"\n")
        told.extend(json.loads(line[1:]) for line in lines if line.startswith(b"@"))

    nic = [sys.executable, __file__, "nic", "--codec", options.codec, "--tos", mark]
    with tempfile.TemporaryDirectory() as out, Testbed(Topology.even(options.hosts, rate), nic=nic) as bed:
        run = ["--data", "mnist", "--method", "sync", "--max-steps", str(options.steps), "--out", out]
        command = [sys.executable, __file__, "host", *run, *words]
        done = bed.run(command, sinks=(keep,), timeout_s=600)
        assert done.failure is None, (done.failure, rest)
        record = json.loads((Path(out) / "record.json").read_text())["runs"][0]
    captured, talks = Counter[str](), list[Any]()
    for each in told:
        captured.update(each.get("counts", {}))
        talks += each.get("talks", [])
    said = {each["said"] for each in told if "said" in each}
    heard = {each["heard"] for each in told if "heard" in each}
    return Result(name, record, captured, len(said) == 2 and said == heard and said <= {*talks})


def host(arguments: list[str]) -> None:
    """Train as a rank; hosts 0 and 1 also talk."""
    os.environ["OMP_NUM_THREADS"] = "1"
    from gradwire_lab.cli.train import run

    rank = int(os.environ["RANK"])
    talking = threading.Thread(target=talk, args=(rank,), daemon=True)
    if rank < 2:
        talking.start()
    run(arguments)
    if rank < 2:
        talking.join(PATIENCE_S)


def talk(rank: int) -> None:
    """Exchange lines with the other host in turns; print hashes of both directions."""
    address = json.loads(os.environ["GRADWIRE_TESTBED"])["addresses"][0]
    dice, said, heard = random.Random(rank), hashlib.sha256(), hashlib.sha256()
    if rank == 0:
        with socket.create_server((address, TALK_PORT)) as server:
            server.settimeout(PATIENCE_S)
            stream, _ = server.accept()
    else:
        stream = called(address)
    with stream:
        stream.settimeout(PATIENCE_S)
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for number in range(200):
            if number % 2 == rank:
                line = dice.randbytes(4 * dice.randrange(1, 300)).hex().encode() + b"\n"
                stream.sendall(line)
                said.update(line)
                time.sleep(0.01)
            else:
                line = b""
                while not line.endswith(b"\n"):
                    line += stream.recv(1 << 16)
                heard.update(line)
    print("@" + json.dumps({"said": said.hexdigest(), "heard": heard.hexdigest()}), flush=True)


def called(address: str) -> socket.socket:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return socket.create_connection((address, TALK_PORT), PATIENCE_S)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def nic(arguments: list[str]) -> None:
    """Run a NIC, and capture the frames that arrive at its link."""
    from gradwire_gateware.cli.nic import run

    link = arguments[arguments.index("--link") + 1]
    capture = Capture(link)
    threading.Thread(target=capture.run, daemon=True).start()
    try:
        run(arguments)
    finally:
        print("@" + json.dumps(capture.told()), flush=True)


class Capture:
    """A capture that counts the frames arriving at an interface, and stores the talk."""

    def __init__(self, interface: str) -> None:
        self._counts = Counter[str]()
        self._pieces: dict[bytes, dict[int, bytes]] = {}
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        self._socket.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
        with suppress(OSError):
            self._socket.setsockopt(socket.SOL_SOCKET, 33, BUFFER_NBYTES)  # SO_RCVBUFFORCE
        self._socket.bind((interface, ETH_P_ALL))

    def run(self) -> None:
        """Count frames until the process ends."""
        room = bytearray(1 << 16)
        while True:
            nbytes = self._socket.recv_into(room)
            self._look(memoryview(room)[:nbytes], nbytes)

    def told(self) -> dict[str, Any]:
        """Return the counts, and hashes of both directions of the talk."""
        lost = int.from_bytes(self._socket.getsockopt(SOL_PACKET, PACKET_STATISTICS, 8)[4:], sys.byteorder)
        self._counts["lost"] += lost
        whole = [b"".join(put_together(pieces)) for pieces in self._pieces.values()]
        return {"counts": self._counts, "talks": [hashlib.sha256(each).hexdigest() for each in whole]}

    def _look(self, frame: memoryview, nbytes: int) -> None:
        self._counts["bytes"] += nbytes
        if bytes(frame[12:14]) != b"\x08\x00":
            return
        tcp = 14 + 4 * (frame[14] & 15)
        length = 14 + int.from_bytes(frame[16:18], "big")
        payload = tcp + 4 * (frame[tcp + 12] >> 4)
        if frame[15] & 0xFC == MARK:
            self._counts["marked"] += nbytes
            self._counts["marked payload"] += length - payload
            self._counts["compressed"] += frame[23] == COMPRESSED
        elif frame[23] == socket.IPPROTO_TCP and length > payload:
            ports = bytes(frame[tcp : tcp + 4])
            if TALK_PORT.to_bytes(2, "big") in (ports[:2], ports[2:]):
                sequence = int.from_bytes(frame[tcp + 4 : tcp + 8], "big")
                self._pieces.setdefault(ports, {})[sequence] = bytes(frame[payload:length])


def put_together(pieces: dict[int, bytes]) -> list[bytes]:
    """Return the bytes of a stream without retransmissions, whose sequence numbers must not wrap around."""
    at, parts = min(pieces), []
    for sequence, piece in sorted(pieces.items()):
        parts.append(piece[at - sequence :] if sequence <= at else b"?")
        at = max(at, sequence + len(piece))
    return parts


if __name__ == "__main__":
    modes = {"host": host, "nic": nic}
    modes[sys.argv[1]](sys.argv[2:]) if sys.argv[1:2] and sys.argv[1] in modes else main()
