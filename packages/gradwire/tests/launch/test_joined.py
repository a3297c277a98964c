"""One rank's part in what a launcher has started, with a world of one."""

from __future__ import annotations

import socket

import pytest

from gradwire.errors import ExchangeError, JobError, LinkError
from gradwire.launch.local import RankContext, Task, run_joined
from gradwire.launch.rendezvous import open_store
from support.launched import launch


def task(work: object, **shared: object) -> Task[str, str]:
    return Task(work, "options", 1, 5.0, shared=shared)  # type: ignore[arg-type]


def test_a_rank_works_with_its_place_its_options_and_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    launch(monkeypatch, 0, 1, port)
    shown: list[str] = []

    def work(context: RankContext[str], options: str) -> None:
        store = context.join_store()
        store.set("key", "value")
        context.report(f"{context.rank} of {context.world}: {options}, {store.get('key').decode()}")

    run_joined(task(work, lr=0.1), shown.append)
    assert shown == ["0 of 1: options, value"]


@pytest.mark.parametrize("kind", [LinkError, ExchangeError])
def test_what_a_peer_did_is_told_with_what_this_rank_did(
    kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    launch(monkeypatch, 1, 2)

    def work(context: RankContext[str], _options: str) -> None:
        context.doing = "step 7"
        raise kind("rank 0 is gone")

    with pytest.raises(JobError) as caught:
        run_joined(task(work), print)
    assert str(caught.value) == "rank 1 failed (step 7): rank 0 is gone"


def test_a_rank_0_without_options_is_told_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(5.0)
    launch(monkeypatch, 1, 2, store.port)

    def work(context: RankContext[str], _options: str) -> None:
        context.join_store()

    with pytest.raises(
        JobError, match=r"^rank 1 failed \(starting\): rank 1 could not compare .*\(nothing within 1 s\); see"
    ):
        run_joined(Task(work, "options", 2, 1.0), print)


def test_other_errors_stay_what_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    launch(monkeypatch, 0, 2)

    def work(_context: RankContext[str], _options: str) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_joined(task(work), print)
