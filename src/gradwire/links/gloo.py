"""Gloo's all-reduce between the ranks of a link, on connections that are made when it is first called.

Gloo itself waits for a whole timeout where a peer is gone before it has connected, and whoever waits for it
cannot be interrupted. So its ranks connect through a store that watches the link's own connections, and a
wait here looks up now and then.

Gloo's errors are texts. ``_translated`` reads them; it is the only place that reads another's errors.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from math import inf
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store

from gradwire.errors import LinkError, LinkTimeoutError
from gradwire.launch.store import TimedStore
from gradwire.links.base import OWN_END

_LOOK_UP_S = 0.1
_CONNECT_ATTEMPTS = 5
"""How often Gloo tries to reach a peer that has died after it gave its address, a whole timeout each time."""


class Reduction:
    """An all-reduce under way."""

    def __init__(
        self,
        work: Any,
        what: str,
        timeout_s: float,
        gone: Callable[[], Sequence[int]],
        members: GlooAllReduce,
    ) -> None:
        self._work, self._what, self._timeout_s, self._gone = work, what, timeout_s, gone
        self._members = members

    @property
    def is_over(self) -> bool:
        """Whether it has ended, or failed."""
        over: bool = self._work.is_completed()
        return over

    def _ends_soon(self) -> bool:
        with suppress(RuntimeError):  # told by another wait if it is more than that the time is over
            self._work.wait(timedelta(seconds=_LOOK_UP_S))
        return self.is_over

    def wait(self, most_s: float = inf) -> None:
        """Return when the tensor is the sum, for which it waits so long at most. Raises ``LinkError``."""
        until, ended = time.monotonic() + most_s, inf
        try:
            while not self._ends_soon():
                if self._members.closed:
                    raise LinkError(f"{self._what}: {OWN_END}")
                now = time.monotonic()
                # A peer may have its sum, and leave, while the rest of this one is still on its way. But one
                # that has failed keeps Gloo's connections until its process ends.
                ended = min(ended, now + self._members.connect_s) if self._gone() else inf
                if now > ended:
                    raise LinkError(f"{self._what}{self._members.closed_peer(self._gone)}: it did not end")
                if now > until:
                    raise LinkTimeoutError(f"{self._what}: it did not end within {most_s:g} s")
            self._work.wait()
        except RuntimeError as error:
            raise self._members.told(error, self._what, self._timeout_s, self._gone) from error


class GlooAllReduce:
    """One rank's part in Gloo's all-reduces of one link.

    The link's ranks share the store, and put nothing else there that is called ``all-reduce``; ``names`` are
    what errors call them. Gloo may take ``connect_s`` to connect once all have come.
    """

    def __init__(self, store: Store, rank: int, names: Sequence[str], connect_s: float) -> None:
        self._store = PrefixStore("all-reduce", store)
        self._rank, self._names, self.connect_s = rank, names, connect_s
        self.closed = False
        self._group: dist.ProcessGroupGloo | None = None
        self._under_way: list[Reduction] = []
        self._has_summed = False

    @property
    def is_connected(self) -> bool:
        """Whether ``begin`` may be called, since a call of ``sum`` has ended."""
        return self._group is not None and self._has_summed

    def sum(self, tensor: torch.Tensor, timeout_s: float, gone: Callable[[], Sequence[int]]) -> None:
        """Replace ``tensor`` by its sum over all ranks, who come within the timeout.

        ``gone`` returns the peers that have closed their links. Raises ``LinkError``.
        """
        what = self._what(tensor)
        try:
            if self._group is None:
                self._group = self._connect(what, timeout_s, gone)
        except (RuntimeError, ValueError) as error:
            raise self.told(error, what, timeout_s, gone) from error
        self.begin(tensor, timeout_s, gone).wait()
        self._has_summed = True

    def begin(self, tensor: torch.Tensor, timeout_s: float, gone: Callable[[], Sequence[int]]) -> Reduction:
        """Begin to replace ``tensor`` by its sum. Raises ``LinkError``."""
        what, options = self._what(tensor), dist.AllreduceOptions()
        options.timeout = timedelta(seconds=timeout_s)  # for each of Gloo's messages
        group: Any = self._group  # torch's stub leaves the call out
        if group is None:
            raise LinkError(f"{what}: {OWN_END}")
        try:
            work = group.allreduce([tensor], options)
        except (RuntimeError, ValueError) as error:
            raise self.told(error, what, timeout_s, gone) from error
        reduction = Reduction(work, what, timeout_s, gone, self)
        self._under_way = [*(each for each in self._under_way if not each.is_over), reduction]
        if self.closed:
            _keep(group)
        return reduction

    def close(self) -> None:
        """Close Gloo's connections; a wait on another thread ends with an error soon."""
        self.closed = True
        group, self._group = self._group, None
        if group is not None and not all(each.is_over for each in self._under_way):
            _keep(group)

    def told(
        self, error: Exception, what: str, timeout_s: float, gone: Callable[[], Sequence[int]]
    ) -> LinkError:
        """Return what Gloo's error says, and who is gone, as far as that is known."""
        return _translated(error, f"{what}{self.closed_peer(gone)}", timeout_s)

    def _what(self, tensor: torch.Tensor) -> str:
        own, ranks = self._names[self._rank], len(self._names)
        return f"{own} in Gloo's all-reduce of {tensor.numel()} values over {ranks} ranks"

    def _connect(
        self, what: str, timeout_s: float, gone: Callable[[], Sequence[int]]
    ) -> dist.ProcessGroupGloo:
        def check() -> None:
            if self.closed:
                raise LinkError(f"{what}: {OWN_END}")
            for peer in gone():
                raise LinkError(f"{what}: {self._names[peer]} has closed its link")

        watched = _WatchedStore(TimedStore(self._store, what), time.monotonic() + timeout_s, check)
        try:
            limit = timedelta(seconds=self.connect_s / _CONNECT_ATTEMPTS)
            return dist.ProcessGroupGloo(watched, self._rank, len(self._names), limit)
        except LinkError:
            raise
        except TimeoutError as error:
            raise LinkTimeoutError(f"{what}: not all ranks came to it within {timeout_s:g} s") from error

    def closed_peer(self, gone: Callable[[], Sequence[int]]) -> str:
        """Return who has closed its link, as far as that is known soon: Gloo tells no rank."""
        until = time.monotonic() + _LOOK_UP_S
        while not (peers := gone()) and time.monotonic() < until:
            time.sleep(0.01)
        return f" ({self._names[peers[0]]} has closed its link)" if peers else ""


def _keep(group: dist.ProcessGroupGloo) -> None:
    """Never let a group end that is at work: its end would wait for the peers."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))


class _WatchedStore(Store):
    """What Gloo's ranks connect through: waits end with ``check``'s error, or at the deadline."""

    def __init__(self, store: TimedStore, deadline: float, check: Callable[[], None]) -> None:
        super().__init__()
        self._store, self._deadline, self._check = store, deadline, check

    def set(self, key: str, value: Any) -> None:
        self._store.set(key, bytes(value).hex(), self._deadline)

    def get(self, key: str) -> bytes:
        self.wait([key])
        return bytes.fromhex(self._store.get(key, self._deadline))

    def wait(self, keys: Any, timeout: timedelta | None = None) -> None:  # noqa: ARG002 - it has its own
        self._store.wait(keys, self._deadline, self._check)


def _translated(error: Exception, what: str, timeout_s: float) -> LinkError:
    # behind the place in the source that Gloo puts in front
    text = str(error).partition("] ")[2] or str(error)
    if "timed out" in text.lower() or "timeout" in text.lower():
        return LinkTimeoutError(f"{what}: nothing happened within {timeout_s:g} s")
    return LinkError(f"{what}: {text.partition('. ')[0]}")
