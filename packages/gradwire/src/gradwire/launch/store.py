"""torch's store with a timeout for every call. torch's own calls hang if the store's process is stopped.

The timeout of torch's ``Store.wait`` is not sufficient: when it expires, torch sends the server a
cancellation and waits for the answer. ``Store.check`` supports no timeout at all.
"""

from __future__ import annotations

import atexit
import os
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from time import monotonic, sleep
from typing import TypeVar

from torch._C._distributed_c10d import FileStore, HashStore, PrefixStore, Store, TCPStore

from gradwire.errors import LinkError, LinkTimeoutError
from gradwire.launch.addresses import with_port

# A call that may never return runs in a thread, which is abandoned after a timeout.
#
# Before the interpreter shuts down, the abandoned threads are woken: a thread that returns from torch's code
# during the shutdown would abort the process.

Answer = TypeVar("Answer")

_END_S = 0.5
_calls: dict[threading.Thread, int | None] = {}
"""The threads of calls in progress, each with the port of the process that must answer."""


def within(call: Callable[[], Answer], timeout_s: float, port: int | None = None) -> Answer:
    """Run ``call`` with a timeout, and return its result; ``port`` is the port of the peer that must answer.

    If ``call`` doesn't return in time, raises ``TimeoutError``, and the thread of ``call`` continues.
    """
    answer = Future[Answer]()

    def ask() -> None:
        try:
            answer.set_result(call())
        except BaseException as error:
            answer.set_exception(error)
        finally:
            _calls.pop(threading.current_thread(), None)

    thread = threading.Thread(target=ask, name="gradwire asks", daemon=True)
    _calls[thread] = port
    thread.start()
    if not wait([answer], timeout_s).done:
        raise TimeoutError(f"no answer within {timeout_s:g} s")
    return answer.result()


def _wake() -> None:
    """Before the interpreter shuts down, make threads that wait for an answer return from torch's code."""
    # not those that the system could not start
    left = {thread: port for thread, port in dict(_calls).items() if thread.is_alive()}
    join_all(left, _END_S)
    silent = {port for thread, port in left.items() if thread.is_alive() and port is not None}
    if silent:
        _shut_down(silent)
        join_all(left, _END_S)


def join_all(threads: Iterable[threading.Thread], timeout_s: float) -> None:
    """Wait up to ``timeout_s`` until all of ``threads`` have ended."""
    deadline = monotonic() + timeout_s
    for thread in threads:
        thread.join(max(0.0, deadline - monotonic()))


def _shut_down(ports: set[int]) -> None:
    """Shut down this process's connections to ``ports``, the ports of peers that have not answered."""
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError), socket.socket(fileno=os.dup(int(name))) as connection:
            peer = connection.getpeername()
            if isinstance(peer, tuple) and peer[1] in ports:  # a Unix socket's peer is a path
                connection.shutdown(socket.SHUT_RDWR)


atexit.register(_wake)
os.register_at_fork(after_in_child=_calls.clear)


_ADVICE = "restart the job if the store's process has ended, or restore the network to its host"
_PATIENCE_S = 1.0
"""The minimum timeout of a call in seconds, even for a call that starts just before its deadline."""
_FIRST_INTERVAL_S, _LONGEST_INTERVAL_S, _GROWTH = 0.001, 0.05, 1.5
_UNSET = "\0 unset"
"""The value with which ``compare_set`` answers for a key that is not set. No rank writes this value."""
_COMPARING = (TCPStore, HashStore, FileStore)
"""The stores whose ``compare_set`` answers both for keys that are set and for keys that are not."""
_FEW = 3
"""The most keys for which reading one by one takes no more round trips than reading them together."""


class StoreError(LinkError):
    """The error for a store that is gone. Callers don't extend the message, which is complete."""


class StoreTimeoutError(StoreError, LinkTimeoutError):
    """The error for a store that does not answer."""


class TimedStore:
    """A store whose calls each have a deadline, a time of ``time.monotonic``.

    Methods raise ``StoreTimeoutError`` if the store does not answer, and ``StoreError`` if the store is gone.
    Errors start with ``doing``, which names the caller and its purpose. ``host`` is the store's host, or ""
    if no host serves the store. ``answers`` says whether the store has answered every call so far.
    """

    def __init__(self, store: Store, doing: str) -> None:
        self._store, self._doing = store, doing
        self._port, self._place = server_of(store)
        base = innermost(store)
        self._compares = isinstance(base, _COMPARING)
        self.host = base.host if isinstance(base, TCPStore) else ""
        self.answers = True

    def set(self, key: str, value: str, deadline: float) -> None:
        """Set the store's ``key`` to ``value``."""
        self._call(lambda: self._store.set(key, value), key, deadline)

    def has(self, keys: Sequence[str], deadline: float) -> bool:
        """Return whether all of ``keys`` are set in the store."""
        return self._call(lambda: self._store.check(list(keys)), keys[0], deadline)

    def find(self, key: str, deadline: float) -> str | None:
        """Return the value of ``key``, or None if the key is not set, in one round trip if possible."""
        if self._compares:
            found = self._call(lambda: self._store.compare_set(key, _UNSET, _UNSET), key, deadline)
            return None if found == _UNSET.encode() else found.decode(errors="replace")
        if not self.has([key], deadline):
            return None
        return self._call(lambda: self._store.get(key), key, deadline).decode(errors="replace")

    def get(
        self, keys: Sequence[str], deadline: float, check: Callable[[], object] = lambda: None
    ) -> list[str]:
        """Wait until all of ``keys`` are set, as ``wait`` does, and return their values."""
        if len(keys) > _FEW and self._store.has_extended_api():  # type: ignore[attr-defined]  # not in PyTorch's stubs
            self.wait(keys, deadline, check)
            found = self._call(lambda: self._store.multi_get(list(keys)), keys[0], deadline)
            return [value.decode(errors="replace") for value in found]
        values: list[str] = []
        for _ in polls(deadline):
            while len(values) < len(keys) and (value := self.find(keys[len(values)], deadline)) is not None:
                values.append(value)
            if len(values) == len(keys):
                return values
            check()
        raise AssertionError("polls end with an error")

    def wait(self, keys: Sequence[str], deadline: float, check: Callable[[], object] = lambda: None) -> None:
        """Wait until all ``keys`` are set, calling ``check`` between polls. Raises ``TimeoutError``."""
        for _ in polls(deadline):
            if self.has(keys, deadline):
                return
            check()

    def _call(self, call: Callable[[], Answer], key: str, deadline: float) -> Answer:
        patience_s = max(deadline - monotonic(), _PATIENCE_S)
        try:
            if not self.answers:
                raise TimeoutError
            return within(call, patience_s, self._port)
        except TimeoutError as error:
            self.answers = False
            raise StoreTimeoutError(
                f"{self._doing}: {self._place} does not answer (asked for {key!r}, waited {patience_s:.3g} "
                f"s); {_ADVICE}"
            ) from error
        except RuntimeError as error:
            self.answers = False
            reason = str(error).partition("\n")[0].partition(". ")[0]
            raise StoreError(
                f"{self._doing}: {self._place} cannot be reached (asked for {key!r}: {reason}); {_ADVICE}"
            ) from error


def polls(deadline: float) -> Iterator[None]:
    """Yield once for each poll, at increasing intervals. Raises ``TimeoutError`` at the deadline.

    If a poll takes as long as the interval, the next poll follows at once.
    """
    interval = _FIRST_INTERVAL_S
    while True:
        began = monotonic()
        yield
        now = monotonic()
        if now >= deadline:
            raise TimeoutError
        sleep(max(0.0, min(began + interval, deadline) - now))
        interval = min(_GROWTH * interval, _LONGEST_INTERVAL_S)


def server_of(store: Store) -> tuple[int | None, str]:
    """Return the port of the process that serves ``store`` (None if unknown), and the store's name."""
    store = innermost(store)
    if isinstance(store, TCPStore):
        return store.port, f"torch's store at {with_port(store.host, store.port)}"
    return None, f"torch's store ({type(store).__name__})"


def innermost(store: Store) -> Store:
    """Return the store within a store with prefixes."""
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    return store
