from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire import codecs, collectives
from gradwire.codecs import Identity, parse
from gradwire.errors import SpecError
from gradwire.plan import SEGMENT_UNIT_NBYTES, Plan
from gradwire.wire import MAX_FRAME_NBYTES

SPECS = sorted(spec for row in codecs.TABLE for spec in row.codec.EXAMPLES)

PLANS = st.builds(
    Plan,
    codec=st.sampled_from(SPECS).map(parse),
    algorithm=st.sampled_from(sorted(collectives.TABLE)),
    segment_nbytes=st.integers(1, 64).map(lambda units: units * SEGMENT_UNIT_NBYTES),
    pipeline=st.integers(1, 8),
)


@given(PLANS)
def test_a_plan_survives_json(plan: Plan) -> None:
    assert Plan.from_json(plan.to_json()) == plan
    assert hash(Plan.from_json(plan.to_json())) == hash(plan)


def test_json_is_readable() -> None:
    plan = Plan(parse("errbound:2^-10"), "star", 1 << 18, pipeline=2)
    assert json.loads(plan.to_json()) == {
        "codec": "errbound:2^-10",
        "algorithm": "star",
        "segment_nbytes": 262144,
        "pipeline": 2,
    }


def test_what_json_leaves_out_keeps_its_default() -> None:
    assert Plan.from_json("{}") == Plan()
    assert Plan.from_json('{"codec": "fp16"}') == replace(Plan(), codec=parse("fp16"))


def test_the_default_is_an_uncompressed_ring() -> None:
    assert Plan().codec == Identity()
    assert Plan().algorithm == "ring"
    assert Plan().pipeline == 1


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"codec": "fp16"}, r"codec must be a Codec, but is 'fp16'; gradwire\.codecs\.parse reads specs"),
        ({"algorithm": "tree"}, r"no algorithm is called 'tree'"),
        ({"algorithm": ["ring"]}, r"no algorithm is called \['ring'\]"),
        ({"pipeline": 0}, r"pipeline must be a whole number from 1 up, but is 0"),
        ({"pipeline": True}, r"pipeline must be a whole number from 1 up, but is True"),
        ({"pipeline": 1.5}, r"pipeline must be a whole number"),
        ({"segment_nbytes": 0}, r"segment_nbytes must be a whole number from 16384 up, but is 0"),
        ({"segment_nbytes": 16385}, r"segment_nbytes must be a multiple of 16384, but is 16385"),
        (
            {"segment_nbytes": 1 << 30},
            rf"but {MAX_FRAME_NBYTES} is the most; choose a smaller segment_nbytes",
        ),
    ],
)
def test_a_value_that_no_exchange_can_use_is_refused(changes: dict[str, object], reason: str) -> None:
    with pytest.raises(SpecError, match=reason):
        replace(Plan(), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", r"a plan must be a JSON object, but this is no JSON"),
        ("[]", r"a plan must be a JSON object, but this is a list"),
        ('{"codex": "fp16"}', r"a plan has no codex; it has codec, algorithm, segment_nbytes, pipeline"),
        ('{"codec": "fp17"}', r"no codec is named 'fp17'"),
        ('{"segment_nbytes": "1MiB"}', r"segment_nbytes must be a whole number"),
    ],
)
def test_json_that_is_no_plan_is_refused(text: str, reason: str) -> None:
    with pytest.raises(SpecError, match=reason):
        Plan.from_json(text)
