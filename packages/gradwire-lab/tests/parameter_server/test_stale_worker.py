"""A worker by itself: what it asks a server that the test plays, and what it makes of the answers."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Any

import pytest
import torch
from torch import nn

from gradwire.errors import ExchangeError, SpecError, StateError
from gradwire.links import Link
from gradwire.links.loopback import loopback
from gradwire.plan import Plan
from gradwire_lab.parameter_server.conversation import EXACT, Conversation, Kind, Message
from gradwire_lab.parameter_server.stale_worker import StaleWorker
from support.servers import STAR, flat, run_all

COUNT = 4
Play = Callable[[Conversation], Any]


def model_of(value: float = 0.0) -> nn.Linear:
    model = nn.Linear(COUNT, 1, bias=False)
    nn.init.constant_(model.weight, value)
    return model


def played(play: Play, work: Callable[[StaleWorker], Any], staleness: int = 2) -> list[Any]:
    """Return what the server that ``play`` is saw, and what the worker did; errors are results."""

    def body(link: Link) -> Any:
        if link.rank == 0:
            return play(Conversation(link, 1, STAR, Lock()))
        worker = StaleWorker(model_of(), STAR, staleness, group=link)
        worker._synchronised = True  # no server is there to compare with
        return work(worker)

    return run_all(body, loopback(2, timeout_s=20.0))


def push(talk: Conversation) -> tuple[Message, list[float]]:
    """Be the server: take a request and its gradient."""
    asked, gradient = talk.hear(), torch.empty(COUNT)
    if asked.kind is Kind.PART:
        talk.take_in(torch.empty(1), EXACT)
    talk.take_in(gradient, EXACT)
    return asked, gradient.tolist()


def step(worker: StaleWorker, factor: float = 1.0) -> Any:
    (weight,) = worker.model.parameters()
    return worker.step(lambda: factor * weight.sum())


def test_a_step_sends_its_gradient_and_adopts_the_weights_that_come() -> None:
    def play(talk: Conversation) -> Any:
        seen = push(talk)
        talk.hand_over(Message(Kind.WEIGHTS, 1, slowest=0), torch.full((COUNT,), 5.0), EXACT)
        return seen

    def work(worker: StaleWorker) -> Any:
        record = step(worker, 3.0)
        return flat(worker.model).tolist(), worker.lead, worker.steps_done, record.loss

    seen, found = played(play, work)
    assert seen == (Message(Kind.PUSH, 1, staleness=2, count=COUNT), [3.0] * COUNT)
    assert found == ([5.0] * COUNT, 1, 1, 0.0)


def test_held_back_it_waits_and_without_new_weights_keeps_its_own() -> None:
    def play(talk: Conversation) -> None:
        push(talk)
        for _ in range(3):
            talk.tell(Message(Kind.HELD, 1, rank=2))
        talk.tell(Message(Kind.SAME, 1, slowest=1))

    def work(worker: StaleWorker) -> tuple[list[float], int]:
        step(worker)
        return flat(worker.model).tolist(), worker.lead

    assert played(play, work)[1] == ([0.0] * COUNT, 0)


def test_a_drain_is_asked_for_once_and_state_is_there_after_it_only() -> None:
    def play(talk: Conversation) -> Message:
        push(talk)
        talk.tell(Message(Kind.SAME, 1))
        asked = talk.hear()
        talk.hand_over(Message(Kind.WEIGHTS, 1, slowest=1), torch.full((COUNT,), 7.0), EXACT)
        return asked

    def work(worker: StaleWorker) -> tuple[str, list[float], bool]:
        assert worker.drain().steps == 0, "no step was taken, so nobody is asked"
        step(worker)
        with pytest.raises(StateError) as caught:
            worker.state_dict()
        worker.drain()
        worker.drain()
        return str(caught.value), flat(worker.model).tolist(), bool(worker.state_dict())

    asked, found = played(play, work)
    assert asked == Message(Kind.DRAIN, 1, staleness=2, count=COUNT)
    refusal = (
        "expected a drained worker, got rank 1 undrained after step 1; call drain() on all workers first"
    )
    assert found == (refusal, [7.0] * COUNT, True)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (
            Message(Kind.GAVE_UP, 1, rank=3),
            "the server stopped because rank 3 failed; see the error of rank 3",
        ),
        (
            Message(Kind.GAVE_UP, 1),
            "the server stopped because of its own error; see the error of rank 0",
        ),
        (
            Message(Kind.PUSH, 1),
            "expected an answer to step 1, got PUSH for step 1; create a StaleServer on rank 0 of the link",
        ),
        (
            Message(Kind.SAME, 2),
            "expected an answer to step 1, got SAME for step 2; create a StaleServer on rank 0 of the link",
        ),
    ],
)
def test_after_another_answer_a_worker_is_over(answer: Message, reason: str) -> None:
    def play(talk: Conversation) -> None:
        push(talk)
        talk.tell(answer)

    def work(worker: StaleWorker) -> list[str]:
        found = []
        for _ in range(2):
            with pytest.raises(ExchangeError) as caught:
                step(worker)
            found.append(str(caught.value))
        return found

    first, again = played(play, work)[1]
    assert first == f"rank 1, step 1: {reason}"
    assert again == f"this worker has failed ({first}); create a new worker"


def test_it_is_for_a_star_and_for_ranks_that_do_not_serve() -> None:
    zero, one = loopback(2)
    with pytest.raises(SpecError):
        StaleWorker(model_of(), STAR, 1, group=zero)
    with pytest.raises(SpecError, match="star"):
        StaleWorker(model_of(), Plan(algorithm="ring"), 1, group=one)
    with pytest.raises(SpecError, match="whole number"):
        StaleWorker(model_of(), STAR, -1, group=one)
