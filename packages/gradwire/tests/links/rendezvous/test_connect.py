"""How ranks find each other, and whom they do not take for one of them."""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch._C._distributed_c10d import HashStore

from gradwire.errors import LinkError, LinkTimeoutError
from gradwire.launch.addresses import VARIABLE, remedy
from gradwire.links.rendezvous.connect import connect_ranks
from gradwire.links.sockets import SocketLink
from support.endpoints import endpoint, names


@pytest.fixture(autouse=True)
def _on_the_loopback_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "lo")


def connect_all(world: int, store: HashStore, beside: Callable[[], Any] = lambda: None) -> list[SocketLink]:
    """Return the links of ranks that are threads, while ``beside`` happens."""
    with ThreadPoolExecutor(world + 1) as pool:
        strange = pool.submit(beside)
        found = [pool.submit(connect_ranks, store, rank, names(world), 10.0) for rank in range(world)]
        strange.result(20)
        return [SocketLink(rank, each.result(20), 5.0) for rank, each in enumerate(found)]


def everyone_hears_everyone(links: list[SocketLink]) -> bool:
    for link in links:
        for to in range(link.world):
            if to != link.rank:
                link.isend(to, torch.tensor([link.rank], dtype=torch.uint8)).wait()
    heard = [
        int(link.irecv(source, torch.zeros(1, dtype=torch.uint8)).wait()[0]) == source
        for link in links
        for source in range(link.world)
        if source != link.rank
    ]
    for link in links:
        link.close()
    return all(heard)


@pytest.mark.parametrize("world", [1, 2, 3, 5, 9])
def test_every_rank_is_connected_with_every_other(world: int) -> None:
    assert everyone_hears_everyone(connect_all(world, HashStore()))


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_marked_connections_carry_their_mark_at_both_ends(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gradwire.links.rendezvous.endpoints.listening_address", lambda *_: address)
    store, option = HashStore(), (socket.IPPROTO_IP, socket.IP_TOS)
    if address == "::1":
        option = socket.IPPROTO_IPV6, socket.IPV6_TCLASS
    with ThreadPoolExecutor(3) as pool:
        meeting = [pool.submit(connect_ranks, store, r, names(3), 10.0, tos=0x28) for r in range(3)]
        found = [each.result(20) for each in meeting]
    for rank, connections in enumerate(found):
        assert sorted(connections) == [peer for peer in range(3) if peer != rank]
        for each in connections.values():
            assert each.getsockopt(*option) == 0x28
            with pytest.raises(BlockingIOError):  # nothing but the hello has come
                each.recv(1)
    for connections in found:
        for each in connections.values():
            each.close()


def test_nobody_listens_when_all_have_met() -> None:
    store = HashStore()
    links = connect_all(3, store)
    for rank in range(3):
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(endpoint(store, rank)[0], timeout=5)
    assert everyone_hears_everyone(links)


def test_strangers_are_not_taken_for_ranks() -> None:
    store = HashStore()
    calls: list[socket.socket] = []

    def call() -> None:
        where, token = endpoint(store, 0)
        hello = struct.Struct("<16sI")
        for said in (
            b"",
            b"GET / HTTP/1.1\r\n\r\n",
            token[:10],
            hello.pack(bytes(16), 1),
            hello.pack(token, 0),
            hello.pack(token, 3),
            hello.pack(token, 1 << 31),
        ):
            with contextlib.suppress(OSError):  # the ranks may have met meanwhile
                caller = socket.create_connection(where, timeout=5)
                calls.append(caller)
                caller.sendall(said)
        for caller in calls[1::2]:
            caller.close()

    links = connect_all(3, store, call)
    assert everyone_hears_everyone(links)
    for caller in calls:
        caller.close()


def test_a_rank_that_has_come_cannot_come_again() -> None:
    store = HashStore()
    with ThreadPoolExecutor(1) as pool:
        met = pool.submit(connect_ranks, store, 0, names(3), 10.0)
        where, token = endpoint(store, 0)
        for rank in (1, 2):
            store.set(f"rank {rank}", f"127.0.0.1 9 {bytes(16).hex()} 0")
        callers = [socket.create_connection(where, timeout=5) for _ in range(3)]
        for caller, rank in zip(callers, (1, 1, 2), strict=True):
            caller.sendall(struct.pack("<16sI", token, rank))
            time.sleep(0.1)
        found = met.result(20)
    assert sorted(found) == [1, 2]
    assert found[1].getpeername() == callers[0].getsockname()
    assert callers[1].recv(1) == b""
    for each in (*callers, *found.values()):
        each.close()


@pytest.mark.parametrize("rank", [0, 1])
def test_who_does_not_come_is_named(rank: int) -> None:
    started = time.monotonic()
    with pytest.raises(LinkTimeoutError) as caught:
        connect_ranks(HashStore(), rank, names(2), 0.3)
    assert str(caught.value) == (
        f"rank {rank} connecting with the 2 ranks of its group (rank {1 - rank} did not join): "
        "no progress within 0.3 s; check that all ranks run, or use a longer timeout_s"
    )
    assert time.monotonic() - started < 5


def test_a_rank_that_is_gone_again_cannot_be_reached() -> None:
    store = HashStore()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    store.set("rank 0", f"127.0.0.1 {port} {bytes(16).hex()} 0")
    with pytest.raises(LinkError, match=rf"cannot reach rank 0 at 127\.0\.0\.1:{port}: Connection refused"):
        connect_ranks(store, 1, names(2), 5.0)


def test_a_rank_that_does_not_answer_is_named() -> None:
    store = HashStore()
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(0)
        where = silent.getsockname()
        waiting = [socket.create_connection(where, timeout=5)]  # the backlog is full now
        store.set("rank 0", f"127.0.0.1 {where[1]} {bytes(16).hex()} 0")

        def keep_calling() -> None:
            for _ in range(9):
                waiting.extend(connect_ranks(store, 1, names(2), 0.5).values())

        with pytest.raises(LinkTimeoutError) as caught:
            keep_calling()
        for each in waiting:
            each.close()
    assert str(caught.value) == (
        f"rank 1 connecting with the 2 ranks of its group: rank 0 did not answer at 127.0.0.1:{where[1]} "
        f"within 0.5 s; {remedy('127.0.0.1')}"
    )


def test_a_rank_that_does_not_answer_delays_no_call_to_another() -> None:
    store = HashStore()
    with socket.socket() as silent, socket.create_server(("127.0.0.1", 0)) as other:
        silent.bind(("127.0.0.1", 0))
        silent.listen(0)
        full = [socket.create_connection(silent.getsockname(), timeout=5)]
        with contextlib.suppress(TimeoutError):
            where = silent.getsockname()
            full.extend(socket.create_connection(where, timeout=0.3) for _ in range(9))  # until it is full
        for rank, each in enumerate((silent, other)):
            store.set(f"rank {rank}", f"127.0.0.1 {each.getsockname()[1]} {bytes(16).hex()} 0")
        with pytest.raises(LinkTimeoutError, match="rank 0 did not answer at 127"):
            connect_ranks(store, 2, names(3), 0.5)
        other.settimeout(0)
        other.accept()[0].close()  # this call came before rank 0's answer, which never did
        for each in full:
            each.close()


def test_a_rank_that_does_not_call_is_named() -> None:
    store = HashStore()
    store.set("rank 1", f"127.0.0.1 9 {bytes(16).hex()} 0")
    with pytest.raises(
        LinkTimeoutError,
        match=r"rank 1 did not connect to this rank at 127\.0\.0\.1 within 0\.3 s; other hosts cannot",
    ):
        connect_ranks(store, 0, names(2), 0.3)


def test_an_interface_without_an_address_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "nope0")
    with pytest.raises(LinkError, match=r"GLOO_SOCKET_IFNAME: expected an .*, got 'nope0'; .* one of: .*lo"):
        connect_ranks(HashStore(), 0, names(2), 1.0)


def test_a_peer_that_listens_at_the_address_of_its_name_is_an_error_that_says_what_to_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(VARIABLE)
    remedy = f"set {VARIABLE} on each host to the interface"
    with socket.socket() as unused:  # on the other host nobody listens at that port
        unused.bind(("127.0.1.1", 0))
        store = HashStore()
        store.set("rank 0", f"127.0.1.1 {unused.getsockname()[1]} {bytes(16).hex()} 0")
        with pytest.raises(
            LinkError, match=r"cannot reach rank 0 at 127\.0\.1\.1:[0-9]+: Connection refused"
        ) as caught:
            connect_ranks(store, 1, names(2), 5.0)
    assert remedy in str(caught.value)
    store = HashStore()
    store.set("rank 1", f"127.0.1.1 9 {bytes(16).hex()} 0")
    monkeypatch.setattr("gradwire.launch.addresses.address_of_name", lambda: "127.0.1.1")
    with pytest.raises(
        LinkTimeoutError, match=r"rank 1 did not connect to this rank at 127\.0\.1\.1"
    ) as late:
        connect_ranks(store, 0, names(2), 0.3)
    assert remedy in str(late.value)
