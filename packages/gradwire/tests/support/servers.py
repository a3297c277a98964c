"""What the tests of parameter servers share: ranks as threads whose errors are results, small optimizers."""

from __future__ import annotations

from collections.abc import Callable
from threading import Thread
from typing import Any

import torch
from torch import nn

from gradwire.links import Link
from gradwire.plan import Plan

STAR = Plan(algorithm="star")
MOMENTUM: dict[str, Any] = {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-2}


def flat(model: nn.Module) -> torch.Tensor:
    """Return a copy of all weights."""
    return nn.utils.parameters_to_vector(model.parameters()).detach().clone()


def sgd(model: nn.Module, **options: float) -> torch.optim.SGD:
    """Return SGD, with momentum and weight decay where nothing else is said."""
    return torch.optim.SGD(model.parameters(), **(options or MOMENTUM))


def run_all(body: Callable[[Link], Any], links: list[Link]) -> list[Any]:
    """Return every rank's result or exception; a rank that hangs fails the test."""
    sgd(nn.Linear(1, 1))  # the first optimizer of a process spends seconds on imports; no link waits for it
    results: list[Any] = [None] * len(links)

    def work(rank: int) -> None:
        try:
            results[rank] = body(links[rank])
        except BaseException as error:
            results[rank] = error

    threads = [Thread(target=work, args=(rank,), daemon=True) for rank in range(len(links))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads), "a rank hangs"
    return results
