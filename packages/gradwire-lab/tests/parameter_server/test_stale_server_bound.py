"""The condition of SSP.

Worker r adds exactly 1 to weight r - 1 with every gradient, so weights are a vector clock: they tell whose
gradients they hold, whatever the server says about it.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from gradwire.exchange import Exchange
from gradwire.links import Link
from gradwire.links.loopback import loopback
from gradwire_lab.parameter_server.stale_server import StaleServer
from gradwire_lab.parameter_server.stale_worker import StaleWorker
from support.servers import STAR, flat, run_all, sgd


class _Log:
    """What every worker sees when it begins a step, by the test's own counts."""

    def __init__(self, workers: int) -> None:
        self.lock = threading.Lock()
        self.finished = [0] * workers
        self.leads: list[int] = []
        self.reads: list[tuple[int, int, list[int]]] = []

    def begin(self, worker: int, step: int, weights: torch.Tensor) -> None:
        with self.lock:
            self.leads.append(step - min(self.finished))
            self.reads.append((worker, step, [round(w) for w in weights.flatten().tolist()]))

    def finish(self, worker: int) -> None:
        with self.lock:
            self.finished[worker] += 1


def _count_together(
    workers: int, staleness: int, steps: int, pause_s: Callable[[int, int], float]
) -> tuple[_Log, list[Any]]:
    log = _Log(workers)

    def body(link: Link) -> torch.Tensor:
        model, exchange = nn.Linear(workers, 1, bias=False), Exchange(link, STAR)
        nn.init.zeros_(model.weight)
        if link.rank == 0:
            StaleServer(
                model, sgd(model, lr=float(workers)), exchange.plan, staleness, group=exchange.link
            ).serve(steps)
            return flat(model)
        me = link.rank - 1

        def loss(step: int) -> torch.Tensor:
            log.begin(me, step, model.weight.detach())
            time.sleep(pause_s(me, step))
            log.finish(me)
            return -model.weight[0, me]

        with StaleWorker(model, exchange.plan, staleness, group=exchange.link) as worker:
            for step in range(steps):
                worker.step(lambda step=step: loss(step))  # type: ignore[misc]
                assert 0 <= worker.lead <= staleness
        return flat(model)

    return log, run_all(body, loopback(workers + 1, timeout_s=10))


@settings(max_examples=12)
@given(
    workers=st.integers(1, 4),
    staleness=st.integers(0, 3),
    steps=st.integers(1, 7),
    seed=st.integers(0, 2**16),
)
def test_nobody_is_further_ahead_than_the_bound_whatever_the_delays(
    workers: int, staleness: int, steps: int, seed: int
) -> None:
    draw = random.Random(seed)
    pauses = [[draw.choice((0, 0, 0.002, 0.01)) for _ in range(steps)] for _ in range(workers)]
    log, results = _count_together(workers, staleness, steps, lambda worker, step: pauses[worker][step])
    assert max(log.leads) <= staleness
    for worker, step, counts in log.reads:
        assert counts[worker] == step, "a worker reads all its own gradients"
        assert min(counts) >= step - staleness, "and all but the last S of the others"
        assert max(counts) <= step + staleness + 1
    for weights in results:
        assert weights.tolist() == [float(steps)] * workers


@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_the_fastest_uses_all_of_the_bound(staleness: int) -> None:
    log, _ = _count_together(3, staleness, 8, lambda worker, _step: 0.06 if worker == 2 else 0.0)
    assert max(log.leads) == staleness


def test_one_slow_step_holds_nobody_back_who_stays_within_the_bound() -> None:
    """The straggler of a step: with S = 3 the other worker takes its next three steps meanwhile."""
    begun_at: dict[tuple[int, int], float] = {}

    def pause_s(worker: int, step: int) -> float:
        begun_at[worker, step] = time.monotonic()
        return 0.5 if (worker, step) == (0, 1) else 0.0

    _count_together(2, 3, 6, pause_s)
    started = begun_at[0, 1]
    assert begun_at[1, 4] - started < 0.4
    assert begun_at[1, 5] - started >= 0.4


def test_being_held_back_for_longer_than_the_timeout_is_no_failure() -> None:
    """Worker 2 takes eight steps of a third of the timeout while worker 1 waits in ``drain``."""

    def pause_s(worker: int, _step: int) -> float:
        return 0.2 if worker == 1 else 0.0

    log = _Log(2)

    def body(link: Link) -> float:
        model, exchange = nn.Linear(1, 1, bias=False), Exchange(link, STAR)
        nn.init.zeros_(model.weight)
        if link.rank == 0:
            StaleServer(model, sgd(model, lr=2.0), exchange.plan, 9, group=exchange.link).serve(8)
        else:
            with StaleWorker(model, exchange.plan, 9, group=exchange.link) as worker:
                for step in range(8):
                    log.begin(link.rank - 1, step, model.weight.detach())
                    time.sleep(pause_s(link.rank - 1, step))
                    log.finish(link.rank - 1)
                    worker.step(lambda: -model.weight.sum())
        return model.weight.item()

    assert run_all(body, loopback(3, timeout_s=0.6)) == [16.0] * 3
    assert max(log.leads) >= 6
