"""``Nic``: its two interfaces, the threads between them, and their counters."""

from __future__ import annotations

import fcntl
import socket
import struct
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gradwire._native import _core
from gradwire.codecs import Codec, parse
from gradwire.codecs.native import NativeCodec
from gradwire.codecs.wrappers import offloadable
from gradwire.errors import NicError, SpecError
from gradwire.wire import TOS

if TYPE_CHECKING:
    from typing_extensions import Self

# Packet sockets: all frames of an interface, in both directions, with any destination.

_SOL_PACKET = 263
_ADD_MEMBERSHIP, _STATISTICS, _AUXDATA, _VNET_HDR, _IGNORE_OUTGOING = 1, 6, 8, 15, 23
_PROMISCUOUS = 1
_ETH_P_ALL = 3
_ETHERNET = 1
_SIOCGIFMTU, _SIOCGIFHWADDR = 0x8921, 0x8927
_SO_RCVBUFFORCE = 33
_RECEIVE_BUFFER_NBYTES = 64 << 20
"""The size of the receive buffer: what the host's sockets may send before an acknowledgement."""


class EthernetPort:
    """An Ethernet interface of the caller's network namespace, whose frames a NIC forwards.

    Raises
    ------
    NicError
        If the interface doesn't exist or isn't Ethernet, or this process may not read frames.
    """

    def __init__(self, interface: str) -> None:
        self.interface = interface
        self._overruns = 0
        try:
            self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        except PermissionError as error:
            raise NicError(
                "expected permission to read and write frames of interfaces, got none; run gradwire nic "
                "as root, or with CAP_NET_RAW"
            ) from error
        try:
            self._open()
        except BaseException:
            self._socket.close()
            raise

    def _open(self) -> None:
        try:
            self._index = socket.if_nametoindex(self.interface)
        except OSError as error:
            names = ", ".join(name for _, name in socket.if_nameindex())
            raise NicError(
                f"expected one of the interfaces {names}, got {self.interface!r}; choose one"
            ) from error
        kind = struct.unpack_from("=H", self._ask(_SIOCGIFHWADDR), 16)[0]
        if kind != _ETHERNET:
            raise NicError(f"expected an Ethernet interface, got {self.interface!r}; pass another interface")
        self.mtu_nbytes: int = struct.unpack_from("=i", self._ask(_SIOCGIFMTU), 16)[0]
        for option in (_IGNORE_OUTGOING, _AUXDATA, _VNET_HDR):
            self._socket.setsockopt(_SOL_PACKET, option, 1)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER_NBYTES)
        with suppress(PermissionError):  # without CAP_NET_ADMIN, the system's limit applies
            self._socket.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _RECEIVE_BUFFER_NBYTES)
        everything = struct.pack("=iHH8s", self._index, _PROMISCUOUS, 0, b"")
        self._socket.setsockopt(_SOL_PACKET, _ADD_MEMBERSHIP, everything)
        self._socket.bind((self.interface, _ETH_P_ALL))

    def fileno(self) -> int:
        """Return the descriptor of the packet socket."""
        return self._socket.fileno()

    def overruns(self) -> int:
        """Return the number of frames lost so far because they arrived faster than the NIC read them."""
        statistics = self._socket.getsockopt(_SOL_PACKET, _STATISTICS, 8)  # since the last call
        self._overruns += struct.unpack("=II", statistics)[1]
        return self._overruns

    def is_there(self) -> bool:
        """Return whether the interface still exists."""
        try:
            return socket.if_nametoindex(self.interface) == self._index
        except OSError:
            return False

    def close(self) -> None:
        """Close the socket, which also ends the interface's promiscuous mode."""
        self._socket.close()

    def _ask(self, question: int) -> bytes:
        name = struct.pack("=16s24x", self.interface.encode())
        return fcntl.ioctl(self._socket, question, name)


# The settings of a NIC: its compression, and the faults that it injects.

_DSCP = 0xFC


@dataclass(frozen=True, slots=True)
class Settings:
    """The codec and the type of service of marked streams, and the faults injected towards the link.

    Parameters
    ----------
    codec
        A codec whose ``is_offloadable`` is true, or its spec.
    tos
        The type of service of marked packets. Its two lowest bits, which routers change, are ignored.
    merge
        Whether one compressed packet may carry several segments. Both NICs need the same setting.
    drop
        The share of frames to drop.
    reorder
        The share of frames to delay by 2 ms, so that later frames overtake them.
    delay_s
        The delay of every frame in seconds.
    seed
        The seed of the random choice of frames.

    Raises
    ------
    SpecError
        For a codec that a NIC can't apply, and for a number out of range.
    """

    codec: Codec | str
    tos: int = TOS
    merge: bool = True
    drop: float = 0.0
    reorder: float = 0.0
    delay_s: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        check_offloadable(self.codec)
        if not (0 <= self.tos <= 0xFF and self.tos & _DSCP):
            raise SpecError(
                f"expected a type of service from 0x04 to 0xff to mark streams, got {self.tos:#x}; pass "
                "e.g. 0x28"
            )
        for name, share in (("drop", self.drop), ("reorder", self.reorder)):
            if not 0 <= share < 1:
                raise SpecError(
                    f"expected a share of frames to {name} of at least 0 and below 1, got {share:g}; pass "
                    "e.g. 0.01"
                )
        if not 0 <= self.delay_s <= 10:
            raise SpecError(f"expected a frame delay of 0 to 10 s, got {self.delay_s:g} s; pass e.g. 0.001")
        if not 0 <= self.seed < 1 << 64:
            raise SpecError(f"expected a seed of at least 0 and below 2^64, got {self.seed}; pass e.g. 0")

    @property
    def kernel(self) -> tuple[str, int, int, int]:
        """The compiled format, its two parameters, and the codec's wire id: arguments of ``_core.Nic``."""
        codec = check_offloadable(self.codec)
        name, params = codec.compiled
        first, second = (*params, 0)[:2]
        return name, first, second, codec.wire_id


def check_offloadable(codec: Codec | str) -> NativeCodec:
    """Return the codec. Raises ``SpecError`` if NICs can't apply it."""
    return offloadable(parse(codec) if isinstance(codec, str) else codec)


Counts = dict[str, dict[str, int]]
"""The value of each counter, by direction (``to_link``, ``to_host``) and name."""


class Nic:
    """A bump-in-the-wire NIC between a host and its link, which forwards frames until it is closed.

    The interfaces belong to the caller's network namespace and need no addresses. Closing the NIC restores
    the interfaces.

    Parameters
    ----------
    host
        The interface on the host's side, such as the other end of the host's veth pair.
    link
        The interface on the link's side.

    Raises
    ------
    NicError
        If an interface can't be opened, or their MTUs differ.
    """

    def __init__(self, host: str, link: str, settings: Settings) -> None:
        if host == link:
            raise NicError(
                f"expected two different interfaces, got {host!r} twice; pass the host's and the link's"
            )
        with ExitStack() as stack:
            self._host = stack.enter_context(closing(EthernetPort(host)))
            self._link = stack.enter_context(closing(EthernetPort(link)))
            if self._host.mtu_nbytes != self._link.mtu_nbytes:
                raise NicError(
                    f"expected two interfaces of the same MTU, got {self._host.mtu_nbytes} for {host!r} "
                    f"and {self._link.mtu_nbytes} for {link!r}; change one with 'ip link set mtu'"
                )
            self._native = _core.Nic(
                self._host.fileno(),
                self._link.fileno(),
                *settings.kernel,
                settings.tos,
                settings.merge,
                settings.drop,
                settings.reorder,
                settings.delay_s,
                settings.seed,
            )
            stack.callback(self._native.stop)  # before the sockets are closed
            self._stack = stack.pop_all()
        self._last: Counts | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop forwarding. Repeated calls are allowed."""
        if self._last is None:
            self._native.stop()
            self._last = self._read()
        self._stack.close()

    def counts(self) -> Counts:
        """Return the counters so far, or the final counters after ``close``."""
        return self._read() if self._last is None else self._last

    def check(self) -> None:
        """Raise ``NicError`` if an interface no longer exists."""
        for port in (self._host, self._link):
            if not port.is_there():
                raise NicError(
                    f"the interface {port.interface!r} of the NIC no longer exists; create the interface, "
                    "and restart the NIC"
                )

    def _read(self) -> Counts:
        names = _core.nic_count_names()
        ways = (("to_link", True, self._host), ("to_host", False, self._link))
        return {
            way: {**dict(zip(names, self._native.counts(to_link), strict=True)), "overruns": port.overruns()}
            for way, to_link, port in ways
        }
