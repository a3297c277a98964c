from __future__ import annotations

import pytest
import torch

from gradwire.codecs import parse
from gradwire.errors import TensorError
from gradwire.planner.calibration import (
    SAMPLE_COUNT,
    SYNTHETIC_SCALE,
    excerpt,
    measure_codecs,
    synthetic_gradients,
)
from gradwire.timing.line import Line


def test_synthetic_gradients_are_laplace_and_independent() -> None:
    one, other, *_ = synthetic_gradients(SAMPLE_COUNT)
    assert float(one.mean()) == pytest.approx(0.0, abs=0.01 * SYNTHETIC_SCALE)
    assert float(one.abs().mean()) == pytest.approx(SYNTHETIC_SCALE, rel=0.01)
    assert float(one.square().mean().sqrt()) == pytest.approx(2**0.5 * SYNTHETIC_SCALE, rel=0.01)
    assert abs(float(torch.corrcoef(torch.stack([one, other]))[0, 1])) < 0.01
    assert bool(one.isfinite().all())


def test_an_excerpt_reaches_from_the_first_value_to_the_last() -> None:
    x = torch.arange(3 * SAMPLE_COUNT, dtype=torch.float64)
    found = excerpt(x)
    assert found.dtype == torch.float32
    assert len(found) == SAMPLE_COUNT
    assert found[0] == 0
    assert found[-1] == pytest.approx(3 * SAMPLE_COUNT, rel=1e-4)
    assert torch.equal(excerpt(torch.ones(2, 3)), torch.ones(6))


@pytest.mark.parametrize("wrong", [torch.ones(3, dtype=torch.int32), [1.0]])
def test_only_floating_point_tensors_are_gradients(wrong: object) -> None:
    with pytest.raises(TensorError, match="floating point numbers"):
        excerpt(wrong)  # type: ignore[arg-type]


def test_a_sparse_gradient_is_made_dense_and_one_without_values_is_refused() -> None:
    assert excerpt(torch.eye(2).to_sparse()).tolist() == [1.0, 0.0, 0.0, 1.0]
    with pytest.raises(TensorError, match="must have values"):
        excerpt(torch.ones(2, device="meta"))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_gradients_that_are_not_finite_measure_nothing(value: float) -> None:
    with pytest.raises(TensorError, match="must be finite"):
        excerpt(torch.tensor([0.0, value]))


def test_codecs_are_measured_on_the_gradients_that_are_given() -> None:
    threads = torch.get_num_threads()
    seen: list[tuple[int, int, str]] = []
    gradients = [torch.zeros(40_000), torch.zeros(40_000)]
    costs = measure_codecs(
        [parse("identity"), parse("errbound:2^-10")],
        gradients,
        2,
        1,
        Line(0.0, 1e9),
        lambda *each: seen.append(each),
    )
    assert list(costs) == ["identity", "errbound:2^-10"]
    assert costs["identity"].at(1).nbytes == 4.0
    assert costs["errbound:2^-10"].at(2).nbytes == 0.25  # tags only
    assert seen == [(0, 2, "identity"), (1, 2, "errbound:2^-10"), (2, 2, "")]
    assert torch.get_num_threads() == threads
