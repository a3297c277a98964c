"""``Nic``: the two interfaces, the threads between them, and what they counted."""

from __future__ import annotations

from contextlib import ExitStack, closing
from typing import Self

from gradwire._native import _core
from gradwire.errors import NicError
from gradwire.nic.port import Port
from gradwire.nic.settings import Settings

Counts = dict[str, dict[str, int]]
"""Direction (``to_link``, ``to_host``) -> what was counted -> how often."""


class Nic:
    """A bump in the wire between a host and its link; it forwards frames until it is closed.

    The interfaces are those of the caller's network namespace, and need no addresses. Closing leaves them as
    they were.

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
            raise NicError(f"a NIC stands between two interfaces, but both sides are {host!r}; name another")
        with ExitStack() as stack:
            self._host = stack.enter_context(closing(Port(host)))
            self._link = stack.enter_context(closing(Port(link)))
            if self._host.mtu_nbytes != self._link.mtu_nbytes:
                raise NicError(
                    f"both sides of a NIC need the same MTU, but that of {host!r} is {self._host.mtu_nbytes} "
                    f"and that of {link!r} is {self._link.mtu_nbytes}; set one with 'ip link set mtu'"
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
        """Stop forwarding. You can call this again."""
        if self._last is None:
            self._native.stop()
            self._last = self._read()
        self._stack.close()

    def counts(self) -> Counts:
        """Return what was counted so far, also after the end."""
        return self._read() if self._last is None else self._last

    def check(self) -> None:
        """Raise ``NicError`` if one of the interfaces is gone."""
        for port in (self._host, self._link):
            if not port.is_there():
                raise NicError(
                    f"the interface {port.interface!r} of the NIC is gone; make it, and start again"
                )

    def _read(self) -> Counts:
        names = _core.nic_count_names()
        ways = (("to_link", True, self._host), ("to_host", False, self._link))
        return {
            way: {**dict(zip(names, self._native.counts(to_link), strict=True)), "overruns": port.overruns()}
            for way, to_link, port in ways
        }
