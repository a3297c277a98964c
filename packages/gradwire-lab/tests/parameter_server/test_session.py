"""One worker's thread at the server: a worker by hand talks with it, and the test is the server."""

from __future__ import annotations

import time
from collections.abc import Iterator
from queue import SimpleQueue
from threading import Lock

import pytest
import torch

from gradwire.codecs import Identity, parse
from gradwire.errors import ExchangeError, LinkError
from gradwire.links.loopback import loopback
from gradwire.plan import Plan
from gradwire_lab.parameter_server import session
from gradwire_lab.parameter_server.conversation import EXACT, Conversation, Kind, Message
from gradwire_lab.parameter_server.session import Clocks, Codecs, Event, Now, Session, Snapshot

pytestmark = pytest.mark.usefixtures("no_thread_is_left")
COUNT, PARAMETERS, STALENESS = 5, 3, 1
WEIGHTS = torch.arange(COUNT, dtype=torch.float32)


class Served:
    """A session of a server with two workers, of whom rank 1 is here, and rank 2 never moves."""

    def __init__(self, timeout_s: float = 5.0, codecs: Codecs | None = None) -> None:
        server, self.link, _ = loopback(3, timeout_s)
        self.clocks, plan = Clocks((1, 2), STALENESS), Plan(algorithm="star")
        talk = Conversation(server, 1, plan, Lock())
        both = Codecs(Identity(), Identity()) if codecs is None else codecs
        self.session = Session(talk, torch.zeros(COUNT), PARAMETERS, self.clocks, both)
        self.worker = Conversation(self.link, 0, plan, Lock())
        self.events = SimpleQueue[Event]()

    def push(self, value: float, clock: int = 1, kind: Kind = Kind.PUSH, **others: int) -> None:
        """Be the worker: send a gradient of equal values."""
        told = {"staleness": STALENESS, "count": COUNT, **others}
        before = torch.tensor([1.0, 0.0, 1.0]) if kind is Kind.PART else None
        self.worker.hand_over(Message(kind, clock, **told), torch.full((COUNT,), value), EXACT, before=before)

    def event(self) -> Now | BaseException:
        found = self.events.get(timeout=10)
        assert found.session is self.session
        return found.what


@pytest.fixture
def served() -> Iterator[Served]:
    made = Served()
    yield made
    end(made)


def end(made: Served) -> None:
    made.session.give_up(0)
    made.link.close()
    made.session.join(time.monotonic() + 10)


def test_a_gradient_comes_in_and_weights_go_out_until_the_worker_has_drained(served: Served) -> None:
    one = served.session
    one.start(1, served.events)
    served.push(3.0)
    assert served.event() is Now.PUSHED
    assert one.gradient.tolist() == [3.0] * COUNT
    assert not one.absent
    served.clocks.tick(1)
    one.answer(Snapshot(1, WEIGHTS))
    assert served.worker.hear() == Message(Kind.WEIGHTS, 1, slowest=0)
    got = torch.empty(COUNT)
    served.worker.take_in(got, EXACT)
    assert torch.equal(got, WEIGHTS)
    served.worker.tell(Message(Kind.DRAIN, 1, STALENESS, COUNT))
    assert served.event() is Now.DRAINS
    one.answer(Snapshot(1, WEIGHTS))
    assert served.worker.hear().kind is Kind.SAME, "it has these weights already"
    assert served.event() is Now.ENDED
    cost = one.settle()
    assert (cost.frames, cost.raw_nbytes) == (3, 4 * COUNT), "what it has sent: two messages, one of weights"
    assert one.settle().frames == 0


def test_what_backward_has_not_reached_comes_before_the_gradient(served: Served) -> None:
    served.session.start(2, served.events)
    served.push(1.0, kind=Kind.PART)
    assert served.event() is Now.PUSHED
    assert served.session.absent == {1}
    served.clocks.tick(1)
    served.session.answer(Snapshot(1, WEIGHTS))
    assert served.worker.hear().kind is Kind.WEIGHTS
    served.worker.take_in(torch.empty(COUNT), EXACT)
    served.push(1.0, clock=2)
    assert served.event() is Now.PUSHED
    assert not served.session.absent, "it is of the last backward pass alone"


def test_gradients_and_weights_have_a_codec_each() -> None:
    made = Served(codecs=Codecs(parse("identity"), parse("fp16")))
    made.session.start(1, made.events)
    made.push(0.1)
    assert made.event() is Now.PUSHED
    assert made.session.gradient.tolist() == torch.full((COUNT,), 0.1).tolist()
    made.clocks.tick(1)
    made.session.answer(Snapshot(1, torch.full((COUNT,), 0.1)))
    assert made.worker.hear().kind is Kind.WEIGHTS
    got = torch.empty(COUNT)
    made.worker.take_in(got, parse("fp16"))
    assert got.tolist() == torch.full((COUNT,), 0.1).half().float().tolist()
    end(made)


def test_a_worker_that_is_held_back_hears_who_holds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "SIGNS_OF_LIFE", 500)
    made = Served()  # a sign of life every 10 ms
    made.session.start(9, made.events)
    made.push(1.0)
    assert made.event() is Now.PUSHED
    made.clocks.tick(1)
    for _ in range(4):
        assert made.worker.hear() == Message(Kind.HELD, 1, slowest=0, rank=2)
    made.session.answer(Snapshot(1, WEIGHTS))
    while (answer := made.worker.hear()).kind is Kind.HELD:
        pass
    assert answer.kind is Kind.WEIGHTS
    end(made)


def test_a_server_that_gives_up_says_because_of_whom(served: Served) -> None:
    served.session.start(9, served.events)
    served.push(1.0)
    assert served.event() is Now.PUSHED
    served.session.give_up(2)
    assert served.worker.hear() == Message(Kind.GAVE_UP, 0, rank=2)
    assert served.event() is Now.ENDED


def test_a_worker_that_is_gone_is_an_event(served: Served) -> None:
    served.session.start(9, served.events)
    served.link.close()
    assert isinstance(served.event(), LinkError)


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ({"staleness": 3}, "expected the server's staleness of 1 on rank 1, got 3"),
        ({"count": 4}, "expected the server's number of weights of 5 on rank 1, got 4"),
        ({"clock": 2}, "expected PUSH at step 1 from rank 1, got PUSH at step 2"),
    ],
)
def test_a_request_that_is_not_due_is_an_event(message: dict[str, int], reason: str, served: Served) -> None:
    served.session.start(9, served.events)
    told = {"clock": 1, "staleness": STALENESS, "count": COUNT, **message}
    served.worker.tell(Message(Kind.PUSH, **told))
    found = served.event()
    assert isinstance(found, ExchangeError)
    assert reason in str(found)


def test_without_a_thread_there_is_nothing_to_join(served: Served) -> None:
    served.session.join(time.monotonic() + 10)
