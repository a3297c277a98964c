"""A pipeline tells of a codec that leaves nothing of the gradients, though it hears of it a step later."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from gradwire import DSync, Ledger, PipeSGD
from gradwire.codecs import parse
from gradwire.errors import LossyError, LossyWarning
from gradwire.exchange import Exchange
from gradwire.plan import Plan
from support.pipes import pipe_sgd

Ranks = Callable[..., list[Any]]
MakeModel = Callable[[], nn.Sequential]
BatchLoss = Callable[[nn.Module, int, slice], Callable[[], torch.Tensor]]
BLIND = Plan(parse("errbound:2^10"), bucket_nbytes=100)


def _pipe(exchange: Exchange, model: nn.Module, **options: Any) -> PipeSGD:
    return pipe_sgd(model, torch.optim.SGD(model.parameters(), lr=0.1), exchange, **options)


@pytest.mark.parametrize("pipeline", [1, 2, 3])
def test_strict_ranks_stop_after_the_same_step(
    pipeline: int, run_exchanges: Ranks, make_model: MakeModel, batch_loss: BatchLoss
) -> None:
    def body(exchange: Exchange) -> tuple[int, str]:
        model, rank = make_model(), exchange.link.rank
        method = _pipe(exchange, model, pipeline=pipeline, strict=True)
        batches = [batch_loss(model, t, slice(rank, rank + 1)) for t in range(12)]
        with pytest.raises(LossyError) as caught:
            list(map(method.step, batches))
        method.close()
        return method.steps_done, str(caught.value)

    results = run_exchanges(3, body, BLIND)
    assert len(set(results)) == 1
    steps, text = results[0]
    assert steps == 8 + pipeline, "the third sample is step 8's, whose average is waited for K steps later"
    assert "errbound:2^10 loses 100.0% of the gradient norm" in text


def test_each_rank_warns_once_for_an_optimizers_group_and_tells_its_ledger(
    run_exchanges: Ranks, make_model: MakeModel, batch_loss: BatchLoss
) -> None:
    def body(exchange: Exchange) -> str:
        model, rank = make_model(), exchange.link.rank
        ledger = Ledger(rank)
        with _pipe(exchange, model, ledger=ledger) as method:
            for t in range(12):
                method.step(batch_loss(model, t, slice(rank, rank + 1)))
        return str(ledger.summary())

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        summaries = run_exchanges(2, body, BLIND)
    told = [str(each.message) for each in seen if each.category is LossyWarning]
    assert sorted(text[:6] for text in told) == ["rank 0", "rank 1"]
    assert all("errbound:2^10 loses 100.0%" in text for text in summaries)


@pytest.mark.parametrize("bucket_nbytes", [None, 100])
def test_parameters_with_codecs_of_their_own_train_as_without_a_pipeline(
    bucket_nbytes: int | None, run_exchanges: Ranks, make_model: MakeModel, batch_loss: BatchLoss
) -> None:
    rules = [{"match": "bias", "codec": "identity"}, {"match": "^0", "codec": "quantize:4"}]
    plan = Plan(parse("fp8"), pipeline=1, bucket_nbytes=bucket_nbytes, codecs=rules)

    def body(exchange: Exchange) -> list[torch.Tensor]:
        models, rank = [make_model() for _ in range(2)], exchange.link.rank
        for make, model in zip((PipeSGD, DSync), models, strict=True):
            with make(
                model, torch.optim.SGD(model.parameters(), lr=0.1), plan, group=exchange.link
            ) as method:
                for t in range(4):
                    method.step(batch_loss(model, t, slice(rank, rank + 1)))
        return [nn.utils.parameters_to_vector(model.parameters()).detach() for model in models]

    results = run_exchanges(3, body)
    assert all(torch.equal(weights, results[0][0]) for result in results for weights in result)
