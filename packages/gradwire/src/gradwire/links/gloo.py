"""Gloo's all-reduce between the ranks of a link, on connections that the first call opens.

If a peer ends before it has connected, Gloo waits for the whole timeout, and this wait can't be interrupted.
Therefore, Gloo's ranks connect through a store that watches the link's own connections, and waits in this
module check the link's connections regularly.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from math import inf
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store

from gradwire.errors import LinkError, LinkTimeoutError, no_progress
from gradwire.launch.addresses import gloo_interfaces
from gradwire.launch.store import TimedStore
from gradwire.links.base import OWN_END

_LOOK_UP_S = 0.1
_CONNECT_ATTEMPTS = 5
"""The number of attempts to connect to a peer that died after publishing its address."""


class Reduction:
    """A Gloo all-reduce in flight; its error messages start with ``what``."""

    def __init__(self, work: Any, what: str, timeout_s: float, ranks: GlooAllReduce) -> None:
        self._work, self._what, self._timeout_s, self._ranks = work, what, timeout_s, ranks

    @property
    def is_over(self) -> bool:
        """Whether the all-reduce has finished or failed."""
        return bool(self._work.is_completed())

    def _ends_soon(self) -> bool:
        with suppress(RuntimeError):  # the timeout of this wait; the last wait raises all other errors again
            self._work.wait(timedelta(seconds=_LOOK_UP_S))
        return self.is_over

    def wait(self, most_s: float = inf) -> None:
        """Wait up to ``most_s`` seconds for the sum, which replaces the tensor. Raises ``LinkError``."""
        until, ended, ranks = time.monotonic() + most_s, inf, self._ranks
        try:
            while not self._ends_soon():
                if ranks.closed:
                    raise LinkError(f"{self._what}: {OWN_END}")
                now = time.monotonic()
                # A peer may have received its sum, and leave, while this rank's sum is still incomplete. But
                # a peer that has failed keeps Gloo's connections open until its process ends.
                ended = min(ended, now + ranks.connect_s) if ranks.gone() else inf
                if now > ended:
                    raise LinkError(f"{self._what}{ranks.closed_peer()}: the sum is incomplete")
                if now > until:
                    raise LinkTimeoutError(
                        f"{self._what}: the sum is incomplete after {most_s:g} s; check that all ranks run, "
                        "or use a longer timeout_s"
                    )
            self._work.wait()
        except RuntimeError as error:
            raise ranks.failed(error, self._what, self._timeout_s) from error


class GlooAllReduce:
    """One rank's end of a link's Gloo all-reduces.

    The prefix ``all-reduce`` of ``store`` must be unused. ``names`` are the names of the ranks in errors.
    ``connect_s`` limits Gloo's connections once all ranks have arrived. ``gone`` returns the peers that have
    closed their links. Gloo listens at ``address``, unless ``GLOO_SOCKET_IFNAME`` names an interface. If
    ``address`` is empty, Gloo chooses.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        names: Sequence[str],
        connect_s: float,
        gone: Callable[[], list[int]],
        address: str = "",
    ) -> None:
        self._store, self._address = PrefixStore("all-reduce", store), address
        self._rank, self._names, self.connect_s, self.gone = rank, names, connect_s, gone
        self.closed = False
        self._group: dist.ProcessGroupGloo | None = None
        self._under_way: list[Reduction] = []
        self._has_summed = False

    @property
    def is_connected(self) -> bool:
        """Whether a call to ``sum`` has succeeded, so that ``begin`` may be called."""
        return self._group is not None and self._has_summed

    def sum(self, tensor: torch.Tensor, timeout_s: float) -> None:
        """Replace ``tensor`` with its sum over all ranks, and wait for it. Raises ``LinkError``."""
        what = self._what(tensor)
        try:
            if self._group is None:
                self._group = self._connect(what, timeout_s)
        except (RuntimeError, ValueError) as error:
            raise self.failed(error, what, timeout_s) from error
        self.begin(tensor, timeout_s).wait()
        self._has_summed = True

    def begin(self, tensor: torch.Tensor, timeout_s: float) -> Reduction:
        """Start to replace ``tensor`` with its sum. Raises ``LinkError``."""
        what, options = self._what(tensor), dist.AllreduceOptions()
        options.timeout = timedelta(seconds=timeout_s)  # the timeout of each of Gloo's messages
        group: Any = self._group  # torch's stub lacks the call
        if group is None:
            raise LinkError(f"{what}: {OWN_END}")
        try:
            work = group.allreduce([tensor], options)
        except (RuntimeError, ValueError) as error:
            raise self.failed(error, what, timeout_s) from error
        reduction = Reduction(work, what, timeout_s, self)
        self._under_way = [*(each for each in self._under_way if not each.is_over), reduction]
        if self.closed:
            _keep(group)
        return reduction

    def close(self) -> None:
        """Close Gloo's connections; waits in progress in other threads soon raise an error."""
        self.closed = True
        group, self._group = self._group, None
        if group is not None and not all(each.is_over for each in self._under_way):
            _keep(group)

    def failed(self, error: Exception, what: str, timeout_s: float) -> LinkError:
        """Return the ``LinkError`` for an error of Gloo, with the peer that has closed its link, if known."""
        return _translated(error, f"{what}{self.closed_peer()}", timeout_s)

    def closed_peer(self) -> str:
        """Return text that names a peer that has closed its link, or "": Gloo's errors name no rank."""
        until = time.monotonic() + _LOOK_UP_S
        while not (peers := self.gone()) and time.monotonic() < until:
            time.sleep(0.01)
        return f" ({self._names[peers[0]]} has closed its link)" if peers else ""

    def _what(self, tensor: torch.Tensor) -> str:
        own, ranks = self._names[self._rank], len(self._names)
        return f"{own} in Gloo's all-reduce of {tensor.numel()} values over {ranks} ranks"

    def _connect(self, what: str, timeout_s: float) -> dist.ProcessGroupGloo:
        def check() -> None:
            if self.closed:
                raise LinkError(f"{what}: {OWN_END}")
            for peer in self.gone():
                raise LinkError(f"{what}: {self._names[peer]} has closed its link")

        check()  # Gloo doesn't wait in the store if the keys of an earlier connection are set
        watched = _WatchedStore(TimedStore(self._store, what), time.monotonic() + timeout_s, check)
        try:
            gloo: Any = dist.ProcessGroupGloo  # torch's stub lacks the options
            options = gloo._Options()
            options._timeout = timedelta(seconds=self.connect_s / _CONNECT_ATTEMPTS)
            options._devices = self._devices()
            group: dist.ProcessGroupGloo = gloo(watched, self._rank, len(self._names), options)
            return group
        except LinkError:
            raise
        except TimeoutError as error:
            raise LinkTimeoutError(f"{what}: not all ranks joined: {no_progress(timeout_s)}") from error

    def _devices(self) -> list[Any]:
        """Return a Gloo device for each address at which Gloo listens."""
        device, named = dist.ProcessGroupGloo.create_device, gloo_interfaces(os.environ)
        if named:
            return [device(interface=name) for name in named]
        if self._address:
            return [device(hostname=self._address)]
        return [dist.ProcessGroupGloo.create_default_device()]


def _translated(error: Exception, what: str, timeout_s: float) -> LinkError:
    """Return the ``LinkError`` that corresponds to the text of an error of Gloo."""
    text = str(error).partition("] ")[2] or str(error)  # the text after Gloo's source line
    if "timed out" in text.lower() or "timeout" in text.lower():
        return LinkTimeoutError(f"{what}: {no_progress(timeout_s)}")
    return LinkError(f"{what}: {text.partition('. ')[0]}")


def _keep(group: dist.ProcessGroupGloo) -> None:
    """Keep a group with work in flight alive until the process ends: its destructor waits for the peers."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))


class _WatchedStore(Store):
    """The store through which Gloo's ranks connect; waits end at the deadline or with ``check``'s error."""

    def __init__(self, store: TimedStore, deadline: float, check: Callable[[], None]) -> None:
        super().__init__()
        self._store, self._deadline, self._check = store, deadline, check

    def set(self, key: str, value: Any) -> None:
        self._store.set(key, bytes(value).hex(), self._deadline)

    def get(self, key: str) -> bytes:
        return bytes.fromhex(self._store.get([key], self._deadline, self._check)[0])

    def wait(self, keys: Any, timeout: timedelta | None = None) -> None:  # noqa: ARG002 - has a deadline
        self._store.wait(keys, self._deadline, self._check)
