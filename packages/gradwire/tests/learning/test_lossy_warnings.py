"""Where a codec keeps a model from learning, gradwire has warned; where the model learns, it has not.

Every cell says which of the two it is, and both are asserted, loss and warning. Of
``quantize:4`` a bias or a LayerNorm may lose half of its norm by rounding, and the model learns all the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import gradwire
from support.learning_ranks import Learned, learn

MODELS = [("mlp", "sgd"), ("cnn", "adamw"), ("sparse", "adamw"), ("transformer", "adamw")]
LOSES = [("errbound:2^-10", 1e-6), ("inceptionn:2^-10", 1e-6), ("topk:0.01", 1e-6)]
"""More than 5 % in every model, without residuals."""
LEARNS = [
    ("quantize:8", 1e-6),
    ("errbound:rel=0.05", 1e-6),
    ("bf16", 1e-6),
    ("ecsq:0.25", 1e-6),
    ("quantize:4", 1e-6),
    ("errbound:2^-10", 1e3),
    ("inceptionn:2^-10", 1e3),
]
"""Less than 2 % in every model, also without residuals."""

pytestmark = [
    pytest.mark.processes,
    pytest.mark.parametrize(("task", "optimizer"), MODELS, ids=[model for model, _ in MODELS]),
]


@pytest.fixture
def ratio_and_warnings(
    run_processes: Callable[..., list[Any]], ddp: Learned, task: str, optimizer: str
) -> Callable[[str, float], tuple[float, list[str]]]:
    """Return a function: train with a codec; return its loss as a multiple of DDP's, and all warnings."""

    def train(codec: str, scale: float) -> tuple[float, list[str]]:
        plan = gradwire.Plan(gradwire.parse(codec), residual=False)
        ranks: list[Learned] = run_processes(2, learn, task, optimizer, scale, plan)
        return ranks[0].last / ddp.last, [told for rank in ranks for told in rank.warnings]

    return train


@pytest.mark.parametrize(("codec", "scale"), LOSES)
def test_a_codec_that_keeps_a_model_from_learning_has_warned(
    codec: str, scale: float, ratio_and_warnings: Callable[[str, float], tuple[float, list[str]]]
) -> None:
    ratio, told = ratio_and_warnings(codec, scale)
    assert ratio > 1.05
    assert told
    assert f"{codec} loses" in told[0]
    assert "try" in told[0]


@pytest.mark.parametrize(("codec", "scale"), LEARNS)
def test_a_codec_with_which_a_model_learns_has_not_warned(
    codec: str, scale: float, ratio_and_warnings: Callable[[str, float], tuple[float, list[str]]]
) -> None:
    ratio, told = ratio_and_warnings(codec, scale)
    assert ratio < 1.02
    assert told == []


def test_a_residual_leaves_nothing_to_warn_of(
    run_processes: Callable[..., list[Any]], task: str, optimizer: str
) -> None:
    for rank in run_processes(2, learn, task, optimizer, 1e-6, "quantize:4"):
        assert rank.last < rank.first / 2
        assert rank.warnings == ()
