"""Two hosts, a and b, with a NIC each, in the namespaces of a private area (``support.nic_area``)."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import numpy as np
import numpy.typing as npt

from gradwire._native import _core
from gradwire_gateware.software_nic import Nic, Settings
from gradwire_lab.testbed.namespaces import inside, new_namespace
from gradwire_lab.testbed.tools import find_tool

Floats = npt.NDArray[np.float32]
ADDRESS = {"a": "10.9.0.1", "b": "10.9.0.2"}
SPEC = "inceptionn:2^-10"
TIMEOUT_S = 30.0


class Bed:
    """The network of two hosts. Side "a" may have no place for a NIC."""

    def __init__(self, mtu: int = 1500, *, nic_at_a: bool = True, rate: str = "") -> None:
        self.host = {"a": new_namespace(), "b": new_namespace()}
        self.place = {"b": new_namespace()} | ({"a": new_namespace()} if nic_at_a else {})
        self.cards: dict[str, Nic] = {}
        self._port = 5000
        near, end = (self.place["a"], "link") if nic_at_a else (self.host["a"], "eth0")
        ip(
            near,
            f"link add name {end} mtu {mtu} type veth peer name link mtu {mtu} netns {at(self.place['b'])}",
        )
        for side, place in self.place.items():
            far = at(self.host[side])
            ip(place, f"link add name host mtu {mtu} type veth peer name eth0 mtu {mtu} netns {far}")
            ip(place, *(f"link set dev {name} addrgenmode none up" for name in ("host", "link")))
        for side, host in self.host.items():
            ip(host, "link set dev lo up", f"address add {ADDRESS[side]}/24 dev eth0")
            ip(host, "link set dev eth0 addrgenmode none up")
        for place in self.place.values() if rate else ():
            limit = f"qdisc add dev link root tbf rate {rate} burst 4kb limit 20mb"
            with inside(place):
                subprocess.run([find_tool("tc"), *limit.split()], check=True, timeout=20)

    def start(self, side: str, spec: str = SPEC, **settings: float) -> Nic:
        with inside(self.place[side]):
            self.cards[side] = Nic("host", "link", Settings(spec, **settings))  # type: ignore[arg-type]
        return self.cards[side]

    def start_both(self, spec: str = SPEC, **settings: float) -> tuple[Nic, Nic]:
        return self.start("a", spec, **settings), self.start("b", spec, **settings)

    def close(self) -> None:
        for card in self.cards.values():
            card.close()
        for namespace in (*self.host.values(), *self.place.values()):
            os.close(namespace)

    @contextmanager
    def connection(
        self, tos: int = 0x28, answer_tos: int | None = None
    ) -> Iterator[tuple[socket.socket, socket.socket]]:
        """Yield the sockets of a connection from a to b."""
        self._port += 1
        with ExitStack() as stack:
            with inside(self.host["b"]):
                server = stack.enter_context(socket.socket())
            server.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, tos if answer_tos is None else answer_tos)
            server.bind((ADDRESS["b"], self._port))
            server.listen()
            with inside(self.host["a"]):
                client = stack.enter_context(socket.socket())
            client.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, tos)
            client.settimeout(TIMEOUT_S)
            client.connect((ADDRESS["b"], self._port))
            accepted = stack.enter_context(server.accept()[0])
            for each in (client, accepted):
                each.settimeout(TIMEOUT_S)
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            yield client, accepted


@contextmanager
def bed(mtu: int = 1500, *, nic_at_a: bool = True, rate: str = "") -> Iterator[Bed]:
    made = Bed(mtu, nic_at_a=nic_at_a, rate=rate)
    try:
        yield made
    finally:
        made.close()


def transfer(
    sender: socket.socket,
    receiver: socket.socket,
    data: bytes,
    cuts: Sequence[int] = (),
    meanwhile: Callable[[], None] | None = None,
) -> bytes:
    """Send the data, in writes of these sizes and then in one, and return what arrives."""

    def send() -> None:
        begin = 0
        for size in cuts:
            sender.sendall(data[begin : begin + size])
            begin += size
        sender.sendall(data[begin:])

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    received, acts = bytearray(), [meanwhile] if meanwhile is not None else []
    while len(received) < len(data):
        part = receiver.recv(1 << 20)
        assert part, f"the stream ended after {len(received)} of {len(data)} bytes"
        received += part
        if acts and len(received) > len(data) // 4:
            acts.pop()()
    thread.join(TIMEOUT_S)
    return bytes(received)


def gradients(n: int, seed: int = 1, scale: float = 2e-3) -> Floats:
    return np.random.default_rng(seed).laplace(0, scale, n).astype(np.float32)


def projected(x: Floats, spec: str = SPEC) -> Floats:
    """Return what the codec makes of the values."""
    name, a, b, _ = Settings(spec).kernel
    x, out = np.ascontiguousarray(x), np.empty_like(x)
    payload = np.empty(_core.max_nbytes(name, x.size, a, b, 0), np.uint8)
    used = _core.encode(name, x.ctypes.data, x.size, payload.ctypes.data, a, b, 0, 1)
    assert _core.decode(name, payload.ctypes.data, used, out.ctypes.data, x.size, a, b, 0, False, 1) is None
    return out


def payload_nbytes(x: Floats, spec: str = SPEC) -> int:
    """Return the size of the codec's payload."""
    name, a, b, _ = Settings(spec).kernel
    payload = np.empty(_core.max_nbytes(name, x.size, a, b, 0), np.uint8)
    return _core.encode(name, x.ctypes.data, x.size, payload.ctypes.data, a, b, 0, 1)


def at(namespace: int) -> str:
    return f"/proc/{os.getpid()}/fd/{namespace}"


def ip(namespace: int, *lines: str) -> None:
    with inside(namespace):
        subprocess.run(
            [find_tool("ip"), "-batch", "-"], input="\n".join(lines), text=True, check=True, timeout=20
        )


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)
