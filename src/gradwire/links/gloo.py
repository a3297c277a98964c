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


class GlooAllReduce:
    """One rank's part in Gloo's all-reduces of one link.

    The link's ranks share the store, and put nothing else there that is called ``all-reduce``; ``names`` are
    what errors call them. Gloo may take ``connect_s`` to connect once all have come.
    """

    def __init__(self, store: Store, rank: int, names: Sequence[str], connect_s: float) -> None:
        self._store = PrefixStore("all-reduce", store)
        self._rank, self._names, self._connect_s = rank, names, connect_s
        self._closed = False
        self._group: dist.ProcessGroupGloo | None = None

    def sum(self, tensor: torch.Tensor, timeout_s: float, gone: Callable[[], Sequence[int]]) -> None:
        """Replace ``tensor`` by its sum over all ranks, who come within the timeout.

        ``gone`` returns the peers that have closed their links. Raises ``LinkError``.
        """
        what = (
            f"{self._names[self._rank]} in Gloo's all-reduce of {tensor.numel()} values over "
            f"{len(self._names)} ranks"
        )
        try:
            if self._group is None:
                self._group = self._connect(what, timeout_s, gone)
            options = dist.AllreduceOptions()
            options.timeout = timedelta(seconds=timeout_s)  # for each of Gloo's messages
            group: Any = self._group  # torch's stub leaves the call out
            self._wait(group, group.allreduce([tensor], options), what)
        except (RuntimeError, ValueError) as error:
            raise _translated(error, f"{what}{self._closed_peer(gone)}", timeout_s) from error

    def close(self) -> None:
        """Close Gloo's connections; a call of ``sum`` on another thread ends with an error soon."""
        self._closed, self._group = True, None

    def _connect(
        self, what: str, timeout_s: float, gone: Callable[[], Sequence[int]]
    ) -> dist.ProcessGroupGloo:
        def check() -> None:
            if self._closed:
                raise LinkError(f"{what}: {OWN_END}")
            for peer in gone():
                raise LinkError(f"{what}: {self._names[peer]} has closed its link")

        watched = _WatchedStore(TimedStore(self._store, what), time.monotonic() + timeout_s, check)
        try:
            limit = timedelta(seconds=self._connect_s / _CONNECT_ATTEMPTS)
            return dist.ProcessGroupGloo(watched, self._rank, len(self._names), limit)
        except LinkError:
            raise
        except TimeoutError as error:
            raise LinkTimeoutError(f"{what}: not all ranks came to it within {timeout_s:g} s") from error

    def _wait(self, group: Any, work: Any, what: str) -> None:
        while not work.is_completed():
            if self._closed:
                # Its end would wait for the peers.
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))
                raise LinkError(f"{what}: {OWN_END}")
            with suppress(RuntimeError):  # told below if it is more than that the time is over
                work.wait(timedelta(seconds=_LOOK_UP_S))
        work.wait()

    def _closed_peer(self, gone: Callable[[], Sequence[int]]) -> str:
        """Return who has closed its link, as far as that is known soon: Gloo tells no rank."""
        until = time.monotonic() + _LOOK_UP_S
        while not (peers := gone()) and time.monotonic() < until:
            time.sleep(0.01)
        return f" ({self._names[peers[0]]} has closed its link)" if peers else ""


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
