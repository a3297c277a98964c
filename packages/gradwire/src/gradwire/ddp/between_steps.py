"""Calls that all ranks make together between two steps of a DDP model, on the communication thread."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeVar

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gradwire.autotune.estimate import Estimate
from gradwire.autotune.pilot import Recorder
from gradwire.costs import ExchangeCost
from gradwire.errors import AttachError, StateError
from gradwire.exchange import Exchange
from gradwire.plan import Plan
from gradwire.sync.replicas import compare_hashes
from gradwire.sync.thread import CommunicationThread, Handover

# Ranks that have run out of batches, under DDP's ``join``: how many still take part in a step.
#
# A rank that has joined answers the others' collectives with zeros, and
# ``join(divide_by_initial_world_size=False)`` divides by the number of the others. DDP keeps that number
# from
# its hooks, so the ranks count themselves.

_SHADOWS = getattr(DistributedDataParallel, "_match_all_reduce_for_bwd_pass", None)
"""Where DDP calls the hook for a rank that has joined."""


def divides_by_active(model: nn.Module) -> bool:
    """Return whether a model is to divide its gradients by the ranks that still have batches.

    The same on all ranks. DDP does so for the first model of a ``Join`` alone.
    """
    config = getattr(model, "_join_config", None)
    joins = getattr(config, "enable", False) and getattr(config, "is_first_joinable", False)
    return joins and not getattr(model, "_divide_by_initial_world_size", True)


def has_joined() -> bool:
    """Return whether DDP calls the hook for a rank that has joined; ``AttachError`` if torch hides it."""
    if _SHADOWS is None:
        raise AttachError(
            f"gradwire cannot tell who has joined with torch {torch.__version__}; leave "
            "divide_by_initial_world_size=False out of join, which divides by all ranks then"
        )
    frame = sys._getframe()
    while frame.f_back is not None and frame.f_code is not _SHADOWS.__code__:
        frame = frame.f_back
    return frame.f_code is _SHADOWS.__code__


class ActiveCount:
    """The count of one step, work for the communication thread; all ranks do it at the same place.

    It waits ``timeout_s`` for a rank that has not come to the step. ``active`` is how many ranks have not
    joined, once it was called.
    """

    def __init__(self, exchange: Exchange, timeout_s: float) -> None:
        self.active = 0
        self._link, self._timeout_s, self._joined = exchange.link, timeout_s, has_joined()

    def __call__(self) -> ExchangeCost:
        """Count. Raises ``ExchangeError``."""
        active = torch.tensor([0.0 if self._joined else 1.0], dtype=torch.float32, device="cpu")
        accounting = Exchange(self._link, Plan()).all_reduce(active, average=False, timeout_s=self._timeout_s)
        self.active = max(int(active.item()), 1)
        return accounting


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
        return recorder.estimate(self.answer, self._exchange.plan, self._timeout_s, rate, hosts)

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
