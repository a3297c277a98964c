from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from gradwire import DSync
from gradwire.codecs import parse
from gradwire.errors import ExchangeError, SpecError
from gradwire.exchange import Exchange
from gradwire.plan import Plan
from gradwire.sync.ledger.counts import StepRecord
from support.mixed import exact_mean, is_bf16_mean

Ranks = Callable[..., list[Any]]
MakeModel = Callable[[], nn.Sequential]
BatchLoss = Callable[[nn.Module, int, slice], Callable[[], torch.Tensor]]

OPTIMIZERS: list[tuple[type[torch.optim.Optimizer], dict[str, Any]]] = [
    (torch.optim.SGD, {"lr": 0.1}),
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-2}),
    (torch.optim.AdamW, {"lr": 1e-2}),
]


def _flat(model: nn.Module) -> torch.Tensor:
    return nn.utils.parameters_to_vector(model.parameters()).detach().clone()


@pytest.mark.parametrize("world", [1, 2, 3, 4])
@pytest.mark.parametrize(("optimizer", "options"), OPTIMIZERS)
def test_equals_one_process_on_the_whole_batch(
    world: int,
    optimizer: Any,
    options: dict[str, Any],
    run_exchanges: Ranks,
    make_model: MakeModel,
    batch_loss: BatchLoss,
) -> None:
    def body(exchange: Exchange) -> torch.Tensor:
        model, rank = make_model(), exchange.link.rank
        with DSync(
            model, optimizer(model.parameters(), **options), exchange.plan, group=exchange.link
        ) as method:
            for t in range(8):
                method.step(batch_loss(model, t, slice(rank, rank + 1)))
        return _flat(model)

    exact = make_model().double()
    single = optimizer(exact.parameters(), **options)
    for t in range(8):
        single.zero_grad()
        torch.autograd.backward(batch_loss(exact, t, slice(0, world))())
        single.step()
    results = run_exchanges(world, body)
    torch.testing.assert_close(results[0].double(), _flat(exact), rtol=1e-4, atol=1e-5)
    assert (results[0] - _flat(make_model())).abs().max() > 0.05
    assert all(torch.equal(result, results[0]) for result in results)


@pytest.mark.parametrize("spec", ["errbound:2^-10", "quantize:8", "truncate:16", "terngrad"])
@pytest.mark.parametrize("algorithm", ["ring", "star"])
def test_lossy_codecs_leave_all_ranks_with_the_same_bits(
    spec: str, algorithm: str, run_exchanges: Ranks, make_model: MakeModel, batch_loss: BatchLoss
) -> None:
    def body(exchange: Exchange) -> torch.Tensor:
        model, rank = make_model(), exchange.link.rank
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        with DSync(model, optimizer, exchange.plan, group=exchange.link) as method:
            for t in range(6):
                method.step(batch_loss(model, t, slice(rank, rank + 1)))
        return _flat(model)

    lossy = run_exchanges(3, body, Plan(codec=parse(spec), algorithm=algorithm))
    plain = run_exchanges(3, body, Plan(algorithm=algorithm))
    assert all(torch.equal(result, lossy[0]) for result in lossy)
    assert not torch.equal(lossy[0], plain[0]), "the codec took no part"


def test_replicas_begin_with_the_weights_of_rank_0(
    run_exchanges: Ranks, make_model: MakeModel, batch_loss: BatchLoss
) -> None:
    def body(exchange: Exchange) -> tuple[torch.Tensor, torch.Tensor, StepRecord]:
        model, rank = make_model(), exchange.link.rank
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(rank)
        next(model.parameters()).requires_grad_(False)
        method = DSync(model, torch.optim.SGD(model.parameters(), lr=0.1), exchange.plan, group=exchange.link)
        record = method.synchronise()
        began = _flat(model)
        method.step(batch_loss(model, 0, slice(rank, rank + 1)))
        return began, _flat(model), record

    results = run_exchanges(3, body, Plan(codec=parse("quantize:4")))
    origin = _flat(make_model())
    assert all(torch.equal(began, origin) for began, _, _ in results)
    assert all(torch.equal(after, results[0][1]) for _, after, _ in results)
    assert results[0][2].cost.raw_nbytes >= 4 * origin.numel()
    assert all(record.steps == 0 for _, _, record in results)


def test_the_first_step_synchronises_by_itself(
    run_exchanges: Ranks, make_model: MakeModel, batch_loss: BatchLoss
) -> None:
    def body(exchange: Exchange) -> torch.Tensor:
        model, rank = make_model(), exchange.link.rank
        with torch.no_grad():
            next(model.parameters()).mul_(1 + rank)
        method = DSync(model, torch.optim.SGD(model.parameters(), lr=0.1), exchange.plan, group=exchange.link)
        for t in range(2):
            method.step(batch_loss(model, t, slice(rank, rank + 1)))
        return _flat(model)

    results = run_exchanges(2, body)
    assert torch.equal(results[0], results[1])


def test_the_record_counts_bytes_and_the_local_loss(
    run_exchanges: Ranks, make_model: MakeModel, batch_loss: BatchLoss
) -> None:
    def body(exchange: Exchange) -> tuple[StepRecord, float]:
        model, rank = make_model(), exchange.link.rank
        loss = batch_loss(model, 0, slice(rank, rank + 1))
        method = DSync(model, torch.optim.SGD(model.parameters(), lr=0.1), exchange.plan, group=exchange.link)
        method.synchronise()
        return method.step(loss), loss().item()

    model = make_model()
    before = [batch_loss(model, 0, slice(rank, rank + 1))().item() for rank in range(2)]
    n = sum(p.numel() for p in model.parameters())
    for rank, (record, after) in enumerate(run_exchanges(2, body)):
        assert record.loss == pytest.approx(before[rank])
        assert after < record.loss
        assert record.steps == 1
        assert 4 * (n - 1) <= record.cost.raw_nbytes <= 4 * (n + 1)  # ring of 2: a half up, a half down
        assert record.cost.wire_nbytes == record.cost.raw_nbytes + 2 * 32  # two frames, a header each
        assert record.cost.total_s == pytest.approx(record.wait_s)


def test_a_closed_method_refuses_to_step(make_model: MakeModel, run_exchanges: Ranks) -> None:
    def body(exchange: Exchange) -> None:
        model = make_model()
        method = DSync(model, torch.optim.SGD(model.parameters(), lr=0.1), exchange.plan, group=exchange.link)
        method.close()
        method.close()
        with pytest.raises(ExchangeError, match="rank 0: this DSync is closed"):
            method.step(lambda: model(torch.ones(1, 5)).sum())

    run_exchanges(1, body)


@pytest.mark.parametrize("bucket_nbytes", [None, 100, 4 * 50])
def test_every_parameter_goes_through_its_own_codec(
    bucket_nbytes: int | None, run_exchanges: Ranks, make_model: MakeModel, batch_loss: BatchLoss
) -> None:
    rules = [{"match": "bias$", "codec": "identity"}]
    plan = Plan(parse("bf16"), bucket_nbytes=bucket_nbytes, codecs=rules)

    def gradient(rank: int) -> dict[str, torch.Tensor]:
        model = make_model()
        torch.autograd.backward(batch_loss(model, 0, slice(rank, rank + 1))())
        return {name: each.grad for name, each in model.named_parameters() if each.grad is not None}

    def body(exchange: Exchange) -> dict[str, torch.Tensor]:
        model, rank = make_model(), exchange.link.rank
        sgd = torch.optim.SGD(model.parameters(), lr=0.0)
        with DSync(model, sgd, plan, group=exchange.link) as method:
            method.step(batch_loss(model, 0, slice(rank, rank + 1)))
            return {
                name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None
            }

    own, results = [gradient(rank) for rank in range(2)], run_exchanges(2, body)
    assert all(torch.equal(results[0][name], results[1][name]) for name in results[0])
    for name, average in results[0].items():
        exact = exact_mean(own[0][name], own[1][name])
        if name.endswith("bias"):
            assert torch.equal(average, exact)
        else:
            assert is_bf16_mean(average, own[0][name], own[1][name])
            assert not torch.equal(average, exact)


def test_a_codec_for_parameters_that_the_model_has_not_is_refused(
    run_exchanges: Ranks, make_model: MakeModel
) -> None:
    def body(exchange: Exchange) -> None:
        model = make_model()
        plan = Plan(codecs=[{"match": "embedding", "codec": "fp8"}])
        with pytest.raises(SpecError, match=r"rule 'embedding' \(fp8\): .* got none"):
            DSync(model, torch.optim.SGD(model.parameters(), lr=0.1), plan, group=exchange.link)

    run_exchanges(1, body)
