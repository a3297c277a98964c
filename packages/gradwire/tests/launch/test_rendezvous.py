"""The ways in which ranks that a launcher has started do not find each other."""

import socket
import time

import pytest
from torch._C._distributed_c10d import HashStore

from gradwire.errors import JobError
from gradwire.launch.rendezvous import check_same_options, join_launched, join_store, open_store
from support.launched import launch


def test_a_local_store_needs_no_file() -> None:
    host = open_store(5)
    join_store(host.port, 5).set("key", "value")
    assert host.get("key") == b"value"


def test_ranks_with_other_options_are_refused() -> None:
    store = HashStore()
    check_same_options(store, 0, {"lr": 0.03, "workers": 4}, 5.0)
    check_same_options(store, 1, {"lr": 0.03, "workers": 4}, 5.0)
    with pytest.raises(JobError, match=r"on all ranks, got lr=0\.5 on rank 1 and lr=0\.03 on rank 0"):
        check_same_options(store, 1, {"lr": 0.5, "workers": 4}, 5.0)


def test_a_stranger_at_the_port_who_says_nothing_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradwire.launch.rendezvous.SLACK_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        launch(monkeypatch, 1, 2, stranger.getsockname()[1])
        started = time.monotonic()
        with pytest.raises(JobError, match=r"rank 1 of 2 could not join .* did not answer within 1 s; start"):
            join_launched(1)
        assert time.monotonic() - started < 8


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(
    ("variable", "value", "reason"),
    [
        ("MASTER_ADDR", "no.such.host.invalid", "MASTER_ADDR: expected .* got 'no.such.host.invalid', which"),
        ("MASTER_ADDR", "x" * 70 + ".org", "MASTER_ADDR: expected rank 0's address or name"),
        ("MASTER_PORT", "99999", "MASTER_PORT: expected 1 to 65535, got 99999"),
        ("MASTER_PORT", "0", "MASTER_PORT: expected 1 to 65535, got 0"),
    ],
)
def test_an_address_that_nobody_has_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, rank: int, variable: str, value: str, reason: str
) -> None:
    launch(monkeypatch, rank, 2)
    monkeypatch.setenv(variable, value)
    with pytest.raises(JobError, match=reason):
        join_launched(1)


def test_a_port_that_is_taken_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        launch(monkeypatch, 0, 2, stranger.getsockname()[1])
        with pytest.raises(JobError, match=r"^rank 0 cannot listen at 127\.0\.0\.1:\d+, which another"):
            join_launched(1)
