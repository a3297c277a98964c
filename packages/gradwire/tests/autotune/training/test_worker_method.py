"""Training methods on ranks with batches choose their plan by themselves, and resume with it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from gradwire import Auto, DSync, Ledger, Link, PipeSGD
from gradwire.codecs import DEFAULT_CODEC, Identity, parse
from gradwire.errors import StateError
from gradwire.sync.checkpoint import RankState, pack
from support.ranks import run_ranks
from support.told_line import FAST, TURNS, WARM_UP, Told, configure, tell_line

METHODS = [DSync, PipeSGD]
with torch.random.fork_rng():
    torch.manual_seed(0)  # what plans are tried depends on the gradients
    MODEL = nn.Sequential(nn.Linear(40, 60), nn.Tanh(), nn.Linear(60, 10))


@pytest.fixture(autouse=True)
def line(monkeypatch: pytest.MonkeyPatch) -> Told:
    return tell_line(monkeypatch)


def run(link: Link, kind: Callable[..., Any], plan: Any, steps: int) -> tuple[Any, torch.Tensor]:
    model = copy.deepcopy(MODEL)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    generator = torch.Generator().manual_seed(link.rank)
    with kind(model, optimizer, plan, group=link) as method:
        for _ in range(steps):
            x = torch.randn(8, 40, generator=generator)
            method.step(lambda x=x: model(x).square().mean())
        if isinstance(method, PipeSGD):
            method.drain()
            method.check_replicas()
    return method, nn.utils.parameters_to_vector(model.parameters()).detach().clone()


@pytest.mark.parametrize("kind", METHODS)
@pytest.mark.parametrize("world", [2, 3])
def test_all_ranks_take_one_plan_in_the_same_step(kind: type[Any], world: int) -> None:
    ranks = run_ranks(world, run, kind, "auto", WARM_UP + 4)
    methods, weights = zip(*ranks, strict=True)
    ((step, decision),) = methods[0].decisions
    assert step == WARM_UP + 1
    assert all(each.plan == decision.plan for each in methods)
    assert decision.plan.codec != Identity(), "at 100 kB/s"
    assert decision.plan.pipeline == (2 if kind is PipeSGD else 1)
    assert all(torch.equal(each, weights[0]) for each in weights)


TRIED = WARM_UP + TURNS[-1] + 2


@pytest.mark.parametrize("kind", METHODS)
def test_all_ranks_try_the_same_plans_and_keep_the_same_one(
    kind: type[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(monkeypatch, most_trials=3)
    ranks = run_ranks(4, run, kind, "auto", TRIED)
    methods, weights = zip(*ranks, strict=True)
    steps = [step for step, _ in methods[0].decisions]
    assert steps == [WARM_UP + 1 + each for each in TURNS]
    assert all(each.plan == methods[0].decisions[-1][1].plan for each in methods)
    assert all(torch.equal(each, weights[0]) for each in weights)


def test_no_plan_is_tried_while_a_pipeline_warms_up(monkeypatch: pytest.MonkeyPatch) -> None:
    configure(monkeypatch, most_trials=3)
    steps = WARM_UP + 16  # before what exchanges lose is looked at
    ranks = run_ranks(4, run, partial(PipeSGD, warmup_steps=60), "auto", steps)
    assert all(len(method.decisions) == 1 for method, _ in ranks)


HALF, STEPS = WARM_UP + 4, WARM_UP + 10


def halved(link: Link, kind: type[Any], resumed: Any) -> dict[str, Any]:
    """Train in one piece, and again from the state that the first run had in its midst."""
    found: dict[str, Any] = {}
    saved: dict[str, Any] = {}
    for name, plan, first in (("whole", "auto", 0), ("resumed", resumed, HALF)):
        model = copy.deepcopy(MODEL)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        parts: dict[str, Any] = {"model": model, "optimizer": optimizer}
        ledger = Ledger(link.rank)
        with kind(model, optimizer, plan, group=link, ledger=ledger) as method:
            parts["method"] = method
            for part, state in saved.items():
                parts[part].load_state_dict(state)
            found["plan at once"] = method.plan
            for step in range(first, STEPS):
                if step == HALF and not saved:
                    saved = copy.deepcopy({part: each.state_dict() for part, each in parts.items()})
                x = torch.randn(8, 40, generator=torch.Generator().manual_seed(100 * step + link.rank))
                method.step(lambda x=x, model=model: model(x).square().mean())
            if isinstance(method, PipeSGD):
                method.drain()
            found[f"{name} decisions"] = [(step, each.plan) for step, each in method.decisions]
            found[name] = nn.utils.parameters_to_vector(model.parameters()).detach().clone()
    found["told"] = ledger.summary().decided
    return found


@pytest.mark.parametrize("kind", METHODS)
def test_a_resumed_run_goes_on_with_the_plan_that_it_had_and_the_same_bits(kind: type[Any]) -> None:
    ranks = run_ranks(2, halved, kind, "auto")
    for found in ranks:
        assert torch.equal(found["resumed"], found["whole"])
        assert found["resumed decisions"] == found["whole decisions"]
        ((step, plan),) = found["resumed decisions"]
        assert step == WARM_UP + 1
        assert found["plan at once"] == plan
        assert plan.codec != parse(DEFAULT_CODEC), "another one than a run begins with"
        (told,) = found["told"]
        assert told.startswith(f"from step {HALF + 1} on, as before the checkpoint: ")
    assert torch.equal(ranks[0]["whole"], ranks[1]["whole"])


@pytest.mark.parametrize("kind", METHODS)
def test_a_run_with_a_fixed_plan_keeps_it_whatever_the_state_says(kind: type[Any]) -> None:
    for found in run_ranks(2, halved, kind, "bf16"):
        assert found["plan at once"].codec == parse("bf16")
        assert found["resumed decisions"] == []
        assert not found["told"]


@pytest.mark.parametrize("kind", METHODS)
def test_a_run_with_other_settings_measures_anew_whatever_the_state_says(kind: type[Any]) -> None:
    settings = Auto(max_lost_norm=0.001, codecs=["lossless"])
    ranks = run_ranks(2, halved, kind, settings)
    for found in ranks:
        assert found["plan at once"].codec == settings.first_plan.codec
        ((step, plan),) = found["resumed decisions"]
        assert step == HALF + WARM_UP + 1
        assert plan.codec in settings.candidates
        assert torch.equal(found["resumed"], ranks[0]["resumed"])


def test_a_choice_of_another_pipeline_is_left_out() -> None:
    def body(link: Link) -> Any:
        first, _ = run(link, DSync, "auto", WARM_UP + 2)
        model = copy.deepcopy(MODEL)
        with PipeSGD(model, torch.optim.SGD(model.parameters(), lr=0.05), "auto", group=link) as method:
            method.load_state_dict(first.state_dict())
            for _ in range(3):
                method.step(lambda: model(torch.ones(8, 40)).square().mean())
            return first.decisions, method.decisions, method.plan.pipeline

    for saved, decisions, pipeline in run_ranks(2, body):
        assert saved
        assert (decisions, pipeline) == ([], 2)


@pytest.mark.parametrize("kind", METHODS)
def test_a_state_whose_choice_is_damaged_changes_nothing(kind: type[Any]) -> None:
    def body(link: Link) -> Any:
        model = copy.deepcopy(MODEL)
        with kind(model, torch.optim.SGD(model.parameters(), lr=0.1), "auto", group=link) as method:
            state = pack(RankState(link.rank, link.world, 7, auto='{"world": "two"}'))
            with pytest.raises(StateError, match="automatic choice"):
                method.load_state_dict(state)
            return method.steps_done, method.plan.codec

    assert run_ranks(2, body) == [(0, parse(DEFAULT_CODEC))] * 2


@pytest.mark.parametrize("kind", METHODS)
def test_training_goes_on_without_compression_where_nothing_else_is_allowed(
    kind: type[Any], line: Told
) -> None:
    line["line"] = FAST
    (method, weights), (_, others) = run_ranks(2, run, kind, Auto(codecs=[]), WARM_UP + 30)
    assert method.plan.codec == Identity()
    assert torch.equal(weights, others)
    _, (_, exact) = run_ranks(2, run, kind, "identity", WARM_UP + 30)
    torch.testing.assert_close(weights, exact, rtol=0.05, atol=2e-2)


def test_all_of_a_large_gradient_is_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    configure(monkeypatch, sampled_nbytes=4 * 60, sample_count=50)
    seen = []

    def body(link: Link) -> None:
        method, _ = run(link, DSync, "auto", WARM_UP)
        seen.append(method._chooser._samples)

    run_ranks(2, body)
    assert sum(seen[0].counts) == 40 * 60 + 60 + 60 * 10 + 10
    assert len(seen[0].counts) == 4


@pytest.mark.parametrize("kind", METHODS)
def test_a_rank_with_a_fixed_plan_among_others_is_an_error(kind: type[Any]) -> None:
    def body(link: Link) -> None:
        run(link, kind, "auto" if link.rank else "fp8", WARM_UP + 2)

    failures = run_ranks(2, body, errors="return", links=None, timeout_s=2.0)
    assert any(isinstance(each, Exception) for each in failures)
