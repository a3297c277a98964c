"""Plans with codecs for some parameters of a model."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from gradwire.codecs import Identity, parse
from gradwire.errors import SpecError
from gradwire.plan import Plan

RULES = [{"match": "bias$", "codec": "identity"}, {"match": "^head", "codec": "errbound:2^-10"}]


def test_parameters_have_the_codecs_of_their_names(tmp_path: Path) -> None:
    plan = Plan(parse("fp8"), codecs=RULES)
    specs = [str(plan.encoding_of(name)) for name in ("body.bias", "head.bias", "head.weight", "body")]
    assert specs == ["identity", "identity", "errbound:2^-10", "fp8"]
    assert [str(each) for each in plan.encodings] == ["fp8", "identity", "errbound:2^-10"]
    assert Plan().encodings == (Identity(),)
    plan.save(tmp_path / "plan.json")
    assert Plan.of(tmp_path / "plan.json") == plan
    assert json.loads(plan.to_json())["codecs"] == RULES
    assert plan != replace(plan, codecs=RULES[::-1])
    scaled = Plan(parse("errbound:2^-4"), scale="auto", codecs=RULES[1:])
    assert str(scaled.encoding_of("head")) == "scaled:errbound:2^-10"


def test_any_codec_may_want_residuals() -> None:
    topk = [{"match": "embed", "codec": "topk:0.01"}]
    assert Plan(codecs=topk).keeps_residual
    assert not Plan(codecs=topk, residual=False).keeps_residual
    assert not Plan(codecs=RULES).keeps_residual


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"codecs": "bias$"}, "codecs: expected a list of"),
        ({"codecs": [{"match": "(", "codec": "fp8"}]}, "expected a regular expression for parameter names"),
        ({"codecs": RULES, "offload": "inceptionn:2^-10"}, "because NICs encode, got identity"),
        ({"codecs": RULES[:1], "codec": parse("errbound:2^-4"), "scale": "auto"}, "identity"),
        (
            {"codecs": RULES, "exchange": "sharded"},
            "a sharded exchange: expected a plan with one codec and one lane",
        ),
        (
            {"codecs": [{"match": "b", "codec": "lossless"}], "encode_on": "device"},
            "lossless has no kernels for GPUs",
        ),
        (
            {"codecs": [{"match": "b", "codec": "identity"}], "segment_nbytes": 1 << 26},
            "expected frames of at most .* with identity",
        ),
    ],
)
def test_codecs_by_name_are_checked_like_the_other(changes: dict[str, object], reason: str) -> None:
    with pytest.raises(SpecError, match=reason):
        replace(Plan(), **changes)  # type: ignore[arg-type]


def test_who_knows_no_names_refuses_codecs_by_name() -> None:
    plan = Plan(codecs=RULES)
    assert Plan().for_one_codec("all_reduce") == Plan()
    expected = "^all_reduce: expected a plan with one codec and one lane, got"
    with pytest.raises(SpecError, match=rf"{expected} per-parameter codecs; omit codecs$"):
        plan.for_one_codec("all_reduce")
    with pytest.raises(SpecError, match=rf"{expected} lanes=2; omit lanes$"):
        Plan(lanes=2).for_one_codec("all_reduce")
