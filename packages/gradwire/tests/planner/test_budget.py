from __future__ import annotations

import pytest

from gradwire.codecs import parse
from gradwire.planner.encodings import CodecCandidate, admit
from gradwire.timing.environment import CodecCost, CodecPoint


def ask(spec: str, error: float, world: int, budget: float | None) -> CodecCandidate:
    cost = CodecCost(spec, (CodecPoint(1, 1.0, 0.0, 0.0, 0.0, error),))
    (found,) = admit([parse(spec)], {spec: cost}, world, budget)
    return found


def test_a_guaranteed_bound_counts_and_not_what_was_seen() -> None:
    found = ask("errbound:2^-10", 1e-9, 8, 8 * 2**-10)
    assert found.error == 8 * 2**-10
    assert found.guaranteed
    assert found.admitted
    assert not ask("errbound:2^-10", 1e-9, 9, 8 * 2**-10).admitted


def test_what_was_seen_counts_where_nothing_is_promised() -> None:
    found = ask("quantize:8", 1e-3, 4, 4e-3)
    assert found.error == pytest.approx(4e-3)
    assert found.admitted
    assert not found.guaranteed
    assert not ask("quantize:8", 1.1e-3, 4, 4e-3).admitted


@pytest.mark.parametrize("spec", ["identity", "lossless"])
def test_exact_codecs_meet_every_budget(spec: str) -> None:
    found = ask(spec, 0.0, 64, 0.0)
    assert found.guaranteed
    assert found.admitted


@pytest.mark.parametrize("spec", ["terngrad", "topk:0.01", "bf16"])
def test_without_a_budget_everything_that_is_named_may_be_used(spec: str) -> None:
    found = ask(spec, 123.0, 8, None)
    assert found.admitted
    assert not found.guaranteed
