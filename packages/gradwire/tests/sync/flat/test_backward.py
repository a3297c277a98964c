from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch.nn import Parameter

from gradwire.errors import TensorError
from gradwire.sync.flat.backward import backward
from gradwire.sync.flat.gradients import FlatGradients


def weight() -> Parameter:
    return Parameter(torch.tensor([1.0, -2.0, 3.0]))


def scaled(w: torch.Tensor, factor: float) -> torch.Tensor:
    return factor * (w * w).sum() / 2


def test_the_gradient_of_the_loss_takes_the_place_of_the_one_before() -> None:
    w = weight()
    gradients = FlatGradients([w])
    for factor in (2.0, 5.0):
        loss = backward(partial(scaled, w, factor), gradients)
        assert loss == pytest.approx(factor * 7.0)
        assert torch.equal(gradients.flat, factor * w.detach())
        assert w.grad is not None
        assert w.grad.data_ptr() == gradients.flat.data_ptr()


@pytest.mark.parametrize(
    ("compute", "said"),
    [
        (lambda _w: 3.0, "to return the loss, a tensor of one value, got"),
        (lambda w: w * 2, r"got a tensor of shape \(3,\)"),
        (lambda w: (w * 1j).sum(), "to return a real loss, got one of torch.complex64"),
        (lambda w: w.sum().detach(), "a loss that depends on a trainable parameter"),
    ],
)
def test_what_is_no_loss_is_refused(compute: Callable[[torch.Tensor], torch.Tensor], said: str) -> None:
    w = weight()
    with pytest.raises(TensorError, match=said):
        backward(lambda: compute(w), FlatGradients([w]))


def test_a_loss_whose_backward_pass_is_over_is_refused() -> None:
    w = weight()
    gradients = FlatGradients([w])
    loss = (w * w).sum()
    torch.autograd.backward(loss)
    with pytest.raises(TensorError, match=re.escape("call no backward() in compute_loss")):
        backward(lambda: loss, gradients)
