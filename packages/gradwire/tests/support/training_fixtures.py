"""One small regression problem, and ranks as threads: what the tests of every training method share."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator
from threading import Thread
from typing import Any

import pytest
import torch
from torch import nn

from gradwire.exchange import Exchange
from gradwire.links.base import Link
from gradwire.links.loopback import loopback
from gradwire.plan import Plan

STEPS, RANKS, BATCH = 12, 4, 8


@pytest.fixture
def no_thread_is_left() -> Iterator[None]:
    """After the test, all of gradwire's threads have ended."""
    yield
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("gradwire")] == []


@pytest.fixture
def make_model() -> Callable[[], nn.Sequential]:
    """Every call gives an equal model: 5 inputs, 2 outputs, 58 parameters."""
    torch.manual_seed(5)
    prototype = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 2))
    return lambda: copy.deepcopy(prototype)


@pytest.fixture
def batch_loss() -> Callable[[nn.Module, int, slice], Callable[[], torch.Tensor]]:
    """``batch_loss(model, step, ranks)`` gives ``compute_loss`` on some ranks' batches, taken as one."""
    generator = torch.Generator().manual_seed(11)
    x = torch.randn(STEPS, RANKS, BATCH, 5, generator=generator)
    y = torch.stack([x[..., 0] * x[..., 1], x[..., 2].sin()], dim=-1)

    def of(model: nn.Module, step: int, ranks: slice) -> Callable[[], torch.Tensor]:
        dtype = next(model.parameters()).dtype
        inputs, targets = (t[step, ranks].flatten(0, 1).to(dtype) for t in (x, y))
        return lambda: nn.functional.mse_loss(model(inputs), targets)

    return of


@pytest.fixture
def run_exchanges() -> Callable[..., list[Any]]:
    """Return ``run_exchanges(world, body, plan)``, which calls ``body(exchange)`` in a thread for each rank.

    It returns the results of all ranks. An exception of a rank closes its link, so that the others end. The
    first one is raised.
    """

    def run(
        world: int,
        body: Callable[[Exchange], Any],
        plan: Plan | None = None,
        timeout_s: float = 10.0,
        wrap: Callable[[Link], Link] = lambda link: link,
    ) -> list[Any]:
        results: list[Any] = [None] * world
        failures: list[BaseException] = []

        def work(rank: int, link: Link) -> None:
            try:
                results[rank] = body(Exchange(wrap(link), plan or Plan()))
            except BaseException as error:  # a thread cannot raise; the test does
                failures.append(error)
                link.close()

        links = loopback(world, timeout_s=timeout_s)
        threads = [Thread(target=work, args=pair, daemon=True) for pair in enumerate(links)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in threads), "a rank hangs"
        if failures:
            raise failures[0]
        return results

    return run
