from __future__ import annotations

import inspect

import torch

from gradwire.deferred import outside_inference


@outside_inference
def make(count: int, *, value: float = 1.0) -> tuple[torch.Tensor, bool]:
    """Make one."""
    return torch.full((count,), value), torch.is_grad_enabled()


def test_what_is_made_within_inference_mode_is_ordinary_and_the_mode_returns() -> None:
    with torch.inference_mode():
        made, with_gradients = make(2, value=3.0)
        assert torch.is_inference_mode_enabled()
    assert not made.is_inference()
    assert made.tolist() == [3.0, 3.0]
    assert not with_gradients


def test_elsewhere_nothing_changes() -> None:
    assert make(1)[1]
    with torch.no_grad():
        assert not make(1)[1]
    assert make.__doc__ == "Make one."
    assert (
        str(inspect.signature(make))
        == "(count: 'int', *, value: 'float' = 1.0) -> 'tuple[torch.Tensor, bool]'"
    )
