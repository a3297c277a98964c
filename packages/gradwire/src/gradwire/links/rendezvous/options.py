"""The sockets of a link before they are connected: their mark, congestion control, and local address.

An accepted connection inherits the mark and the congestion control of the listening socket.
"""

from __future__ import annotations

import errno
import os
import select
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gradwire.errors import LinkError
from gradwire.launch.addresses import gloo_interfaces

CONGESTION = "GRADWIRE_TCP_CONGESTION"
_KERNEL = Path("/proc/sys/net/ipv4")


@dataclass(frozen=True)
class SocketOptions:
    """The options of a lane's sockets from the first packet on: type of service and congestion control.

    ``leaves_by`` is the local address of connections that this rank opens. 0 and "" leave the choice to the
    kernel.
    """

    tos: int = 0
    congestion: str = ""
    leaves_by: str = ""

    def listening_at(self, address: str, backlog: int) -> socket.socket:
        """Return a non-blocking socket that listens at a free port of ``address``. Raises ``OSError``."""
        listening = self._socket_at(address)
        try:
            listening.bind((address, 0))
            listening.listen(backlog)
            listening.setblocking(False)
        except BaseException:
            listening.close()
            raise
        return listening

    def connecting_to(self, address: str, port: int) -> socket.socket:
        """Return a socket that has begun to connect to ``address``. Raises ``OSError``."""
        connection = self._socket_at(address)
        try:
            if self.leaves_by and (":" in self.leaves_by) == (":" in address):
                connection.bind((self.leaves_by, 0))
            connection.setblocking(False)
            with suppress(BlockingIOError):
                connection.connect((address, port))
        except BaseException:
            connection.close()
            raise
        return connection

    def _socket_at(self, address: str) -> socket.socket:
        is_ipv6 = ":" in address
        made = socket.socket(socket.AF_INET6 if is_ipv6 else socket.AF_INET, socket.SOCK_STREAM)
        if is_ipv6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS, self.tos)
        else:
            made.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, self.tos)
        if self.congestion:
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, os.fsencode(self.congestion))
        return made


def connected(connection: socket.socket, timeout_s: float) -> socket.socket:
    """Wait until a socket of ``connecting_to`` is connected, set its timeout, and return it."""
    poll = select.poll()
    poll.register(connection, select.POLLOUT)
    if not poll.poll(1e3 * timeout_s):
        raise TimeoutError
    error = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if error:
        raise OSError(error, os.strerror(error))
    connection.settimeout(timeout_s)
    return connection


def congestion(environment: Mapping[str, str]) -> str:
    """Return the congestion control in the environment, or "". Raises ``LinkError`` if it is refused."""
    name = environment.get(CONGESTION, "")
    if name:
        try:
            with socket.socket() as trying:
                trying.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, os.fsencode(name))
        except OSError as error:
            raise LinkError(_refusal(name, error)) from error
    return name


def leaves_by(environment: Mapping[str, str], address: str) -> str:
    """Return ``address``, if the environment names several interfaces, or "" for the kernel's choice."""
    return address if len(gloo_interfaces(environment)) > 1 else ""


def _refusal(name: str, error: OSError) -> str:
    if error.errno == errno.EPERM:
        return (
            f"{CONGESTION}: expected a congestion control that this user may choose "
            f"({kernel_words('tcp_allowed_congestion_control')}), got {name!r}; choose one of these, or let "
            "root add it to net.ipv4.tcp_allowed_congestion_control"
        )
    return (
        f"{CONGESTION}: expected a congestion control of this kernel "
        f"({kernel_words('tcp_available_congestion_control')}), got {name!r}; choose one of these, or load "
        f"the kernel module of {name!r}"
    )


def kernel_words(name: str) -> str:
    """Return the words of a kernel setting below ``net.ipv4``, separated by spaces; "" if it is missing."""
    try:
        return " ".join((_KERNEL / name).read_text(encoding="ascii").split())
    except (OSError, UnicodeDecodeError):
        return ""
