"""Packet sockets: all frames of an interface, in both directions, whoever they are for."""

from __future__ import annotations

import fcntl
import socket
import struct
from contextlib import suppress

from gradwire.errors import NicError

_SOL_PACKET = 263
_ADD_MEMBERSHIP, _STATISTICS, _AUXDATA, _VNET_HDR, _IGNORE_OUTGOING = 1, 6, 8, 15, 23
_PROMISCUOUS = 1
_ETH_P_ALL = 3
_ETHERNET = 1
_SIOCGIFMTU, _SIOCGIFHWADDR = 0x8921, 0x8927
_SO_RCVBUFFORCE = 33
_RECEIVE_BUFFER_NBYTES = 64 << 20
"""For what the host's sockets may send before an acknowledgement comes back; used only when needed."""


class Port:
    """An Ethernet interface whose frames a NIC forwards. The caller's network namespace is that of the port.

    Raises
    ------
    NicError
        If there is no such interface, it isn't Ethernet, or this process may not read frames.
    """

    def __init__(self, interface: str) -> None:
        self.interface = interface
        self._overruns = 0
        try:
            self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        except PermissionError as error:
            raise NicError(
                "a NIC reads and writes the frames of interfaces, which this process may not; "
                "run it as root, or with CAP_NET_RAW"
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
            raise NicError(f"no interface is named {self.interface!r}; there are {names}") from error
        kind = struct.unpack_from("=H", self._ask(_SIOCGIFHWADDR), 16)[0]
        if kind != _ETHERNET:
            raise NicError(f"a NIC needs two Ethernet interfaces, but {self.interface!r} is of another kind")
        self.mtu_nbytes: int = struct.unpack_from("=i", self._ask(_SIOCGIFMTU), 16)[0]
        for option in (_IGNORE_OUTGOING, _AUXDATA, _VNET_HDR):
            self._socket.setsockopt(_SOL_PACKET, option, 1)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER_NBYTES)
        with suppress(PermissionError):  # the machine's limit for others than CAP_NET_ADMIN
            self._socket.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _RECEIVE_BUFFER_NBYTES)
        everything = struct.pack("=iHH8s", self._index, _PROMISCUOUS, 0, b"")
        self._socket.setsockopt(_SOL_PACKET, _ADD_MEMBERSHIP, everything)
        self._socket.bind((self.interface, _ETH_P_ALL))

    def fileno(self) -> int:
        """Return the descriptor of the packet socket."""
        return self._socket.fileno()

    def overruns(self) -> int:
        """Return how many frames got lost so far because they came faster than they were read."""
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
