"""Weights that come down as what changed: workers hold the server's, bit for bit, or rounded where asked."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from gradwire import Ledger
from gradwire.codecs import parse
from gradwire.errors import ExchangeError, SpecError
from gradwire.exchange import Exchange
from gradwire.links import Link
from gradwire.plan import Plan
from gradwire.sync.replicas.deltas import LARGER
from gradwire_lab.parameter_server.ps_sync import Server, Worker
from gradwire_lab.parameter_server.stale_server import StaleServer
from gradwire_lab.parameter_server.stale_worker import StaleWorker

Ranks = Callable[..., list[Any]]
MakeModel = Callable[[], nn.Sequential]
BatchLoss = Callable[[nn.Module, int, slice], Callable[[], torch.Tensor]]
STEPS = 6
SPECS = ("identity", "delta:fp32", "delta:bf16")


def flat(model: nn.Module) -> torch.Tensor:
    return nn.utils.parameters_to_vector(model.parameters()).detach().clone()


def adam(model: nn.Module, lr: float = 1e-2) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=lr)


def train(
    exchange: Exchange, model: nn.Module, loss: BatchLoss, spec: str, stale: bool = False, steps: int = STEPS
) -> list[torch.Tensor]:
    """Return the weights after every step; those of a stale server at its end only."""
    link, plan, rank = exchange.link, exchange.plan, exchange.link.rank
    if rank == 0 and stale:
        StaleServer(model, adam(model), plan, 0, spec, group=link).serve(steps)
        return [flat(model)]
    after = []
    if rank == 0:
        server = Server(model, adam(model), plan, spec, group=link)
        for _ in range(steps):
            server.step()
            after.append(flat(model))
        return after
    made = StaleWorker(model, plan, 0, spec, group=link) if stale else Worker(model, plan, spec, group=link)
    with made as worker:
        for t in range(steps):
            worker.step(loss(model, t, slice(rank - 1, rank)))
            after.append(flat(model))
    return after


@pytest.mark.parametrize("stale", [False, True])
@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("gradients", ["identity", "quantize:8"])
def test_exact_deltas_train_as_whole_copies_bit_for_bit(
    gradients: str,
    workers: int,
    stale: bool,
    run_exchanges: Ranks,
    make_model: MakeModel,
    batch_loss: BatchLoss,
) -> None:
    plan = Plan(parse(gradients), "star")

    def trained(spec: str) -> list[list[torch.Tensor]]:
        return run_exchanges(workers + 1, lambda e: train(e, make_model(), batch_loss, spec, stale), plan)

    for plain, found in zip(trained("identity"), trained("delta:fp32"), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(plain, found, strict=True))
    assert not torch.equal(plain[0], plain[-1])


@pytest.mark.parametrize("stale", [False, True])
def test_rounded_deltas_leave_the_server_exact_and_all_workers_equal(
    stale: bool, run_exchanges: Ranks, make_model: MakeModel, batch_loss: BatchLoss
) -> None:
    plan = Plan(parse("quantize:8"), "star")
    master, *workers = run_exchanges(
        4, lambda e: train(e, make_model(), batch_loss, "delta:bf16", stale), plan
    )
    for after in workers:
        assert all(torch.equal(a, b) for a, b in zip(after, workers[0], strict=True))
    assert torch.equal(workers[0][-1], master[-1].bfloat16().float())
    assert not torch.equal(workers[0][-1], master[-1]), "the server's are finer"


def test_bytes_down_are_few_where_the_learning_rate_is_small(run_exchanges: Ranks) -> None:
    def sent(exchange: Exchange, spec: str) -> int:
        model = nn.Linear(200, 200)
        nn.init.uniform_(model.weight, 0.5, 1.0)
        link, ledger = exchange.link, Ledger(exchange.link.rank)
        if link.rank > 0:
            with Worker(model, exchange.plan, spec, group=link) as worker:
                for _ in range(4):
                    worker.step(lambda: model(torch.ones(2, 200)).square().mean())
            return 0
        server = Server(model, adam(model, 1e-6), exchange.plan, spec, group=link, ledger=ledger)
        server.serve(1)  # begins with whole copies
        before = ledger.summary().buckets["weights"].cost.wire_nbytes
        server.serve(3)
        return int(ledger.summary().buckets["weights"].cost.wire_nbytes - before)

    plan = Plan(algorithm="star")
    whole, exact, rounded = (run_exchanges(3, lambda e, s=spec: sent(e, s), plan)[0] for spec in SPECS)
    assert whole > 3 * 2 * 4 * 200 * 200
    assert exact < whole / 3
    assert rounded < whole / 50


def test_copies_that_are_no_larger_than_deltas_are_counted(run_exchanges: Ranks) -> None:
    def body(exchange: Exchange) -> tuple[int, int]:
        model, link, ledger = nn.Linear(50, 50, bias=False), exchange.link, Ledger(exchange.link.rank)
        if link.rank > 0:
            with Worker(model, exchange.plan, "delta:fp32", group=link) as worker:
                for _ in range(3):
                    worker.step(lambda: (model.weight * 0).sum())
            return 0, 0
        optimizer, generator = torch.optim.SGD(model.parameters(), lr=0.1), torch.Generator().manual_seed(0)
        server = Server(model, optimizer, exchange.plan, "delta:fp32", group=link, ledger=ledger)
        for _ in range(3):
            bits = torch.randint(-(1 << 31), 1 << 31, (50, 50), generator=generator).to(torch.int32)
            with torch.no_grad():
                model.weight.copy_(bits.view(torch.float32))
            server.step()
        assert ledger.summary().buckets["weights"].cost.wire_nbytes < 4 * (4 * 2500 + 100)
        bypass = ledger.summary().bypasses[LARGER]
        return bypass.count, bypass.nbytes

    assert run_exchanges(2, body, Plan(algorithm="star"))[0] == (2, 2 * 4 * 2500)


@pytest.mark.parametrize("spec", ["delta:fp32", "delta:bf16"])
def test_a_run_that_was_interrupted_goes_on_bit_for_bit(
    spec: str, run_exchanges: Ranks, make_model: MakeModel, batch_loss: BatchLoss
) -> None:
    """All ranks begin anew, hold nothing then, and get a full copy."""

    def resumed(exchange: Exchange) -> list[torch.Tensor]:
        link, rank, model = exchange.link, exchange.link.rank, make_model()
        saved: Any = None
        for t in range(STEPS):
            if t in (0, 3):
                if rank == 0:
                    optimizer = adam(model)
                    method: Any = Server(model, optimizer, exchange.plan, spec, group=link)
                else:
                    method = Worker(model, exchange.plan, spec, group=link)
                if saved is not None:
                    model.load_state_dict(saved[0])
                    method.load_state_dict(saved[1])
                    if rank == 0:
                        optimizer.load_state_dict(saved[2])
            if rank == 0:
                method.step()
                saved = copy.deepcopy((model.state_dict(), method.state_dict(), optimizer.state_dict()))
            else:
                method.step(batch_loss(model, t, slice(rank - 1, rank)))
                saved = copy.deepcopy((model.state_dict(), method.state_dict()))
        return [flat(model)]

    plan = Plan(parse("quantize:8"), "star")
    straight = run_exchanges(3, lambda e: train(e, make_model(), batch_loss, spec), plan)
    for one, other in zip(straight, run_exchanges(3, resumed, plan), strict=True):
        assert torch.equal(one[-1], other[-1])


@pytest.mark.parametrize("spec", ["delta:fp32", "delta:bf16"])
def test_bounded_staleness_goes_on_bit_for_bit(
    spec: str, run_exchanges: Ranks, make_model: MakeModel, batch_loss: BatchLoss
) -> None:
    def body(exchange: Exchange, anew: bool) -> torch.Tensor:
        link, rank = exchange.link, exchange.link.rank

        def make() -> tuple[nn.Sequential, Any]:
            model = make_model()
            if rank == 0:
                return model, StaleServer(model, adam(model), exchange.plan, 0, spec, group=link)
            return model, StaleWorker(model, exchange.plan, 0, spec, group=link)

        model, method = make()
        for first in (0, 3):
            if first and anew:
                state = copy.deepcopy(method.state_dict())
                model, method = make()
                method.load_state_dict(state)
            if rank == 0:
                method.serve(3)
            else:
                for t in range(first, first + 3):
                    method.step(batch_loss(model, t, slice(rank - 1, rank)))
                method.drain()
        return flat(model)

    plan = Plan(parse("quantize:8"), "star")
    straight = run_exchanges(3, lambda e: body(e, anew=False), plan)
    for one, other in zip(straight, run_exchanges(3, lambda e: body(e, anew=True), plan), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("stale", [False, True])
def test_parameters_that_join_are_sent_whole(
    stale: bool, run_exchanges: Ranks, make_model: MakeModel, batch_loss: BatchLoss
) -> None:
    def body(exchange: Exchange, spec: str) -> torch.Tensor:
        model, link, rank = make_model(), exchange.link, exchange.link.rank
        frozen = next(model.parameters()).requires_grad_(False)
        plan: Any = (exchange.plan, 0, spec) if stale else (exchange.plan, spec)
        if rank == 0:
            server: Any = (StaleServer if stale else Server)(model, adam(model), *plan, group=link)
            server.serve(2)
            frozen.requires_grad_(True)
            server.serve(2)
            return flat(model)
        worker: Any = (StaleWorker if stale else Worker)(model, *plan, group=link)
        for t in range(4):
            if t == 2:
                worker.drain()
                frozen.requires_grad_(True)
            worker.step(batch_loss(model, t, slice(rank - 1, rank)))
        worker.drain()
        return flat(model)

    star = Plan(algorithm="star")
    plain = run_exchanges(3, lambda e: body(e, "identity"), star)
    for one, other in zip(plain, run_exchanges(3, lambda e: body(e, "delta:fp32"), star), strict=True):
        assert torch.equal(one, other)


def test_ranks_that_name_other_codecs_fail_at_the_first_step(
    run_exchanges: Ranks, make_model: MakeModel, batch_loss: BatchLoss
) -> None:
    def body(exchange: Exchange) -> None:
        spec = ("delta:fp32", "delta:bf16")[exchange.link.rank]
        with pytest.raises(ExchangeError, match=r"codec|closed|lost|gone|ended"):
            train(exchange, make_model(), batch_loss, spec)

    run_exchanges(2, body, Plan(algorithm="star"))


def test_what_does_not_fit_is_refused(run_exchanges: Ranks, make_model: MakeModel) -> None:
    def body(exchange: Exchange) -> None:
        link: Link = exchange.link
        if link.rank == 0:
            return
        for plan, spec, reason in (
            (
                Plan(algorithm="star"),
                "delta",
                "delta: expected the receivers' format, fp32 or bf16, got ''",
            ),
            (Plan(parse("quantize:4"), "star", 1 << 26), "delta:fp32", "choose a smaller segment_nbytes"),
            (
                Plan(exchange="sharded"),
                "delta:fp32",
                "a parameter server: expected a plan with exchange=",
            ),
        ):
            with pytest.raises(SpecError, match=reason):
                Worker(make_model(), plan, spec, group=link)

    run_exchanges(2, body, Plan(algorithm="star"))
