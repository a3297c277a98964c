from __future__ import annotations

import torch
from torch.autograd import Variable

from gradwire.profile.ddp import after_backward


def test_it_comes_after_all_that_others_queue() -> None:
    order: list[str] = []
    weight = torch.ones(2, requires_grad=True)

    def first(_gradient: torch.Tensor) -> None:
        after_backward(lambda: order.append("ours"))
        Variable._execution_engine.queue_callback(lambda: order.append("DDP's"))

    other = torch.ones(2, requires_grad=True)
    weight.register_hook(first)  # type: ignore[no-untyped-call]
    other.register_hook(lambda _: order.append("backward"))  # type: ignore[no-untyped-call]
    (weight.square() + other * 3).sum().backward()  # type: ignore[no-untyped-call]
    assert order[-1] == "ours"
    assert sorted(order) == ["DDP's", "backward", "ours"]
