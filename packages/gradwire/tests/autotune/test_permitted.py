from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gradwire import Auto, Plan
from gradwire.autotune.decision import Decision, refusal
from gradwire.autotune.settings import BUCKETS, SHARDS, whole

NAMES = ["0.weight", "0.bias"]
SETTINGS = Auto(codecs=["quantize:8", "bf16"])
PLAN = Plan.of("quantize:8", residual=False, codecs=[{"match": "bias$", "codec": "bf16"}])
DECISION = Decision(PLAN, 0.5, 1.25, 0.25, "why", extra=0.03)


def test_what_a_run_may_choose_itself_is_permitted() -> None:
    assert refusal(DECISION, SETTINGS, BUCKETS, NAMES) == ""
    shards = replace(DECISION, plan=replace(PLAN, codecs=()))
    assert refusal(shards, SETTINGS, SHARDS, NAMES) == ""
    piped = replace(DECISION, plan=replace(PLAN, pipeline=2, algorithm="tree", segment_nbytes=1 << 16))
    assert refusal(piped, SETTINGS, whole(2), NAMES) == ""


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        (
            Auto(codecs=["lossless", "bf16"]),
            "expected only the codecs identity, lossless, bf16, got quantize:8",
        ),
        (Auto(codecs=["quantize:8"]), "got bf16"),
        (Auto(0.17, SETTINGS.codecs), "expected a relative error of at most 0.17, got 0.173"),
    ],
)
def test_the_present_settings_come_first(settings: Auto, why: str) -> None:
    assert why in refusal(DECISION, settings, BUCKETS, NAMES)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"residual": True}, "apart from codec, codecs, algorithm, segment_nbytes, lanes, got"),
        ({"pipeline": 2}, "apart from"),
        ({"bucket_nbytes": 4096}, "apart from"),
        ({"algorithm": "butterfly"}, "expected one of the algorithms ring, tree, got butterfly"),
        ({"codecs": [{"match": "head", "codec": "bf16"}]}, "in this model, got none"),
    ],
)
def test_what_a_run_of_this_form_and_model_never_chooses_is_refused(change: Any, why: str) -> None:
    rules = replace(BUCKETS, algorithms=("ring", "tree"))
    assert why in refusal(replace(DECISION, plan=replace(PLAN, **change)), SETTINGS, rules, NAMES)


def test_shards_have_one_codec() -> None:
    assert "expected one codec for all parameters" in refusal(DECISION, SETTINGS, SHARDS, NAMES)


@pytest.mark.parametrize("extra", [float("nan"), float("inf"), -1.0])
def test_a_noise_that_is_no_noise_is_refused(extra: float) -> None:
    assert "expected a relative error" in refusal(replace(DECISION, extra=extra), SETTINGS, BUCKETS, NAMES)
