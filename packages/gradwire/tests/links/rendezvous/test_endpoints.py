"""What ranks publish of themselves in a store, and what else may be there."""

from __future__ import annotations

import socket
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch._C._distributed_c10d import HashStore

from gradwire.errors import LinkError
from gradwire.links.rendezvous.connect import connect_ranks
from gradwire.links.rendezvous.endpoints import TOKEN_NBYTES, Endpoint, Endpoints, hello
from support.endpoints import endpoint, names


@pytest.mark.parametrize(
    "text",
    [
        "",
        "rubbish",
        "127.0.0.1 x y z",
        "127.0.0.1 9 zz 0",
        "nowhere 9 {token} 0",
        "127.0.0.1 0 {token} 0",
        "127.0.0.1 9 {token} 2",
        "127.0.0.1 9 00 0",
        "127.0.0.1 9 {token}",
        "\xff\xfe",
        "x" * 5000,
    ],
)
@pytest.mark.parametrize("rank", [0, 1])
def test_an_endpoint_that_no_rank_has_written_is_an_error_that_says_so(text: str, rank: int) -> None:
    store = HashStore()
    store.set(f"rank {1 - rank}", text.format(token=bytes(16).hex()))
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(connect_ranks, store, rank, names(2), 5.0)
        if rank == 0:
            where, token = endpoint(store, 0)
            with socket.create_connection(where) as caller:
                caller.sendall(hello(token, 1))
                error = waiting.exception(20)
        else:
            error = waiting.exception(20)
    assert isinstance(error, LinkError)
    assert str(error).startswith(
        f"rank {rank} connecting with the 2 ranks of its group: expected an endpoint under 'rank {1 - rank}' "
        "in torch's store, got "
    )
    assert "; look for another program that writes to this store" in str(error)
    assert len(str(error)) < 400


def soon() -> float:
    return time.monotonic() + 0.1


@given(
    st.ip_addresses().map(str),
    st.integers(1, 65535),
    st.binary(min_size=TOKEN_NBYTES, max_size=TOKEN_NBYTES),
    st.booleans(),
)
def test_what_one_rank_publishes_another_reads(address: str, port: int, token: bytes, encrypts: bool) -> None:
    store, told = HashStore(), Endpoint(address, port, token, encrypts)
    Endpoints(store, "rank 1", time.monotonic() + 5, names(3)).publish(1, told)
    other = Endpoints(store, "rank 0", time.monotonic() + 5, names(3))
    assert other.wait_for([1]) == [other.find(1)] == [told]
    assert other.find(2) is None
    assert other.absent() == ["rank 0", "rank 2"]


def test_a_rank_that_publishes_nothing_is_a_timeout() -> None:
    waiting = Endpoints(HashStore(), "rank 0", soon(), names(2))
    with pytest.raises(TimeoutError):
        waiting.wait_for([1])


def test_a_rank_is_not_absent_who_has_published_something_else() -> None:
    store = HashStore()
    store.set("rank 0", "rubbish")
    reading = Endpoints(store, "rank 1", time.monotonic() + 5, names(2))
    assert reading.absent() == [], "the cause is told by whoever reads it"
    with pytest.raises(LinkError) as caught:
        reading.find(0)
    assert str(caught.value) == (
        "expected an endpoint under 'rank 0' in torch's store, got 'rubbish'; look for another program "
        "that writes to this store"
    )
