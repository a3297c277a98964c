"""Ranks connect, or end in time with the true cause, whoever else calls and whatever else is in the store."""

from __future__ import annotations

import errno
import os
import resource
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from torch._C._distributed_c10d import HashStore

from gradwire.errors import LinkError, LinkTimeoutError
from gradwire.launch.addresses import VARIABLE
from gradwire.launch.store import StoreTimeoutError
from gradwire.links.rendezvous.connect import connect_ranks
from gradwire.links.rendezvous.endpoints import hello
from gradwire.links.rendezvous.tls import NAMES, encryption
from support.certificates import needs_openssl, of_host, variables
from support.endpoints import endpoint, names

TIMEOUT_S = 10.0
Met = dict[int, socket.socket]


@pytest.fixture(autouse=True)
def _on_the_loopback_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "lo")


def met_in_spite_of(
    strangers: Callable[[HashStore], None], environments: list[dict[str, str]], timeout_s: float = TIMEOUT_S
) -> list[Met | LinkError]:
    """Let rank 0 listen, then ``strangers`` do as they like, then the others come; return what each has."""
    store, world = HashStore(), len(environments)

    def one(rank: int) -> Met | LinkError:
        try:
            ours = encryption(environments[rank])
            ours = ours and ours.of_link(rank, range(world))
            return connect_ranks(store, rank, names(world), timeout_s, ours)
        except LinkError as error:
            return error

    with ThreadPoolExecutor(world) as pool:
        first = pool.submit(one, 0)
        strangers(store)
        others = [pool.submit(one, rank) for rank in range(1, world)]
        return [each.result() for each in (first, *others)]


def close(found: list[Met | LinkError]) -> None:
    for each in found:
        assert isinstance(each, dict), each
        for connection in each.values():
            connection.close()


@contextmanager
def descriptors(most: int) -> Iterator[None]:
    """Let this process have no more than so many beyond those that it has."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("sends_the_token", [False, True])
def test_a_flood_of_held_connections_does_not_keep_a_rank_out(sends_the_token: bool) -> None:
    held: list[socket.socket] = []

    def flood(store: HashStore) -> None:
        where, token = endpoint(store, 0)
        for _ in range(600):
            held.append(socket.create_connection(where, timeout=5))
            if sends_the_token:
                held[-1].sendall(token)
        with suppress(ConnectionResetError):
            assert held[0].recv(1) == b"", "the oldest makes room"

    close(met_in_spite_of(flood, [{}, {}, {}]))
    for each in held:
        each.close()


def test_where_strangers_hold_the_last_descriptors_the_oldest_make_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    accept, refused = socket.socket.accept, 0

    def scarce(listening: socket.socket) -> Any:
        nonlocal refused
        if len(kept) >= 5 and not any(each.fileno() == -1 for each in kept):
            refused += 1
            raise OSError(errno.EMFILE, "Too many open files")
        kept[:] = [each for each in kept if each.fileno() != -1]
        came = accept(listening)
        kept.append(came[0])
        return came

    kept: list[socket.socket] = []
    held: list[socket.socket] = []
    monkeypatch.setattr(socket.socket, "accept", scarce)
    close(
        met_in_spite_of(
            lambda store: held.extend(socket.create_connection(endpoint(store, 0)[0]) for _ in range(20)),
            [{}, {}],
        )
    )
    assert 1 <= refused <= 40
    for each in held:
        each.close()


def test_without_a_free_descriptor_a_rank_waits_idly_and_names_the_cause() -> None:
    store, failed = HashStore(), []

    def wait() -> None:
        started, before = time.thread_time(), time.monotonic()
        try:
            connect_ranks(store, 0, names(2), 1.5)
        except LinkTimeoutError as error:
            failed.append((str(error), time.thread_time() - started, time.monotonic() - before))

    waiting = threading.Thread(target=wait)
    waiting.start()
    where, _ = endpoint(store, 0)
    store.set("rank 1", f"127.0.0.1 9 {bytes(16).hex()} 0")
    with socket.socket() as calling, descriptors(0):
        taken = []
        with suppress(OSError):
            while True:
                taken.append(os.dup(0))
        calling.connect(where)
        waiting.join(20)
        for each in taken:
            os.close(each)
    ((text, busy_s, lasted_s),) = failed
    assert "rank 1 could not be accepted within 1.5 s; Too many open files, the limit is " in text
    assert lasted_s < 5
    assert busy_s < 0.5, "it spins"


def test_a_lack_of_descriptors_that_is_over_is_not_given_as_the_cause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    accept, refused = socket.socket.accept, list[bool]()

    def refuse_once(listening: socket.socket) -> Any:
        if not refused:
            refused.append(True)
            raise OSError(errno.EMFILE, "Too many open files")
        return accept(listening)

    monkeypatch.setattr(socket.socket, "accept", refuse_once)
    store = HashStore()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(connect_ranks, store, 0, names(2), 1.0)
        where, _ = endpoint(store, 0)
        store.set("rank 1", f"127.0.0.1 9 {bytes(16).hex()} 0")
        with socket.create_connection(where, timeout=5):
            error = waiting.exception(20)
    assert refused
    assert "rank 1 did not connect to this rank at 127.0.0.1 within 1 s" in str(error)


class Stalling(HashStore):
    """A store that doesn't answer who looks for the endpoint of rank 1, until ``released`` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.released = threading.Event(), threading.Event()

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        if key == "rank 1":
            self.asked.set()
            self.released.wait(20)
        return super().compare_set(key, expected, desired)


def test_a_store_that_stalls_when_a_rank_calls_is_named_as_the_cause() -> None:
    store = Stalling()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(connect_ranks, store, 0, names(2), 2.0)
        where, token = endpoint(store, 0)
        with socket.create_connection(where, timeout=5) as caller:
            assert not store.asked.is_set(), "only a caller makes rank 0 look for its endpoint"
            caller.sendall(hello(token, 1))
            error = waiting.exception(20)
    store.released.set()
    assert store.asked.is_set()
    assert isinstance(error, StoreTimeoutError)
    assert str(error).startswith(
        "rank 0 connecting with the 2 ranks of its group: torch's store (Stalling) does not answer "
        "(asked for 'rank 1', waited "
    )


@needs_openssl
@pytest.mark.parametrize("how", ["silent", "hangs up", "resets", "plain", "other authority", "other name"])
def test_who_only_reads_the_store_takes_no_seat(how: str) -> None:
    held: list[socket.socket] = []
    names = {NAMES: "0-1=host1, 2=host2"}
    ours = [{**variables(), **names}, {**variables(), **names}, {**of_host("host2"), **names}]

    def obstruct(store: HashStore) -> None:
        where, token = endpoint(store, 0)
        for rank in (1, 2):
            caller = socket.create_connection(where, timeout=5)
            held.append(caller)
            caller.sendall(hello(token, rank))
            if how == "resets":
                caller.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            if how in ("hangs up", "resets"):
                caller.close()
            elif how == "plain":
                caller.sendall(b"in plain text")
            elif how.startswith("other"):
                show(caller, variables("other") if how == "other authority" else of_host("web"))

    found = met_in_spite_of(obstruct, ours)
    close(found)
    assert [sorted(each) for each in found if isinstance(each, dict)] == [[1, 2], [0, 2], [0, 1]]
    for each in held:
        each.close()


def show(caller: socket.socket, environment: dict[str, str]) -> None:
    """Shake hands as somebody with this certificate, as far as that goes."""
    theirs = encryption(environment)
    assert theirs is not None
    with suppress(OSError), theirs.client.wrap_socket(caller) as end:
        end.settimeout(0.3)
        end.recv(1)


@needs_openssl
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_with_the_certificate_of_another_is_named_on_both_sides(rank: int) -> None:
    names = {NAMES: "0=host1, 1=host2"}
    right = [{**variables(), **names}, {**of_host("host2"), **names}]
    right[rank] = {**of_host("web"), NAMES: "*=web, *=host1, *=host2"}  # it believes what it likes
    found = met_in_spite_of(lambda _: None, right, 1.5)
    assert all(isinstance(each, LinkError) for each in found)
    wanted = (
        f"rank {rank}: expected a certificate for host{rank + 1}, got one for web; give this rank a matching "
        "certificate"
    )
    assert wanted in str(found[1 - rank])
    assert f"the TLS handshake with rank {1 - rank} failed (" in str(found[rank])


@needs_openssl
def test_who_writes_to_the_store_ends_a_start_in_time_and_with_its_cause() -> None:
    ours = encryption(variables())
    with socket.create_server(("127.0.0.1", 0)) as elsewhere:
        store = HashStore()
        port = elsewhere.getsockname()[1]
        store.set("rank 0", f"127.0.0.1 {port} {bytes(16).hex()} 1")
        with pytest.raises(LinkTimeoutError, match=r"rank 0 did not finish the TLS handshake within 0\.5 s"):
            connect_ranks(store, 1, names(2), 0.5, ours)
        store.set("rank 0", f"127.0.0.1 {port} {bytes(16).hex()} 0")
        with pytest.raises(
            LinkError, match=r"expected the same encryption .*, got rank 0 in plain text and this rank with"
        ):
            connect_ranks(store, 1, names(2), 0.5, ours)
