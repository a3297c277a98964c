"""Calls on torch's store end, whatever becomes of the process that serves it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from torch._C._distributed_c10d import FileStore, HashStore, PrefixStore, Store, TCPStore

from gradwire.errors import LinkError, LinkTimeoutError
from gradwire.launch import store as launch_store
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
    assert other.get(["key"], soon()) == ["value"]


class OwnStore(Store):
    """A store of another package: it knows no more than the calls that every store has."""

    def __init__(self) -> None:
        super().__init__()
        self.values: dict[str, bytes] = {}

    def set(self, key: str, value: Any) -> None:
        self.values[key] = value.encode() if isinstance(value, str) else bytes(value)

    def get(self, key: str) -> bytes:
        return self.values[key]

    def check(self, keys: list[str]) -> bool:
        return all(key in self.values for key in keys)


@pytest.fixture(params=["TCPStore", "HashStore", "FileStore", "OwnStore"])
def any_store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "TCPStore":
        limit = timedelta(seconds=20)
        return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=limit)
    if request.param == "FileStore":
        return FileStore(str(tmp_path / "store"), 1)
    return HashStore() if request.param == "HashStore" else OwnStore()


def test_to_look_for_a_key_neither_waits_for_it_nor_sets_it(any_store: Store) -> None:
    inner = any_store if isinstance(any_store, OwnStore) else PrefixStore("a", any_store)
    store = TimedStore(inner, "rank 1 trying")
    assert store.find("key", soon()) is store.find("key", soon()) is None
    assert not store.has(["key"], soon())
    for value in ("", "a value", "\u00e9" * 3000):
        store.set("key", value, soon())
        assert store.find("key", soon()) == value
        assert store.get(["key"] * 5, soon()) == [value] * 5


@pytest.mark.parametrize("number", [1, 3, 4, 100])
def test_keys_that_are_set_take_few_round_trips(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    store, keys = TimedStore(HashStore(), "rank 1 trying"), [f"key {each}" for each in range(number)]
    for key in keys:
        store.set(key, key, soon())
    calls: list[str] = []

    def counted(call: Callable[[], Any], *_: Any) -> Any:
        calls.append("")
        return call()

    monkeypatch.setattr(launch_store, "within", counted)
    assert store.get(keys, soon()) == keys
    assert len(calls) <= 3


def test_keys_that_come_one_by_one_are_returned_in_the_order_asked_for() -> None:
    store = TimedStore(HashStore(), "rank 1 trying")
    with ThreadPoolExecutor(2) as pool:
        for keys in (["a", "b"], ["c", "d", "e", "f"]):
            asking = pool.submit(store.get, keys, time.monotonic() + 20)
            for key in reversed(keys):
                time.sleep(0.02)
                assert not asking.done()
                store.set(key, key.upper(), time.monotonic() + 20)
            assert asking.result(20) == [key.upper() for key in keys]


def test_polls_that_take_a_round_trip_follow_each_other_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    now = slept = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now, slept
        now, slept = now + seconds, slept + seconds

    def number(each_s: float) -> int:
        """Return how many polls there are in ten seconds, if each takes ``each_s``."""
        nonlocal now, slept
        now, slept, count = 0.0, 0.0, 0
        with suppress(TimeoutError):
            for _ in launch_store.polls(10.0):
                now, count = now + each_s, count + 1
        return count

    monkeypatch.setattr(launch_store, "monotonic", lambda: now)
    monkeypatch.setattr(launch_store, "sleep", sleep)
    assert number(0.06) == pytest.approx(10.0 / 0.06, abs=1)
    assert slept < 0.001
    assert 200 <= number(0.0) <= 215, "on the store's host: after a few at once, one every 50 ms"
    assert now == pytest.approx(10.0)


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
        "get": lambda store: store.get(["key"], soon()),
        "find": lambda store: store.find("key", soon()),
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
