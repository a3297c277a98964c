"""How ranks agree on where each listens, with a real store and made-up routes."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from torch._C._distributed_c10d import HashStore, PrefixStore, TCPStore

from gradwire.errors import LinkError, LinkTimeoutError
from gradwire.launch import addresses
from gradwire.launch.addresses import OTHER_VARIABLE, VARIABLE
from gradwire.launch.listening import direct_gloo, listening_address
from gradwire.launch.rendezvous import joined_group
from gradwire.launch.store import TimedStore
from gradwire.links.rendezvous.connect import connect_ranks
from support.endpoints import names


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> TCPStore:
    """Return a store at 127.0.0.1, in an environment that selects no interface."""
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.delenv(OTHER_VARIABLE, raising=False)
    return TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=20), wait_for_workers=False)


def listen(store: TCPStore, world: int, seconds: float = 10.0) -> list[str]:
    """Return the addresses at which ranks listen that all share the store's host."""
    until = time.monotonic() + seconds
    with ThreadPoolExecutor(world) as pool:
        asking = [
            pool.submit(listening_address, TimedStore(PrefixStore("a", store), "test"), rank, world, until)
            for rank in range(world)
        ]
        return [each.result(20) for each in asking]


def test_ranks_that_all_reach_the_store_by_loopback_listen_at_the_hosts_name(
    store: TCPStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(addresses, "address_of_name", lambda: "127.0.1.1")
    assert listen(store, 3) == ["127.0.1.1"] * 3


def test_ranks_at_the_stores_host_listen_on_the_route_to_the_first_rank_elsewhere(
    store: TCPStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    routes = {"127.0.0.1": "127.0.0.1", "10.3.0.9": "10.3.0.1", "10.4.0.9": "10.4.0.1"}
    monkeypatch.setattr(addresses, "route_to", lambda host: routes[host])
    shared = PrefixStore("a", store)
    shared.set("address 1", "10.3.0.9")
    shared.set("address 3", "10.4.0.9")
    timed, until = TimedStore(shared, "test"), time.monotonic() + 10
    with ThreadPoolExecutor(2) as pool:
        asking = [pool.submit(listening_address, timed, rank, 4, until) for rank in (0, 2)]
        assert [each.result(20) for each in asking] == ["10.3.0.1"] * 2


def test_a_selected_interface_waits_for_nobody(store: TCPStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "lo")
    timed = TimedStore(PrefixStore("a", store), "test")
    assert listening_address(timed, 0, 2, time.monotonic() + 10) == "127.0.0.1"
    assert store.get("a/address 0") == b"127.0.0.1"


def test_a_rank_that_does_not_say_its_address_is_named(store: TCPStore) -> None:
    with pytest.raises(LinkTimeoutError, match=r"rank 0 connecting .* \(rank 1 did not join\): no progress"):
        connect_ranks(PrefixStore("a", store), 0, names(2), 0.3)


@pytest.mark.parametrize(
    ("variables", "route", "expected"),
    [
        ({}, "127.0.0.1", "lo"),
        ({}, "192.0.2.77", None),
        ({VARIABLE: "lo,eth7"}, "192.0.2.77", "lo,eth7"),
        ({OTHER_VARIABLE: "lo"}, "192.0.2.77", "lo"),
    ],
)
def test_gloo_is_sent_to_the_interface_of_the_links(
    variables: Mapping[str, str], route: str, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = dict(variables)
    monkeypatch.setattr(os, "environ", environment)
    monkeypatch.setattr(addresses, "address_of_name", lambda: route)
    direct_gloo(HashStore(), 0, 2, "test", 10.0)
    assert environment.get(VARIABLE) == expected


def test_a_rank_with_a_selected_interface_keeps_no_other_waiting(
    store: TCPStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rank, variables in ((1, {VARIABLE: "lo"}), (0, {})):
        monkeypatch.setattr(os, "environ", dict(variables))
        direct_gloo(store, rank, 2, "test", 1.0)


def test_a_group_that_a_rank_does_not_join_is_an_error_of_one_line(store: TCPStore) -> None:
    with (
        pytest.raises(LinkError, match=r"^rank 0 could not join the other 1 ranks: .*nothing within 0\.3 s"),
        joined_group(store, 0, 2, 0.3),
    ):
        pass
