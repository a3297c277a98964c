"""Calls on torch's store end, whatever becomes of the process that serves it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import pytest
from torch._C._distributed_c10d import HashStore, PrefixStore

from gradwire.errors import LinkError, LinkTimeoutError
from gradwire.launch.store import TimedStore
from support.store_host import connected, served


def soon() -> float:
    return time.monotonic() + 0.1


def test_what_one_has_put_there_another_finds() -> None:
    store = HashStore()
    one, other = TimedStore(store, "one"), TimedStore(PrefixStore("", store), "other")
    assert not one.has(["key"], soon())
    TimedStore(store, "a third").set("/key", "value", soon())
    other.wait(["key"], soon())
    assert other.get("key", soon()) == "value"


def test_keys_that_do_not_come_are_a_timeout_of_their_own() -> None:
    store = TimedStore(HashStore(), "rank 1 trying")
    started = time.monotonic()
    with pytest.raises(TimeoutError) as caught:
        store.wait(["key"], started + 0.2)
    assert not isinstance(caught.value, LinkError)
    assert 0.2 <= time.monotonic() - started < 1.2
    assert store.answers


def set_and_check(store: TimedStore) -> bool:
    store.set("key", "", soon())
    return store.has(["key"], soon())


@pytest.mark.processes
def test_no_call_outlasts_a_host_that_stands_still() -> None:
    calls: dict[str, Callable[[TimedStore], object]] = {
        "check": lambda store: store.has(["key"], soon()),
        "get": lambda store: store.get("key", soon()),
        "wait": lambda store: store.wait(["key"], soon()),
        "set and check": set_and_check,
    }
    with served() as (host, store):
        stores = {name: connected(store.port) for name in calls}
        store.set("key", "value")
        host.halt()
        for name, call in calls.items():
            timed = TimedStore(PrefixStore("", stores[name]), "rank 1 trying")
            started = time.monotonic()
            with pytest.raises(LinkTimeoutError) as caught:
                call(timed)
            assert time.monotonic() - started < 5
            assert str(caught.value).startswith(
                f"rank 1 trying: torch's store at 127.0.0.1:{store.port} does not answer (asked for 'key', "
            )
            again = time.monotonic()
            with pytest.raises(LinkTimeoutError, match="does not answer"):
                call(timed)
            assert time.monotonic() - again < 0.5, "it knows by now"
        os.kill(host.pid, signal.SIGCONT)
        assert store.get("key") == b"value", "what was left behind has not spoilt the connection"


@pytest.mark.processes
def test_a_host_that_is_gone_is_named() -> None:
    with served() as (host, store):
        host.kill()
        with pytest.raises(
            LinkError, match=r"^rank 1 trying: torch's store at .* cannot be reached \(asked for 'key'"
        ):
            TimedStore(store, "rank 1 trying").has(["key"], soon())
