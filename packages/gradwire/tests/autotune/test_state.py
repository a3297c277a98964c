from __future__ import annotations

import json

import pytest

from gradwire import Plan
from gradwire.autotune.decision import Decision, State
from gradwire.errors import StateError

PLAN = Plan.of("quantize:8", codecs=[{"match": "bias$", "codec": "bf16"}])
STATE = State(
    4, 30, 26, 60, 6, [(6, Decision(PLAN, 0.5, 1.25, 0.25, "why"))], {"bias": 0.125}, ["errbound:2^-4"]
)
DECIDED = json.loads(STATE.decisions[0][1].to_json())


def test_a_state_comes_back_from_its_text() -> None:
    assert State.from_json(STATE.to_json()) == STATE
    assert State.from_json(State(2, 3, 6, 60, 0).to_json()) == State(2, 3, 6, 60, 0)


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ("", "expected JSON for"),
        (7, "expected JSON for"),
        ("{}", "got no field 'world'"),
        ({"steps": "many"}, "a whole number of at least 0 for steps .* got 'many'"),
        ({"more": 1}, "got the unknown field 'more'"),
        ({"decisions": [[6]]}, r"a list of 2 for decisions\[0\] in the state of an"),
        (
            {"decisions": [[6, DECIDED | {"plan": {"codec": "quantise"}}]]},
            r"decisions\[0\]\[1\]\.plan in the state of an automatic choice cannot be used: unknown codec",
        ),
        ({"decisions": [[6, DECIDED | {"step_s": None}]]}, r"for decisions\[0\]\[1\]\.step_s in .* got None"),
        ({"decisions": [[6, DECIDED | {"reason": "\x1b[31m"}]]}, r"a line of printable .*reason in"),
        ({"refused": ["quantise"]}, "unknown codec 'quantise'"),
        ({"refused": 3}, "a list for refused in .*, got 3"),
        ({"seen": 3}, "named fields for seen in .*, got 3; remove 'auto'"),
    ],
)
def test_what_is_no_state_is_refused_in_a_sentence(wrong: object, reason: str) -> None:
    text = json.dumps(json.loads(STATE.to_json()) | wrong) if isinstance(wrong, dict) else wrong
    with pytest.raises(StateError, match=reason) as caught:
        State.from_json(text)
    assert len(str(caught.value).splitlines()) == 1
