"""A thread goes to another network and comes back, whatever happens there."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator

import pytest

from gradwire_lab.testbed.namespaces import inside, new_namespace, own_namespace


def here() -> int:
    """Return what tells this thread's network from others."""
    return os.stat("/proc/thread-self/ns/net").st_ino


@pytest.fixture
def namespace() -> Iterator[int]:
    try:
        descriptor = new_namespace()
    except PermissionError:
        pytest.skip("wants the right to make network namespaces")
    yield descriptor
    os.close(descriptor)


def test_a_new_network_is_another_one_and_this_thread_stays(namespace: int) -> None:
    assert os.fstat(namespace).st_ino != here()
    own = own_namespace()
    assert os.fstat(own).st_ino == here()
    os.close(own)


def test_within_a_block_this_thread_is_there_and_no_other(namespace: int) -> None:
    home, elsewhere = here(), []
    may_look, looked = threading.Event(), threading.Event()

    def look() -> None:
        may_look.wait(10)
        elsewhere.append(here())
        looked.set()

    threading.Thread(target=look, daemon=True).start()
    with inside(namespace):
        assert here() == os.fstat(namespace).st_ino
        assert [name for _, name in socket.if_nameindex() if name == "lo"] == ["lo"]
        with pytest.raises(OSError, match=r"unreachable|Cannot assign"):
            socket.create_connection(("127.0.0.1", 9), timeout=1)
        may_look.set()
        assert looked.wait(10)
    assert here() == home
    assert elsewhere == [home]


def test_an_error_brings_it_home_and_leaves_no_descriptor(namespace: int) -> None:
    home, before = here(), len(os.listdir("/proc/self/fd"))
    with pytest.raises(ZeroDivisionError), inside(namespace):
        _ = 1 // 0
    with pytest.raises(OSError, match="Invalid argument"), inside(0):  # no network
        pass
    assert here() == home
    assert len(os.listdir("/proc/self/fd")) == before
