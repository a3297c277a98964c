"""Calls that all ranks make together between two steps of a DDP model, on the communication thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeVar

import torch

from gradwire.auto.estimates.estimate import Estimate
from gradwire.auto.estimates.recorder import Recorder, read_answer
from gradwire.costs import ExchangeCost
from gradwire.errors import StateError
from gradwire.exchange import Exchange
from gradwire.training.communication.thread import CommunicationThread, Handover
from gradwire.training.ddp.uneven import ActiveCount
from gradwire.training.replicas.compare import compare_hashes

T = TypeVar("T")


class BetweenSteps:
    """Runs collective calls between two steps, where nothing else is on the network, and waits for them.

    Ranks may come late to a call, as to the first bucket of a step. Every method raises ``ExchangeError``, or
    ``LinkTimeoutError`` if the communication thread does not come back.

    Parameters
    ----------
    exchange, thread
        Those of the model's buckets.
    timeout_s
        How long a rank waits for the others to come.
    check
        Raises ``ExchangeError`` if the model's exchange is over.
    step
        Returns the number of the next step, for errors.

    Attributes
    ----------
    recorder
        Records steps for ``estimate``, from its first call on; None before that.
    """

    def __init__(
        self,
        exchange: Exchange,
        thread: CommunicationThread,
        timeout_s: float,
        check: Callable[[], None],
        step: Callable[[], int],
    ) -> None:
        self._exchange, self._thread, self._timeout_s = exchange, thread, timeout_s
        self._check, self._step = check, step
        self.recorder: Recorder | None = None

    def roll_call(self) -> None:
        """Exchange one number with all ranks, so that an error names one that is gone or stands still."""
        self._check()
        number = torch.zeros(1, dtype=torch.float32, device="cpu")
        what = f"a number in the roll call before step {self._step()}"
        ask = f"{what}, after which DDP cuts its buckets anew"
        self._run(None, ask, partial(self._exchange.all_reduce, number, timeout_s=self._timeout_s))

    def compare(self, hashes: Mapping[str, bytes]) -> None:
        """Compare hashes of parts of the replicas. Raises ``StateError`` on all ranks if they differ."""
        self._check()
        found: list[StateError] = []

        def compare() -> ExchangeCost:
            try:
                compare_hashes(hashes, self._exchange, self._timeout_s)
            except StateError as error:  # not one of the exchange, which can go on
                found.append(error)
            return ExchangeCost()

        self._run(None, "the hashes of the replicas", compare)
        if found:
            raise found.pop()  # a list of this frame that held it would make a circle

    def estimate(self, rate: str | float | None, hosts: int | None) -> Estimate | None:
        """Return what steps would take elsewhere, None while few are recorded."""
        self._check()
        recorder = self.recorder = self.recorder or Recorder("DDP")
        work = partial(recorder.answer, rate=rate, hosts=hosts, timeout_s=self._timeout_s)
        return read_answer(self.answer("an estimate", work))

    def count_active(self) -> int:
        """Wait until all ranks have come to the step; return how many of them have not joined."""
        count = ActiveCount(self._exchange, self._timeout_s)
        self._run("join", f"the count of ranks with batches in step {self._step()}, under join", count)
        return count.active

    def answer(self, what: str, work: Callable[[Exchange], T]) -> T:
        """Return what ``work`` finds with the exchange, on the communication thread."""
        found: list[T] = []

        def answer() -> ExchangeCost:
            found.append(work(self._exchange))
            return ExchangeCost()

        self._run(None, f"{what} before step {self._step()}", answer)
        return found[0]

    def _run(self, name: str | None, what: str, work: Callable[[], ExchangeCost]) -> None:
        handover = Handover(name, what, work, timeout_s=self._timeout_s, done="exchanged")
        self._thread.wait(self._thread.hand_over(handover))
