"""Parameters that are unfrozen on the way, or not reached, at servers and their workers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from gradwire.errors import StateError
from gradwire.exchange import Exchange
from gradwire_lab.parameter_server.ps_sync import Server, Worker
from gradwire_lab.parameter_server.stale_server import StaleServer
from gradwire_lab.parameter_server.stale_worker import StaleWorker
from support.branches import (
    OPTIMIZERS,
    STEPS,
    assert_close,
    branch_loss,
    everything,
    frozen_model,
    gradually,
    new_branches,
    squares,
    unfreeze,
    unfrozen_by_hand,
    used_by_hand,
)
from support.servers import STAR

Ranks = Callable[..., list[Any]]


@pytest.mark.parametrize("stale", [False, True])
def test_what_is_unfrozen_joins_at_a_server_too(stale: bool, run_exchanges: Ranks) -> None:
    def body(exchange: Exchange) -> list[torch.Tensor]:
        rank = exchange.link.rank
        model = frozen_model(rank)
        if rank == 0:
            optimizer = OPTIMIZERS["momentum"](model.parameters())
            server: Any = (
                StaleServer(model, optimizer, exchange.plan, 0, group=exchange.link) if stale else None
            )
            server = server or Server(model, optimizer, exchange.plan, group=exchange.link)
            for step in range(8):
                unfreeze(model, step)
                server.serve(1)
            return everything(model, optimizer)
        worker = (
            StaleWorker(model, exchange.plan, 0, group=exchange.link)
            if stale
            else Worker(model, exchange.plan, group=exchange.link)
        )
        with worker:
            for step in range(8):
                unfreeze(model, step)
                worker.step(partial(gradually, step, rank - 1, model))
                worker.drain()
        return [each.detach().clone() for each in model.parameters()]

    served, *workers = run_exchanges(3, body, STAR)
    assert_close(served, unfrozen_by_hand("momentum", 2))
    for each in workers:
        assert all(torch.equal(own, master) for own, master in zip(each, served[:6], strict=True))


def test_a_worker_that_unfreezes_between_drains_is_told(run_exchanges: Ranks) -> None:
    def body(exchange: Exchange) -> None:
        model, rank = frozen_model(), exchange.link.rank
        if rank == 0:
            StaleServer(
                model, torch.optim.SGD(model.parameters(), lr=0.1), exchange.plan, 1, group=exchange.link
            ).serve(2)
            return
        with StaleWorker(model, exchange.plan, 1, group=exchange.link) as worker:
            worker.step(lambda: gradually(0, rank, model))
            model.right.requires_grad_(True)
            with pytest.raises(StateError, match=r"unfreeze between drain\(\) and the next step"):
                worker.step(lambda: gradually(1, rank, model))
            model.right.requires_grad_(False)
            worker.step(lambda: gradually(1, rank, model))

    run_exchanges(2, body, STAR)


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("stale", [False, True])
def test_a_server_steps_what_a_worker_has_reached(kind: str, stale: bool, run_exchanges: Ranks) -> None:
    def body(exchange: Exchange) -> list[torch.Tensor] | None:
        model, rank = new_branches(), exchange.link.rank
        if rank == 0:
            optimizer = OPTIMIZERS[kind](model.parameters())
            if stale:
                StaleServer(model, optimizer, exchange.plan, 0, group=exchange.link).serve(STEPS)
            else:
                Server(model, optimizer, exchange.plan, group=exchange.link).serve(STEPS)
            return everything(model, optimizer)
        worker = (
            StaleWorker(model, exchange.plan, 0, group=exchange.link)
            if stale
            else Worker(model, exchange.plan, group=exchange.link)
        )
        with worker:
            for step in range(STEPS):
                worker.step(partial(branch_loss, model, model, step, rank - 1))
        return None

    assert_close(run_exchanges(3, body, STAR)[0], used_by_hand(kind, 1, 2))


def test_a_stale_server_leaves_alone_what_a_worker_has_not_reached(run_exchanges: Ranks) -> None:
    def body(exchange: Exchange) -> tuple[torch.Tensor, float]:
        model, rank = new_branches(), exchange.link.rank
        before = model.right.weight.detach().clone()
        if rank == 0:
            optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
            StaleServer(model, optimizer, exchange.plan, 1, group=exchange.link).serve(4)
            steps = {name: float(optimizer.state[each]["step"]) for name, each in model.named_parameters()}
            assert (steps["left.bias"], steps["right.bias"]) == (8.0, 4.0), "one worker has used the right"
            return model.right.weight - before, steps["trunk.bias"]
        with StaleWorker(model, exchange.plan, 1, group=exchange.link) as worker:
            for step in range(4):
                x = torch.full((2, 4), 1.0 + step)
                worker.step(partial(squares, model, x, 1.0 if rank == 1 else None))
        return model.right.weight - before, 8.0

    for moved, steps in run_exchanges(3, body, STAR):
        assert float(moved.detach().abs().max()) > 0
        assert steps == 8.0
