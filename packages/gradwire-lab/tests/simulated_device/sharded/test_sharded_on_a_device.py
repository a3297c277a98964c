from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch

from gradwire import Sharded
from gradwire.exchange import Exchange
from gradwire_lab.simulated_device.kernels import Kernels
from gradwire_lab.simulated_device.simulated import Simulated
from support.sharded_ranks import adamw, bits, make_model


def test_it_waits_for_the_weights_of_a_device(run_exchanges: Callable[..., list[Any]]) -> None:
    def body(exchange: Exchange, device: Simulated | None) -> torch.Tensor:
        model, x = make_model(), torch.ones(8, 6)
        if device is not None:
            device.adopt(model)
            device.own(x)
        optimizer, kernels = adamw(model), nullcontext() if device is None else Kernels(device)
        with kernels, Sharded(model, optimizer, exchange.plan, group=exchange.link) as method:
            for _ in range(3):
                method.step(lambda: model(x).square().mean())
        if device is not None:
            device.synchronize()
        return bits(model)

    plain = run_exchanges(2, lambda exchange: body(exchange, None))
    for found in run_exchanges(2, lambda exchange: body(exchange, Simulated())):
        assert torch.equal(found, plain[0])
