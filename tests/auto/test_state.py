from __future__ import annotations

import json

import pytest

from gradwire import Plan
from gradwire.auto.choice.decision import Decision
from gradwire.auto.state import State
from gradwire.errors import StateError

PLAN = Plan.of("quantize:8", codecs=[{"match": "bias$", "codec": "bf16"}])
STATE = State(
    4, 30, 26, 60, 6, [(6, Decision(PLAN, 0.5, 1.25, 0.25, "why"))], {"bias": 0.125}, ["errbound:2^-4"]
)


def test_a_state_comes_back_from_its_text() -> None:
    assert State.from_json(STATE.to_json()) == STATE
    assert State.from_json(State(2, 3, 6, 60, 0).to_json()) == State(2, 3, 6, 60, 0)


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ("", "cannot be read"),
        (7, "cannot be read"),
        ("{}", "cannot be read"),
        ({"steps": "many"}, "no state of an automatic choice"),
        ({"more": 1}, "cannot be read"),
        ({"decisions": [[6]]}, "cannot be read"),
        ({"decisions": [[6, {"plan": {"codec": "quantise"}}]]}, "quantise"),
        ({"refused": ["quantise"]}, "no codec is named 'quantise'"),
        ({"refused": 3}, "cannot be read"),
        ({"seen": 3}, "no state of an automatic choice"),
    ],
)
def test_what_is_no_state_is_refused_in_a_sentence(wrong: object, reason: str) -> None:
    text = json.dumps(json.loads(STATE.to_json()) | wrong) if isinstance(wrong, dict) else wrong
    with pytest.raises(StateError, match=reason) as caught:
        State.from_json(text)
    assert len(str(caught.value).splitlines()) == 1
