from __future__ import annotations

import pytest

from gradwire.codecs import parse
from gradwire.costs import ExchangeCost
from gradwire.plan import Plan
from gradwire.planner.encodings import CodecCandidate
from gradwire.planner.explain import explain
from gradwire.planner.predict import Prediction, Ranking


def prediction(codec: str, exposed_s: float, compute_s: float = 0.1, pipeline: int = 1) -> Prediction:
    return Prediction(
        plan=Plan(parse(codec), pipeline=pipeline),
        compute_s=compute_s,
        exposed_s=exposed_s,
        cost=ExchangeCost(0.1 * exposed_s, 0.2 * exposed_s, 0.0, 0.7 * exposed_s, 4e6, 1e6),
        buckets=1,
    )


def reasons(chosen: Prediction, plain: Prediction, *others: Prediction, admitted: bool = True) -> str:
    ranking = sorted({id(each): each for each in (chosen, plain, *others)}.values(), key=lambda x: x.step_s)
    codecs = (CodecCandidate(parse("bf16"), 1.0, guaranteed=False, admitted=admitted),)
    return explain(Ranking(chosen, plain, tuple(ranking), 9, codecs=codecs))


def test_compression_says_what_it_gains() -> None:
    text = reasons(prediction("bf16", 0.1), prediction("identity", 0.3))
    assert text.startswith("bf16 over ring: a step of 200ms; the fastest plan without compression ")
    assert "takes 400ms, 2.00 times as long" in text
    assert "All of the exchange's 100ms are exposed; most of the exchange is waiting for the network" in text


@pytest.mark.parametrize(
    ("codec_s", "reason"),
    [(0.198, "0.7 % less; a codec must gain more than 3 %"), (0.205, "1.7 % more.")],
)
def test_no_compression_says_what_a_codec_would_do(codec_s: float, reason: str) -> None:
    plain = prediction("identity", 0.2)
    text = reasons(plain, plain, prediction("bf16", codec_s))
    assert text.startswith("no compression: identity over ring takes 300ms a step, and at best ")
    assert reason in text


def test_no_compression_says_where_none_is_allowed_or_none_comes_near() -> None:
    plain = prediction("identity", 0.2)
    assert "no other codec is within the accuracy budget" in reasons(plain, plain, admitted=False)
    assert "every plan with compression takes longer" in reasons(plain, plain)
    assert "every plan with compression takes longer" in reasons(plain, plain, prediction("bf16", 0.25))
    identity = CodecCandidate(parse("identity"), 0.0, guaranteed=True, admitted=True)
    alone = explain(Ranking(plain, plain, (plain,), 1, codecs=(identity,)))
    assert "no other codec was offered" in alone


def test_what_computation_does_not_hide_is_told_however_little_it_is() -> None:
    plain = prediction("identity", 0.001)
    text = reasons(plain, plain)
    assert "Computation hides" not in text
    assert "All of the exchange's 1ms are exposed" in text


def test_a_hidden_exchange_and_a_stale_gradient_are_told() -> None:
    plain = prediction("identity", 0.0, pipeline=3)
    text = reasons(plain, plain)
    assert "Computation hides the exchange." in text
    assert "while the averages of 2 steps are in flight. In the meantime, each host updates" in text
