from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from gradwire import DSync, Ledger
from gradwire.codecs import Identity, parse
from gradwire.errors import SpecError
from gradwire.exchange import Exchange
from gradwire.links.loopback import loopback
from gradwire.plan import Plan
from gradwire.sync.ledger.counts import StepRecord
from gradwire_lab.parameter_server.ps_sync import Server, Worker, star_of

Ranks = Callable[..., list[Any]]
MakeModel = Callable[[], nn.Sequential]
BatchLoss = Callable[[nn.Module, int, slice], Callable[[], torch.Tensor]]
STAR = Plan(algorithm="star")
MOMENTUM: dict[str, Any] = {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-2}


def _flat(model: nn.Module) -> torch.Tensor:
    return nn.utils.parameters_to_vector(model.parameters()).detach().clone()


def _train(
    exchange: Exchange, model: nn.Module, batch_loss: BatchLoss, steps: int, weight_spec: str = "identity"
) -> list[torch.Tensor]:
    """Return the weights after every step, of the server or of a worker."""
    rank, codec = exchange.link.rank, parse(weight_spec)
    after = []
    if rank == 0:
        server = Server(
            model, torch.optim.SGD(model.parameters(), **MOMENTUM), exchange.plan, codec, group=exchange.link
        )
        for _ in range(steps):
            server.step()
            after.append(_flat(model))
        return after
    with Worker(model, exchange.plan, codec, group=exchange.link) as worker:
        for t in range(steps):
            worker.step(batch_loss(model, t, slice(rank - 1, rank)))
            after.append(_flat(model))
    return after


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_equals_d_sync_of_the_workers(
    workers: int, run_exchanges: Ranks, make_model: MakeModel, batch_loss: BatchLoss
) -> None:
    def synchronous(exchange: Exchange) -> torch.Tensor:
        model, rank = make_model(), exchange.link.rank
        method = DSync(
            model, torch.optim.SGD(model.parameters(), **MOMENTUM), exchange.plan, group=exchange.link
        )
        for t in range(8):
            method.step(batch_loss(model, t, slice(rank, rank + 1)))
        return _flat(model)

    plain = run_exchanges(workers, synchronous)
    served = run_exchanges(workers + 1, lambda e: _train(e, make_model(), batch_loss, 8), STAR)
    assert (plain[0] - _flat(make_model())).abs().max() > 0.05
    torch.testing.assert_close(served[0][-1], plain[0], rtol=1e-5, atol=1e-6)
    assert all(torch.equal(torch.stack(after), torch.stack(served[0])) for after in served)


@pytest.mark.parametrize("gradient_spec", ["identity", "errbound:2^-10", "terngrad"])
@pytest.mark.parametrize("weight_spec", ["identity", "bitpack:2", "quantize:8"])
def test_lossy_both_ways_leaves_all_workers_with_the_same_bits(
    gradient_spec: str, weight_spec: str, run_exchanges: Ranks, make_model: MakeModel, batch_loss: BatchLoss
) -> None:
    plan = Plan(codec=parse(gradient_spec), algorithm="star")
    master, *workers = run_exchanges(4, lambda e: _train(e, make_model(), batch_loss, 5, weight_spec), plan)
    codec = parse(weight_spec)
    for t in range(5):
        decoded = torch.empty_like(master[t])
        codec.decode(codec.encode(master[t]), decoded)
        assert all(torch.equal(after[t], decoded) for after in workers)
        assert torch.equal(decoded, master[t]) == isinstance(codec, Identity)


def test_the_master_weights_do_not_see_the_weight_codec(run_exchanges: Ranks) -> None:
    """A gradient of 2^-14 is lost in two-byte weights, but sixteen of them arrive at the master."""

    def body(exchange: Exchange) -> torch.Tensor:
        model = nn.Linear(3, 1, bias=False)
        nn.init.ones_(model.weight)
        codec = parse("bitpack:2")
        if exchange.link.rank == 0:
            Server(
                model, torch.optim.SGD(model.parameters(), lr=1.0), exchange.plan, codec, group=exchange.link
            ).serve(16)
        else:
            worker = Worker(model, exchange.plan, codec, group=exchange.link)
            for _ in range(16):
                worker.step(lambda: model.weight.sum() * -(2.0**-14))
        return model.weight.detach().flatten()

    master, worker = run_exchanges(2, body, STAR)
    assert torch.equal(master, torch.full((3,), 1 + 16 * 2.0**-14))
    assert torch.equal(worker, torch.ones(3))


def test_frozen_parameters_are_sent_once_and_never_change(
    run_exchanges: Ranks, make_model: MakeModel, batch_loss: BatchLoss
) -> None:
    def body(exchange: Exchange) -> tuple[torch.Tensor, torch.Tensor]:
        model = make_model()
        frozen = next(model.parameters()).requires_grad_(False)
        with torch.no_grad():
            frozen.add_(exchange.link.rank)
        _train(exchange, model, batch_loss, 3, "quantize:8")
        return frozen.detach().clone(), _flat(model)

    origin = next(make_model().parameters()).detach()
    results = run_exchanges(3, body, STAR)
    assert all(torch.equal(frozen, origin) for frozen, _ in results)
    assert torch.equal(results[1][1], results[2][1])
    assert not torch.equal(results[1][1], _flat(make_model()))


def test_records_count_gradients_up_and_weights_down(
    run_exchanges: Ranks, make_model: MakeModel, batch_loss: BatchLoss
) -> None:
    def body(exchange: Exchange) -> StepRecord:
        model, rank = make_model(), exchange.link.rank
        if rank == 0:
            server = Server(
                model, torch.optim.SGD(model.parameters(), lr=0.1), exchange.plan, group=exchange.link
            )
            server.synchronise()
            return server.serve(4)
        worker = Worker(model, exchange.plan, group=exchange.link)
        worker.synchronise()
        total = StepRecord()
        for t in range(4):
            total += worker.step(batch_loss(model, t, slice(rank - 1, rank)))
        return total

    n = sum(parameter.numel() for parameter in make_model().parameters())
    server, *workers = run_exchanges(3, body, STAR)
    assert server.cost.raw_nbytes == 4 * 2 * 4 * n
    assert server.cost.wire_nbytes == 4 * 2 * (4 * n + 32)
    assert server.steps == 4
    assert server.loss != server.loss
    for worker in workers:
        assert worker.cost.raw_nbytes == 4 * 4 * n
        told = 4 * len(list(make_model().parameters())) + 32  # which parameters were reached
        assert worker.cost.wire_nbytes == 4 * (4 * n + 32 + told)
        assert 0 < worker.loss < 10


def test_roles_and_algorithm_are_checked(make_model: MakeModel) -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    first, second = loopback(2)
    (alone,) = loopback(1)
    with pytest.raises(SpecError, match="got rank 1; create a Worker on this rank"):
        Server(model, optimizer, STAR, group=second)
    with pytest.raises(SpecError, match="create a Server on rank 0"):
        Worker(model, STAR, group=first)
    with pytest.raises(SpecError, match="'ring' and 2 ranks"):
        Server(model, optimizer, Plan(), group=first)
    with pytest.raises(SpecError, match="'star' and 1 ranks"):
        Server(model, optimizer, STAR, group=alone)


def test_ledgers_count_gradients_up_and_weights_down(
    run_exchanges: Ranks, make_model: MakeModel, batch_loss: BatchLoss
) -> None:
    def body(exchange: Exchange) -> Ledger:
        model, rank, ledger = make_model(), exchange.link.rank, Ledger(exchange.link.rank)
        if rank == 0:
            Server(
                model,
                torch.optim.SGD(model.parameters(), lr=0.1),
                exchange.plan,
                ledger=ledger,
                group=exchange.link,
            ).serve(4)
            return ledger
        with Worker(model, exchange.plan, ledger=ledger, group=exchange.link) as worker:
            for t in range(4):
                worker.step(batch_loss(model, t, slice(rank - 1, rank)))
        return ledger

    nbytes = 4 * sum(parameter.numel() for parameter in make_model().parameters())
    server, *workers = (ledger.summary() for ledger in run_exchanges(3, body, STAR))
    assert server.buckets["gradient"].cost.raw_nbytes == 0
    assert (
        server.buckets["weights"].cost.raw_nbytes == (1 + 4) * 2 * nbytes
    )  # first of all, then after each step
    for each in (server, *workers):
        assert each.steps == 4
        assert each.buckets["gradient"].gradient_nbytes == 4 * nbytes
        assert each.buckets["weights"].gradient_nbytes == 0
    for worker in workers:
        assert worker.buckets["gradient"].cost.wire_nbytes == 4 * (nbytes + 32)
        assert worker.buckets["weights"].cost.raw_nbytes == 0


def test_a_parameter_server_encodes_on_the_host() -> None:
    with pytest.raises(
        SpecError,
        match="a parameter server: expected a plan with encode_on='host', got 'device'; change encode_on",
    ):
        star_of(Plan(parse("fp8"), "star", encode_on="device"))
