import json
import math
from dataclasses import replace

import pytest

from gradwire.records import to_json
from gradwire.timing.line import Line
from gradwire_lab.benchmark.allreduce import (
    TORCH,
    Checked,
    Configuration,
    Result,
    Timing,
    read_result,
    torch_times,
)
from gradwire_lab.closed_forms.formulas import AlphaBetaGamma, butterfly_s, ring_s, star_s, tree_s

LINE = Line(50e-6, 125e6)
LINK = AlphaBetaGamma(50e-6, 1 / 125e6)


def make(
    algorithm: str, world: int, p50_s: float = 0.02, ratio: float = 1.0, line: Line | None = LINE
) -> Result:
    sent = (0, 0) if algorithm == TORCH else (1000, 2000)
    checked = Checked(sent, ratio, 1e-4, 2e-3, 0.03)
    return Result(
        Configuration(algorithm, "identity", 1_000_000), world, Timing((0.01, p50_s, 0.03)), checked, line
    )


def test_bandwidths_are_those_of_nccl_tests() -> None:
    result = make("ring", 4)
    assert result.algbw_nbytes_per_s == pytest.approx(50e6)
    assert result.busbw_nbytes_per_s == pytest.approx(50e6 * 2 * 3 / 4)


def test_the_least_time_is_the_papers_formula() -> None:
    formulas = {"ring": ring_s, "tree": tree_s, "butterfly": butterfly_s, "star": star_s, TORCH: ring_s}
    for algorithm, formula in formulas.items():
        assert make(algorithm, 4).best_s == pytest.approx(formula(4, 1_000_000, LINK))
    compressed = make("ring", 4, ratio=4.0)
    assert compressed.best_s == pytest.approx(ring_s(4, 250_000, LINK))
    assert compressed.share_of_best == pytest.approx(ring_s(4, 250_000, LINK) / 0.02)
    assert make("ring", 4, line=None).share_of_best is None


def test_json_says_everything_with_units() -> None:
    described = json.loads(json.dumps(make("ring", 4).describe(torch_s=0.04), allow_nan=False))
    assert described["speed_up_over_torch"] == pytest.approx(2)
    assert described["wire_nbytes"] == [1000, 2000]
    assert described["seconds"] == [0.01, 0.02, 0.03]
    assert make(TORCH, 4).describe(None)["wire_nbytes"] is None


def test_torch_is_compared_at_the_same_size_and_world() -> None:
    results = [make(TORCH, 2, 0.015), make("ring", 2), make(TORCH, 4, 0.025)]
    assert torch_times(results) == {(2, 1_000_000): 0.015, (4, 1_000_000): 0.025}


def test_a_result_is_read_again_but_for_the_time_of_its_check() -> None:
    for algorithm, wire in ((TORCH, (0, 0)), ("ring", (3, 4))):
        checked = Checked(wire, 2.0, 0.5, math.inf, math.nan)
        made = Result(Configuration(algorithm, "identity", 64), 2, Timing((1.0, 2.0)), checked, None)
        found = read_result(json.loads(to_json(made.describe(None))), None)
        assert replace(found, checked=replace(found.checked, first_s=0)) == replace(
            made, checked=replace(checked, first_s=0)
        )
