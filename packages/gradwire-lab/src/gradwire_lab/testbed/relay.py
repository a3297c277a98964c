"""The relay of a testbed: a program that delays the frames to hosts, and loses some, where netem is missing.

The relay reads the frames that a switch sends to a host at one interface, and writes each frame to the host's
link when the frame is due. The kernel passes TCP's packets as it would to a network card that cuts them into
frames (``PACKET_VNET_HDR``), so that one read carries up to 64 KiB.

Every timer and every system call costs more processor time than the Python code for a frame. While frames
wait, the relay therefore wakes up once per tick, not once per frame.
"""

from __future__ import annotations

import gc
import json
import os
import select
import socket
import struct
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict

from gradwire_lab.testbed.delay_line import DelayLine, Errors, RelayReport
from gradwire_lab.testbed.layout import relay_end
from gradwire_lab.testbed.topology import Topology, hardware_address, host_name

TICK_SHARE, LEAST_TICK_S, MOST_TICK_S = 0.02, 100e-6, 500e-6
"""The tick as a share of the delay, and the limits of the tick.

The tick is the time between two checks of the interfaces while frames wait. A delay is off by half a tick on
average. On two cores, a tick of 500 us instead of 250 us saves a fifth of the relay's processor time, and a
tick of 1 ms saves another sixth.
"""
LEAST_POLL_S = 1e-3
"""The shortest wait in which an arriving frame wakes the relay up; ``poll`` counts whole milliseconds."""
SAMPLED = 16
"""One frame in this many is read with the kernel's time stamp, to measure the error of its delay."""
FRAME_NBYTES = 1 << 17
BUFFER_NBYTES = 64 << 20
"""The buffer of an interface, for the frames that arrive while other processes keep the relay waiting."""


# The interfaces, as packet sockets with whole frames.

_SOL_PACKET = 263
_ADD_MEMBERSHIP, _STATISTICS, _VNET_HDR, _IGNORE_OUTGOING = 1, 6, 15, 23
_PROMISCUOUS = 1
_ETH_P_ALL = 3
_SO_SNDBUFFORCE, _SO_RCVBUFFORCE, _SO_TIMESTAMPNS = 32, 33, 35
_TIMESPEC = struct.Struct("=qq")
_VNET_NBYTES = 10
_SOURCE = slice(_VNET_NBYTES + 6, _VNET_NBYTES + 12)


def packet_socket(interface: str, *, reads: bool) -> socket.socket:
    """Return a socket that either reads the frames arriving at an interface, or sends frames."""
    made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    try:
        made.setsockopt(_SOL_PACKET, _VNET_HDR, 1)
        for usual, forced in ((socket.SO_RCVBUF, _SO_RCVBUFFORCE), (socket.SO_SNDBUF, _SO_SNDBUFFORCE)):
            made.setsockopt(socket.SOL_SOCKET, usual, BUFFER_NBYTES)
            with suppress(PermissionError):  # an ordinary user's buffers have the system's limit
                made.setsockopt(socket.SOL_SOCKET, forced, BUFFER_NBYTES)
        if reads:
            made.setsockopt(_SOL_PACKET, _IGNORE_OUTGOING, 1)
            made.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
            everything = struct.pack("=iHH8s", socket.if_nametoindex(interface), _PROMISCUOUS, 0, b"")
            made.setsockopt(_SOL_PACKET, _ADD_MEMBERSHIP, everything)
        made.bind((interface, _ETH_P_ALL if reads else 0))
        made.setblocking(False)
    except BaseException:
        made.close()
        raise
    return made


class Port:
    """The path to a host: a source of frames, a delay line, and its link. Its own broadcasts don't return."""

    def __init__(self, source: str, link: str, address: bytes, line: DelayLine) -> None:
        self._source, self._link = packet_socket(source, reads=True), packet_socket(link, reads=False)
        self._address, self._line = address, line
        self._read = 0
        self._is_held = False
        self.sent = self.nbytes = self.refused = self.overruns = 0

    def fileno(self) -> int:
        """Return the descriptor that is readable once frames have arrived."""
        return self._source.fileno()

    @property
    def lost(self) -> int:
        """The number of frames lost on purpose."""
        return self._line.lost

    def due(self) -> float:
        """Return the time at which the next frame is due; infinity if no frame waits."""
        return self._line.frames[0].due if self._line.frames else float("inf")

    def receive(self, buffer: bytearray, now: float) -> None:
        """Take all frames that have arrived; ``now`` is the estimated time of their arrival."""
        read, view, put = self._source.recv_into, memoryview(buffer), self._line.put
        with suppress(BlockingIOError):
            while True:
                stamp = None
                if self._read % SAMPLED:
                    size = read(buffer)
                else:
                    size, told, _, _ = self._source.recvmsg_into([buffer], 64)
                    if told:
                        seconds, ns = _TIMESPEC.unpack(told[0][2])
                        stamp = seconds + ns * 1e-9
                self._read += 1
                if buffer[_VNET_NBYTES] & 1 and buffer[_SOURCE] == self._address:
                    continue
                put(bytes(view[:size]), now, stamp)

    def send(self, until: float, errors: Errors) -> None:
        """Send the frames that are due by ``until``. Frames wait while the link's buffer is full."""
        frames, send = self._line.frames, self._link.send
        while frames and frames[0].due <= until:
            frame = frames[0]
            try:
                send(frame.data)
            except BlockingIOError:
                self._is_held = True
                return
            except OSError:
                self.refused += 1
            else:
                self.sent += 1
                self.nbytes += len(frame.data) - _VNET_NBYTES
                if frame.delay_s is not None and not self._is_held:
                    errors.add(time.time() - frame.arrived - frame.delay_s)
            frames.popleft()
        self._is_held = False

    def count_overruns(self) -> int:
        """Return the number of frames lost so far because they arrived faster than the relay read."""
        statistics = self._source.getsockopt(_SOL_PACKET, _STATISTICS, 8)  # since the last call
        self.overruns += struct.unpack("=II", statistics)[1]
        return self.overruns


class Relay:
    """All ports of a testbed, and the loop that serves them."""

    def __init__(self, ports: Sequence[Port], delay_s: float) -> None:
        self._ports = {port.fileno(): port for port in ports}
        self._tick_s = min(MOST_TICK_S, max(LEAST_TICK_S, TICK_SHARE * delay_s))
        self._errors = Errors()

    def run(self, end: int) -> RelayReport:
        """Forward frames until the other end of the pipe ``end`` is closed."""
        poll = select.poll()
        for descriptor in (*self._ports, end):
            poll.register(descriptor, select.POLLIN)
        began, processor_began = time.monotonic(), time.process_time()
        buffer, slept_s, wait_ms = bytearray(FRAME_NBYTES), 0.0, None
        while True:
            ready = [descriptor for descriptor, _ in poll.poll(wait_ms)]
            if end in ready:
                break
            now = time.monotonic()
            for descriptor in ready:  # the frames of a tick arrived in its middle, on average
                self._ports[descriptor].receive(buffer, now - slept_s / 2)
            for port in self._ports.values():
                port.send(now + self._tick_s / 2, self._errors)
            slept_s, wait_ms = self._rest()
        return self._report(time.monotonic() - began, time.process_time() - processor_began)

    def _rest(self) -> tuple[float, int | None]:
        """Sleep for a tick if a frame is due soon; return the time slept, and the limit of the next wait."""
        due = min(port.due() for port in self._ports.values())
        if due == float("inf"):
            return 0.0, None
        began = time.monotonic()
        if due - began >= LEAST_POLL_S:
            return 0.0, int((due - began) * 1e3)
        time.sleep(self._tick_s)
        return time.monotonic() - began, 0

    def _report(self, seconds: float, processor_s: float) -> RelayReport:
        ports = self._ports.values()
        return RelayReport(
            frames=sum(port.sent for port in ports),
            nbytes=sum(port.nbytes for port in ports),
            lost=sum(port.lost for port in ports),
            overruns=sum(port.count_overruns() for port in ports),
            refused=sum(port.refused for port in ports),
            seconds=seconds,
            processor_s=processor_s,
            error_median_s=self._errors.quantile_s(0.5),
            error_p99_s=self._errors.quantile_s(0.99),
        )


def take_precedence() -> None:
    """Give this process real-time priority, because a link doesn't wait for the hosts' programs.

    An ordinary user lacks this privilege; delays are then less exact on a busy machine.
    """
    with suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))


def open_ports(topology: Topology) -> list[Port]:
    """Open the interfaces of all hosts. Raises ``OSError``."""
    return [
        Port(
            relay_end(host),
            host_name(host),
            bytes.fromhex(hardware_address(host).replace(":", "")),
            DelayLine(topology.delay_s, topology.jitter_s, topology.loss, seed=host),
        )
        for host in range(topology.hosts)
    ]


def main(topology: Topology) -> None:
    """Relay frames until standard input closes, and report; the first line is "ready" or "failed"."""
    try:
        relay = Relay(open_ports(topology), topology.delay_s)
    except OSError as error:
        _tell({"failed": error.strerror or str(error)})
        return
    gc.disable()  # no reference cycles arise here, and a collection would stop all links
    take_precedence()
    _tell({"ready": True})
    report = relay.run(sys.stdin.fileno())
    with suppress(BrokenPipeError):
        _tell(asdict(report))


def _tell(words: dict[str, object]) -> None:
    sys.stdout.write(f"{json.dumps(words)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(Topology.from_json(sys.argv[1]))
