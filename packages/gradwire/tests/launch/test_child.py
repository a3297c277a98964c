"""A rank's process, in this one: what goes through its pipe, and when it leaves."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from multiprocessing import Pipe
from types import SimpleNamespace
from typing import Any

import pytest

from gradwire.errors import LinkError
from gradwire.launch import local as child
from gradwire.launch.local import Failed, Finished, RankContext


class Left(BaseException):
    """This process would have ended."""


@pytest.fixture
def be(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Any]]:
    """``be(work)`` gives what rank 1 of 3 says, and None for the end of its pipe."""

    def leave(code: int) -> None:
        raise Left(code)

    monkeypatch.setattr(child, "_end_with_parent", lambda: None)
    monkeypatch.setattr(os, "_exit", leave)

    def run(work: Callable[[RankContext[str], str], None]) -> list[Any]:
        receiving, sending = Pipe(duplex=False)
        said: list[Any] = []
        try:
            child.main(work, "options", 1, 3, 0, 1.0, sending)
        except Left as left:
            said.append(left.args)
        while receiving.poll():
            try:
                said.append(receiving.recv())
            except EOFError:
                said.append(None)
                break
        receiving.close()
        sending.close()
        return said

    return run


def test_events_come_in_their_order_and_then_that_it_has_finished(be: Callable[..., list[Any]]) -> None:
    def work(context: RankContext[str], options: str) -> None:
        for word in (options, f"{context.rank} of {context.world}"):
            context.report(word)

    assert be(work) == ["options", "1 of 3", Finished(1)]


def test_a_failure_is_told_before_the_process_leaves_at_once(be: Callable[..., list[Any]]) -> None:
    def work(context: RankContext[str], options: str) -> None:  # noqa: ARG001 - the signature of a task
        context.doing = "step 7"
        raise LinkError("rank 2 is gone")

    assert be(work) == [(1,), Failed(1, "step 7", "rank 2 is gone", consequence=True), None]


def test_an_interrupt_is_told_too(be: Callable[..., list[Any]]) -> None:
    def work(*_: object) -> None:
        raise KeyboardInterrupt

    (code, failed, end) = be(work)
    assert (code, failed.reason, end) == ((1,), "KeyboardInterrupt", None)


def test_it_does_not_outlive_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    sentinel, alive = os.pipe()
    left: list[int] = []
    monkeypatch.setattr(child, "parent_process", lambda: SimpleNamespace(sentinel=sentinel))
    monkeypatch.setattr(os, "_exit", left.append)
    lifeline = threading.Thread(target=child._end_with_parent)
    lifeline.start()
    lifeline.join(0.05)
    assert lifeline.is_alive()
    assert not left
    os.close(alive)
    lifeline.join(10)
    assert left == [1]
    os.close(sentinel)
