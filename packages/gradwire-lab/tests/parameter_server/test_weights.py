"""Weights of a checkpoint fit a model of the same names and shapes."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from torch import nn

from gradwire.errors import StateError
from gradwire_lab.parameter_server.ps_sync import check_weights

MODEL = nn.Linear(3, 2)


def test_those_of_the_model_fit() -> None:
    check_weights(MODEL.state_dict(), MODEL)


@pytest.mark.parametrize(
    ("weights", "reason"),
    [
        (None, r"'bias' \(2,\) of torch\.float32, got missing"),
        ({"weight": torch.zeros(2, 3)}, r"'bias' .*, got missing"),
        (
            {**MODEL.state_dict(), "weight": torch.zeros(3, 3)},
            r"'weight' \(2, 3\) of torch\.float32, got \(3, 3\) of torch\.float32",
        ),
        (
            {**MODEL.state_dict(), "scale": torch.zeros(1)},
            r"'scale' missing, got \(1,\) of torch\.float32",
        ),
    ],
)
def test_others_are_refused(weights: Mapping[str, torch.Tensor] | None, reason: str) -> None:
    with pytest.raises(StateError, match=reason):
        check_weights(weights, MODEL)
