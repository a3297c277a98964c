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
from support.planner_costs import made_up


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
    with pytest.raises(TensorError, match="expected a gradient with values"):
        excerpt(torch.ones(2, device="meta"))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_gradients_that_are_not_finite_measure_nothing(value: float) -> None:
    with pytest.raises(TensorError, match="expected a finite gradient"):
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
    assert [what for _, _, what in seen[:3]] == ["identity", "errbound:2^-10", "identity again"]
    assert [(done, total) for done, total, _ in seen] == [(done, 6) for done in range(7)]
    assert torch.get_num_threads() == threads


def test_costs_know_by_how_much_their_repeats_disagree(monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(*seconds: float) -> float:
        """Let encoding take so long in one round after the other, and return what the costs make of it."""
        rounds = iter(seconds)
        monkeypatch.setattr("gradwire.planner.calibration.encode_and_add_s", lambda *_: next(rounds))
        return measure_codecs([parse("bf16")], [torch.zeros(4)], 1, 1, Line(0.0, 1e9))["bf16"].disagreement

    monkeypatch.setattr("gradwire.planner.calibration.cost_on", lambda codec, *_: made_up(codec))
    assert measured(1e-9, 1e-9, 1e-9) == 0
    assert measured(1e-9, 2e-9, 1e-9) == pytest.approx(1 / 3)
    assert measured(2e-9, 1e-9, 6e-9) == pytest.approx(5 / 7)
