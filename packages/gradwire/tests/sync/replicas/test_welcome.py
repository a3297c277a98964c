"""Parameters that join are the same ones on all ranks; ``test_unfrozen`` trains with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from gradwire import DSync
from gradwire.codecs import parse
from gradwire.errors import ExchangeError
from gradwire.exchange import Exchange
from gradwire.plan import Plan


@pytest.mark.parametrize("spec", ["identity", "fp8"])
def test_a_rank_that_unfreezes_alone_is_told_so(run_exchanges: Callable[..., list[Any]], spec: str) -> None:
    def body(exchange: Exchange) -> str:
        model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
        model[0].requires_grad_(False)
        method = DSync(model, torch.optim.SGD(model.parameters(), lr=0.1), exchange.plan, group=exchange.link)
        method.step(lambda: model(torch.ones(2, 3)).square().mean())
        model[0].requires_grad_(exchange.link.rank == 1)
        with pytest.raises(ExchangeError) as caught:
            method.step(lambda: model(torch.ones(2, 3)).square().mean())
        method.abort()
        return str(caught.value)

    _, alone = run_exchanges(2, body, Plan(parse(spec)))
    assert alone.startswith(
        "rank 1: 2 parameters were unfrozen on this rank, but the comparison with the other ranks failed ("
    )
    assert alone.endswith("; unfreeze the same parameters on all ranks, before the same step")
