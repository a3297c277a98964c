"""Network namespaces of this process; Python itself has these calls only from version 3.12 on."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

_CLONE_NEWNET = 0x40000000
_PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_RAISE = 2
_PR_CAP_AMBIENT_CLEAR_ALL = 4
CAP_NET_ADMIN, CAP_NET_RAW = 12, 13
_LIBC = ctypes.CDLL(None, use_errno=True)


def own_namespace() -> int:
    """Return a descriptor of this thread's network namespace, which keeps the namespace alive."""
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def new_namespace() -> int:
    """Return a descriptor of a new network namespace; this thread stays where it is. Raises ``OSError``."""
    with _returning():
        _check(_LIBC.unshare(_CLONE_NEWNET))
        return own_namespace()


@contextmanager
def inside(namespace: int) -> Iterator[None]:
    """Move this thread, and the processes that it starts, to a namespace for the ``with`` block."""
    with _returning():
        _check(_LIBC.setns(namespace, _CLONE_NEWNET))
        yield


@contextmanager
def lending(*capabilities: int) -> Iterator[None]:
    """Let programs that are started in the ``with`` block inherit these capabilities of an ordinary user.

    Root's programs have them in any case.
    """
    for capability in capabilities:
        _LIBC.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, capability, 0, 0)
    try:
        yield
    finally:
        forget_ambient_capabilities()


def forget_ambient_capabilities() -> None:
    """Stop programs that this process starts from inheriting its capabilities."""
    _check(_LIBC.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0))


@contextmanager
def _returning() -> Iterator[None]:
    home = own_namespace()
    try:
        yield
    finally:
        _check(_LIBC.setns(home, _CLONE_NEWNET))
        os.close(home)


def _check(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
