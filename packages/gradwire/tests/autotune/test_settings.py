from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gradwire import Auto, Plan
from gradwire.autotune import InitialPlan
from gradwire.autotune.autotuner import Autotuner
from gradwire.autotune.settings import BUCKETS
from gradwire.codecs import Identity, parse
from gradwire.errors import SpecError
from gradwire.sync.bucket.observe import NO_CHOOSER


def test_no_compression_is_always_a_candidate_and_none_is_there_twice() -> None:
    assert Auto(codecs=["fp8", parse("fp8"), "identity"]).candidates == (Identity(), parse("fp8"))


def test_the_first_plan_is_the_default_without_residuals() -> None:
    plan = Auto().first_plan
    assert plan.codec == Plan.of(None).codec
    assert not plan.keeps_residual


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"max_lost_norm": 0}, "above 0 and at most 1, got 0"),
        ({"max_lost_norm": 1.5}, "above 0 and at most 1, got 1.5"),
        ({"max_lost_norm": "much"}, "above 0 and at most 1"),
        ({"codecs": "fp8"}, r"a list of codecs or their specs for codecs, got 'fp8'; pass \['fp8'\]"),
        ({"codecs": ["fp9"]}, "fp9"),
    ],
)
def test_what_cannot_be_is_refused(wrong: dict[str, Any], reason: str) -> None:
    with pytest.raises(SpecError, match=reason):
        Auto(**wrong)


def test_the_place_is_the_path_or_the_environment_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GRADWIRE_AUTO", raising=False)
    assert Auto().place is None
    monkeypatch.setenv("GRADWIRE_AUTO", "there.json")
    assert Auto().place == "there.json"
    assert Auto(path="here.json").place == "here.json"


def test_ranks_that_want_different_things_have_different_facts() -> None:
    every = [Auto(), Auto(max_lost_norm=0.1), Auto(codecs=["fp8"])]
    assert len({str(InitialPlan.of(each).facts) for each in every}) == len(every)
    assert InitialPlan.of("fp8").facts == {}


@pytest.mark.parametrize("plan", [None, "auto", Auto(0.1)])
def test_a_run_that_chooses_begins_with_a_safe_plan(plan: Any) -> None:
    initial = InitialPlan.of(plan, pipeline=2)
    assert initial.auto == (plan if isinstance(plan, Auto) else Auto())
    assert initial.plan == replace(Auto().first_plan, pipeline=2)
    assert isinstance(initial.chooser(BUCKETS, []), Autotuner)


def test_a_plan_of_the_user_s_is_kept() -> None:
    initial = InitialPlan.of("quantize:8")
    assert (initial.plan, initial.auto) == (Plan.of("quantize:8"), None)
    assert initial.chooser(BUCKETS, []) is NO_CHOOSER
    with pytest.raises(SpecError, match="gradients"):
        InitialPlan.of("{", "gradients")
