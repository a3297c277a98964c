from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gradwire import Auto, Link, Plan
from gradwire.autotune import costs, samples, survey
from gradwire.autotune.costs import Work
from gradwire.autotune.decision import State
from gradwire.codecs import Codec, Identity, parse
from gradwire.errors import ExchangeError
from gradwire.timing import calibrate
from gradwire.timing.environment import CodecCost
from support.piloted import NAMES, Run, train
from support.ranks import run_ranks
from support.told_line import FAST, SLOW, WARM_UP, WINDOW, Told, configure, tell_line


@pytest.fixture(autouse=True)
def line(monkeypatch: pytest.MonkeyPatch) -> Told:
    return tell_line(monkeypatch)


@pytest.mark.parametrize("world", [2, 3])
def test_all_ranks_take_one_plan_in_the_same_step(world: int) -> None:
    runs = run_ranks(world, train, Auto(), WARM_UP + 2)
    assert all(run.plans == runs[0].plans for run in runs)
    plans, ((step, decision),) = runs[0].plans, runs[0].tuner.decisions
    assert step == WARM_UP + 1
    assert plans[:WARM_UP] == [Auto().first_plan] * WARM_UP
    assert plans[WARM_UP:] == [decision.plan] * 2
    assert decision.plan.codec != Identity(), "at 100 kB/s"
    assert decision.uncompressed_s > decision.step_s


def test_on_a_fast_line_the_answer_is_no_compression(line: dict[str, Any]) -> None:
    line["line"] = FAST
    runs = run_ranks(2, train, Auto(), WARM_UP + 1)
    assert runs[0].plans[-1].codec == runs[1].plans[-1].codec == Identity()


def test_one_rank_alone_has_nothing_to_choose() -> None:
    (run,) = run_ranks(1, train, Auto(), 2 * WINDOW)
    assert run.tuner.decisions == []


def test_a_sample_that_is_not_finite_puts_the_decision_off() -> None:
    def some(link: Link) -> Run:
        return train(link, Auto(), WARM_UP + 5, {WARM_UP: float("inf") if link.rank == 1 else 1.0})

    runs = run_ranks(2, some)
    assert [run.tuner.decisions[0][0] for run in runs] == [WARM_UP + 2] * 2


def test_the_next_run_starts_with_what_was_decided(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = Auto(path=tmp_path / "auto.json")
    with caplog.at_level(logging.INFO, "gradwire"):
        first = run_ranks(2, train, settings, WARM_UP + 1)
        again = run_ranks(2, train, settings, 3)
    assert [run.plans for run in again] == [[first[0].plans[-1]] * 3] * 2
    chosen, earlier = caplog.messages
    assert chosen.startswith(f"{first[0].plans[-1].codec} over ring: ")
    assert earlier == f"as in an earlier run: {chosen}"
    run_ranks(2, train, Auto(), 3)
    assert run_ranks(3, train, settings, 2)[0].tuner.decisions == [], "it was for two ranks"


def test_the_next_run_does_not_start_with_what_its_settings_forbid(tmp_path: Path) -> None:
    path = tmp_path / "auto.json"
    run_ranks(2, train, Auto(path=path), WARM_UP + 1)
    strict = Auto(0.001, ["lossless"], path)
    for run in run_ranks(2, train, strict, 3):
        assert run.plans == [strict.first_plan] * 3
        assert run.tuner.decisions == []


def test_a_checkpoint_does_not_go_on_with_what_the_settings_forbid(caplog: pytest.LogCaptureFixture) -> None:
    state = run_ranks(2, train, Auto(), WARM_UP + 2)[0].state
    strict = Auto(0.001, ["lossless"])

    def resumed(link: Link, state: State) -> Run:
        run = Run(link, strict)
        run.load(state)
        assert run.tuner.loaded_plan is None
        for number in range(WARM_UP + 3, WARM_UP + 6):
            run.step(number)
        return run

    for each in (state, replace(state, settings="")):
        for run in run_ranks(2, resumed, each):
            assert run.plans == [strict.first_plan] * 3
    assert caplog.text.count("the run ignores the choice in the checkpoint and chooses a new plan") == 2


def test_a_codec_that_breaks_the_contract_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    configure(monkeypatch, resample_steps=WINDOW)
    limit = Auto(codecs=["errbound:2^-4"])

    def run(link: Link) -> list[Plan]:
        return train(link, limit, WARM_UP + 2 * WINDOW + 3, dict.fromkeys(range(WARM_UP + 2, 99), 1e-3)).plans

    plans = run_ranks(2, run)
    assert plans[0] == plans[1]
    assert str(plans[0][WARM_UP].codec) == "errbound:2^-4"
    assert plans[0][-1].codec == Identity()


def test_a_line_that_changes_is_followed_by_all_ranks_in_one_step(line: dict[str, Any]) -> None:
    changes, steps = {100: FAST, 260: SLOW}, 400

    def run(link: Link) -> Run:
        one = Run(link, Auto(max_lost_norm=0.3))
        for number in range(1, steps + 1):
            if number in changes:
                line["line"] = changes[number]
                one.exposed_s = 0.001 if changes[number] is FAST else 0.1
            one.step(number)
        return one

    runs = run_ranks(2, run)
    assert runs[0].plans == runs[1].plans
    decided = [(step, decision.plan.codec == Identity()) for step, decision in runs[0].tuner.decisions]
    assert [exact for _, exact in decided] == [False, True, False]
    for (step, _), change in zip(decided[1:], changes, strict=True):
        assert change < step <= change + 100


@pytest.mark.parametrize(("first", "then"), [(slice(1), slice(2)), (slice(2), slice(1, 2))])
def test_parameters_that_begin_to_learn_are_measured_at_the_next_choice(first: slice, then: slice) -> None:
    """Those that are unfrozen one by one; the steps that take longer are what asks for the choice."""

    def run(link: Link) -> Run:
        one = Run(link, Auto(codecs=["quantize:8", "bf16"]))
        one.buckets, one.small = first, True
        for number in range(1, 140):
            if number == 60:
                one.buckets, one.exposed_s = then, 0.5
            one.step(number)
        return one

    runs = run_ranks(2, run)
    assert runs[0].plans == runs[1].plans
    (_, before), *_, (_, after) = runs[0].tuner.decisions
    for decision, buckets in ((before, first), (after, then)):
        learning = [name for bucket in NAMES[buckets] for name in bucket]
        assert [name for name in learning if decision.plan.encoding_of(name) == parse("bf16")] == [
            name for name in learning if name.endswith("bias")
        ]


def test_a_line_that_changes_lets_the_figures_of_codecs_and_gradients_stand(
    line: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[str] = []
    measure = calibrate.codec_cost

    def codec_cost(codec: Codec, *others: Any) -> CodecCost:
        measured.append(str(codec))
        return measure(codec, *others)

    def run(link: Link) -> Run:
        one = Run(link, Auto(max_lost_norm=0.3))
        for number in range(1, 200):
            if number == 100:
                line["line"], one.exposed_s = FAST, 0.001
            one.step(number)
        return one

    monkeypatch.setattr(costs, "codec_cost", codec_cost)
    runs = run_ranks(2, run)
    assert len(runs[0].tuner.decisions) == 2
    assert len(measured) == len(set(measured)) > 1


def codecs_of(plan: Plan) -> list[str]:
    return [str(plan.encoding_of(name)) for bucket in NAMES for name in bucket]


MIXED, PLAIN = ["quantize:8", "bf16"] * 2, ["quantize:8"] * 4


def test_parameters_that_a_codec_does_not_suit_have_another_one_while_they_need_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    configure(monkeypatch, resample_steps=WINDOW)
    first, second = WARM_UP + 2 * WINDOW, WARM_UP + 4 * WINDOW

    def run(link: Link) -> Run:
        one = Run(link, Auto(codecs=["quantize:8", "bf16"]))
        for number in range(1, second + WINDOW + 3):
            one.small = number <= first or (number > second and link.rank == 1)
            one.step(number)
        return one

    runs = run_ranks(2, run)
    assert runs[0].plans == runs[1].plans
    assert runs[0].tuner.decisions == runs[1].tuner.decisions
    found = [(step, codecs_of(decision.plan)) for step, decision in runs[0].tuner.decisions]
    looks = [WARM_UP + 1 + count * WINDOW for count in (0, 3, 5)]
    assert found == [(looks[0], MIXED), (looks[1], PLAIN), (looks[2], MIXED)]
    sentences = [decision.reason for _, decision in runs[0].tuner.decisions]
    said = "2 parameters (0.bias, 1.bias) with bf16, since quantize:8 would exceed a relative error of 20%"
    assert said in sentences[0]
    assert sentences[1] == "quantize:8 for all parameters again"


def test_many_values_that_come_to_have_another_codec_are_a_reason_to_choose_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """From the second sample on, all ranks lose most of one matrix to the codec that was chosen."""
    measured = list[int]()

    def told(_hosts: object, rank: int, *_: object) -> Work[tuple[float, ...]]:
        measured.append(rank)
        yield from ()
        return SLOW

    monkeypatch.setattr(costs, "measure_line", told)

    def run(link: Link) -> Run:
        one = Run(link, Auto(codecs=["errbound:2^-4", "bf16"]))
        for number in range(1, WARM_UP + 3 * WINDOW):
            one.weak = number > WARM_UP
            one.step(number)
        return one

    runs = run_ranks(2, run)
    assert runs[0].plans == runs[1].plans
    decided = runs[0].tuner.decisions
    look = WARM_UP + 1 + WINDOW
    assert [step for step, _ in decided] == [WARM_UP + 1, look, look + 1]
    assert str(decided[0][1].plan.codec) == "errbound:2^-4"
    assert codecs_of(decided[1][1].plan) == ["errbound:2^-4"] * 2 + ["bf16"] * 2, "3/8 of all"
    assert "expected step time" in decided[2][1].reason
    assert sorted(measured) == [0, 1], "the line is what it was"


def test_the_time_that_a_gentler_codec_takes_is_no_reason_to_choose_anew() -> None:
    def run(link: Link) -> Run:
        one = Run(link, Auto(codecs=["quantize:8", "bf16"]))
        for number in range(1, WARM_UP + 10 * WINDOW):
            one.small = number > WARM_UP
            one.step(number)
            one.exposed_s = 0.3 if one.exchange.plan.codecs else 0.1
        return one

    runs = run_ranks(2, run)
    assert runs[0].plans == runs[1].plans
    decided = [(step, codecs_of(decision.plan)) for step, decision in runs[0].tuner.decisions]
    assert decided == [(WARM_UP + 1, PLAIN), (WARM_UP + 1 + WINDOW, MIXED)]


def test_what_no_sample_shows_the_exact_average_of_a_drawn_bucket_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of a large bucket only a part is sampled; here that has no biases."""
    configure(monkeypatch, resample_steps=WINDOW)
    monkeypatch.setattr(samples, "_sampled", lambda shapes, _config: [shapes[0], (0,)])

    def run(link: Link) -> Run:
        one = Run(link, Auto(codecs=["quantize:8", "errbound:2^-4", "bf16"]))
        for number in range(1, WARM_UP + 4 * WINDOW + 3):
            one.small = True
            one.step(number)
        return one

    runs = run_ranks(2, run)
    assert runs[0].plans == runs[1].plans
    assert codecs_of(runs[0].plans[WARM_UP]) == PLAIN, "nobody has seen the biases"
    tried = [codecs_of(decision.plan)[1] for _, decision in runs[0].tuner.decisions]
    assert tried[-1] == "bf16", "which keeps the contract, unlike errbound:2^-4"
    assert codecs_of(runs[0].plans[-1]) == MIXED


def test_a_codec_that_exchanges_have_shown_to_suit_few_values_is_not_chosen_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    configure(monkeypatch, resample_steps=WINDOW)
    configure(monkeypatch, sample_count=50)

    def run(link: Link) -> Run:
        one = Run(link, Auto(codecs=["errbound:2^-4"]))
        one.faint = True
        for number in range(1, WARM_UP + 6 * WINDOW + 4):
            one.step(number)
        return one

    runs = run_ranks(2, run)
    assert runs[0].plans == runs[1].plans
    assert str(runs[0].plans[WARM_UP].codec) == "errbound:2^-4"
    some = runs[0].plans[WARM_UP + WINDOW]
    assert [str(some.encoding_of(name)) for name in NAMES[1]] == ["identity"] * 2, "less than most of all"
    assert (runs[0].plans[-1].codec, runs[0].plans[-1].codecs) == (Identity(), ())


def resumed(link: Link, state: State, settings: Auto, steps: int) -> Run:
    """Begin a new process's run, which counts its steps from 1, with the state of another."""
    run = Run(link, settings)
    run.load(state)
    for number in range(1, steps + 1):
        run.step(number)
    return run


def test_a_resumed_run_goes_on_with_the_plan_that_it_had() -> None:
    settings = Auto(codecs=["quantize:8"])
    first = run_ranks(2, train, settings, WARM_UP + 4)
    state = first[0].state
    assert state == first[1].state
    assert State.from_json(state.to_json()) == state
    told: list[tuple[int, str]] = []

    def again(link: Link) -> Run:
        run = Run(link, settings)
        run.load(state if link.rank == 0 else State(2, 3, 6, 60, 0))
        if link.rank == 0:
            vars(run.tuner)["_note"] = lambda step, decision: told.append((step, decision.reason))
        for number in range(1, 3 * WINDOW):
            run.step(number)
        return run

    runs = run_ranks(2, again)
    decision = first[0].tuner.decisions[0][1]
    assert [run.plans for run in runs] == [[decision.plan] * (3 * WINDOW - 1)] * 2, "rank 0's state counts"
    assert runs[0].tuner.decisions == runs[1].tuner.decisions == first[0].tuner.decisions
    assert told == [(WARM_UP + 5, f"as before the checkpoint: {decision.reason}")]
    later = runs[1].state
    assert (later.steps, later.decide_at, later.since) == (WARM_UP + 3 + 3 * WINDOW, WARM_UP + 1, WARM_UP + 1)


@pytest.mark.parametrize("saved_after", [3, WARM_UP])
def test_a_run_that_had_not_decided_measures_anew(saved_after: int) -> None:
    state = run_ranks(2, train, Auto(), saved_after)[0].state
    runs = run_ranks(2, resumed, state, Auto(), WARM_UP + 2)
    assert [run.tuner.decisions[0][0] for run in runs] == [saved_after + WARM_UP + 1] * 2
    assert runs[0].plans[:WARM_UP] == [Auto().first_plan] * WARM_UP


def test_the_state_of_another_number_of_ranks_is_left_out() -> None:
    state = run_ranks(2, train, Auto(), WARM_UP + 2)[0].state
    runs = run_ranks(3, resumed, state, Auto(), 3)
    assert [run.plans for run in runs] == [[Auto().first_plan] * 3] * 3


def test_a_rank_that_dies_during_a_choice_is_an_error_on_the_others() -> None:
    def run(link: Link) -> None:
        one = Run(link, Auto())
        for number in range(1, WARM_UP + 1):
            one.step(number)
        if link.rank == 1:
            link.close()
            return
        with pytest.raises(ExchangeError, match="rank 1"):
            one.step(WARM_UP + 1)
        assert one.exchange.plan == Auto().first_plan

    run_ranks(2, run)


def test_a_plan_that_cannot_be_chosen_leaves_the_present_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survey, "decide", lambda *_: Plan.of("quantise"))
    runs = run_ranks(2, train, Auto(), WARM_UP + 2)
    assert runs[0].plans[-1] == runs[1].plans[-1] == Auto().first_plan
    assert "stays, since no plan could be chosen" in runs[0].tuner.decisions[0][1].reason
