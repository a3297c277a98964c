from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from gradwire.autotune import Auto
from gradwire.autotune.estimate import Deployment
from gradwire.autotune.recorder import estimator
from gradwire.errors import DataError, TensorError
from gradwire.timing.line import Line
from support.observations import FAST, observed

BF16 = Auto(codecs=["bf16"])


def test_codecs_and_frames_are_measured_here() -> None:
    slow = Line(5e-5, 1.25e6)
    found = estimator(observed(), [FAST, slow], 4, settings=BF16, repeats=1).at(Deployment("10mbit", slow, 4))
    assert str(found.plan.codec) == "bf16"
    assert found.speedup == pytest.approx(2.0, rel=0.1)


def test_without_gradients_there_is_no_estimate() -> None:
    with pytest.raises(DataError, match="expected gradients from at least one step, got none"):
        estimator(observed(gradients=()), [FAST], 2)
    bad = (torch.tensor([1.0, torch.nan]),)
    with pytest.raises(TensorError, match="expected a finite gradient"):
        estimator(replace(observed(), gradients=bad), [FAST], 2, settings=BF16)


def test_layers_of_different_sizes_are_not_encoded_with_one_scale() -> None:
    """With one scale for both, a codec with a relative bound would take no bytes for the smaller."""
    values = torch.randn(1 << 18, generator=torch.Generator().manual_seed(0))
    mixed = torch.cat([values[: 1 << 17], 1e-6 * values[1 << 17 :]])
    rough = Auto(codecs=["errbound:rel=0.05"])
    nbytes = []
    for gradient in (values, mixed):
        seen = observed(gradients=(gradient,))
        costs = estimator(seen, [FAST], 2, settings=rough, repeats=1).costs
        nbytes.append(costs["errbound:rel=0.05"].at(1).nbytes)
    assert nbytes[1] == pytest.approx(nbytes[0], rel=0.02)
