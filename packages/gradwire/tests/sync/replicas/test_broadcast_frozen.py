"""A frozen base keeps its dtype, as with QLoRA: rank 0's bytes go to all ranks, and adapters are trained."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import Parameter

import gradwire
from gradwire import DSync
from gradwire.errors import TensorError
from gradwire.exchange import Exchange
from gradwire.sync.replicas.broadcast import broadcast_weights
from support.methods import METHODS, TrainingMethod

Ranks = Callable[..., list[Any]]
DTYPES = (torch.bfloat16, torch.float16, torch.float64, torch.complex64, torch.int8, torch.uint8, torch.bool)


class Adapted(nn.Module):
    """A base in bfloat16, one in bytes with a scale, other frozen dtypes, and an adapter in float32."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(rank)
        self.base = Parameter(torch.randn(3, 6, generator=draw).bfloat16(), requires_grad=False)
        self.packed = Parameter(
            torch.randint(256, (6, 5), dtype=torch.uint8, generator=draw), requires_grad=False
        )
        self.down, self.up = nn.Linear(3, 2, bias=False), nn.Linear(2, 5)
        self.others = nn.ParameterList(
            Parameter(torch.full((3,), rank + 1).to(dtype), requires_grad=False) for dtype in DTYPES
        )
        self.empty = Parameter(torch.empty(0, dtype=torch.uint8), requires_grad=False)
        self.strided = Parameter(torch.randn(10, generator=draw)[::5][:1], requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        held = (x.bfloat16() @ self.base).float() @ (self.packed.float() / 128 - 1)
        out: torch.Tensor = held + self.up(self.down(x))
        return out


def _frozen(model: nn.Module) -> list[torch.Tensor]:
    return [each.detach().clone() for each in model.parameters() if not each.requires_grad]


def _loss(model: nn.Module, rank: int, step: int) -> torch.Tensor:
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(100 * step + rank))
    out: torch.Tensor = model(x)
    return out.square().mean()


@pytest.fixture(params=METHODS.values(), ids=list(METHODS))
def method(request: pytest.FixtureRequest) -> TrainingMethod:
    found: TrainingMethod = request.param
    return found


def _made(method: TrainingMethod, model: nn.Module, exchange: Exchange) -> Any:
    optimizer = torch.optim.SGD([each for each in model.parameters() if each.requires_grad], lr=0.1)
    return method.make(model, optimizer, exchange.plan, exchange.link)


def test_a_frozen_base_travels_as_bytes_and_keeps_its_dtype(
    method: TrainingMethod, run_exchanges: Ranks
) -> None:
    def body(exchange: Exchange) -> list[torch.Tensor]:
        rank, model = exchange.link.rank, Adapted(exchange.link.rank)
        made = _made(method, model, exchange)
        if hasattr(made, "serve"):
            made.serve(2)
        else:
            with made:
                for step in range(2):
                    made.step(lambda step=step: _loss(model, rank, step))
                if hasattr(made, "check_replicas"):
                    made.check_replicas()
        return [*_frozen(model), *(each.detach() for each in model.up.parameters())]

    wanted = _frozen(Adapted(0))
    results = run_exchanges(3, body, method.plan)
    for found in results:
        for own, right in zip(found, wanted, strict=False):
            assert own.dtype == right.dtype
            assert torch.equal(own, right)
        if method.plan.algorithm != "star":  # all ranks are replicas
            assert all(map(torch.equal, found, results[0]))


def test_adapters_get_the_bits_of_plain_training(run_exchanges: Ranks) -> None:
    plain = Adapted(0)
    trained = copy.deepcopy(plain)
    optimizer = torch.optim.SGD([each for each in plain.parameters() if each.requires_grad], lr=0.1)

    def body(exchange: Exchange) -> None:
        with _made(METHODS["d-sync"], trained, exchange) as method:
            for step in range(3):
                method.step(lambda step=step: _loss(trained, 0, step))

    run_exchanges(1, body)
    for step in range(3):
        optimizer.zero_grad()
        torch.autograd.backward(_loss(plain, 0, step))
        optimizer.step()
    assert all(map(torch.equal, trained.parameters(), plain.parameters()))


def test_what_has_no_bytes_to_send_is_refused(run_exchanges: Ranks) -> None:
    def body(exchange: Exchange) -> None:
        model = nn.Module()
        model.trained = Parameter(torch.ones(2))
        model.frozen = Parameter(torch.ones(2, device="meta"), requires_grad=False)
        with pytest.raises(TensorError, match="expected frozen parameters that are dense tensors"):
            broadcast_weights(model, exchange)

    run_exchanges(1, body)


@pytest.mark.parametrize(
    ("dtype", "advice"),
    [
        (torch.bfloat16, "convert trained parameters with .float.., and freeze all other parameters"),
        (torch.complex64, "train the model with DistributedDataParallel and gradwire.attach"),
    ],
)
def test_a_trained_parameter_of_another_dtype_is_refused_with_advice_that_spoils_no_base(
    dtype: torch.dtype, advice: str
) -> None:
    model = nn.ParameterList([Parameter(torch.ones(2, dtype=dtype))])
    with pytest.raises(TensorError, match=f"expected trained parameters that are dense float32 .*; {advice}"):
        DSync(model, torch.optim.SGD(model.parameters(), lr=0.1), group=gradwire.loopback(1)[0])
