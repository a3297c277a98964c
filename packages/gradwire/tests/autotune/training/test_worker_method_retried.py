"""A step that raises in ``compute_loss`` and is taken once more, as after an out-of-memory error."""

from __future__ import annotations

import copy
from collections.abc import Collection
from typing import Any

import pytest
import torch
from torch import nn

from gradwire import DSync, Link, PipeSGD
from support.ranks import run_ranks
from support.told_line import TURNS, WARM_UP, configure, tell_line, tell_times

STEPS = 50
WORLD = 4
with torch.random.fork_rng():
    torch.manual_seed(0)
    MODEL = nn.Sequential(nn.Linear(40, 60), nn.Tanh(), nn.Linear(60, 10))


@pytest.fixture(autouse=True)
def told(monkeypatch: pytest.MonkeyPatch) -> None:
    tell_line(monkeypatch)
    tell_times(monkeypatch)
    configure(monkeypatch, most_trials=3)


def train(link: Link, kind: type[Any], failing: Collection[int]) -> tuple[list[Any], torch.Tensor]:
    """Take ``STEPS`` steps; on the ranks in ``failing``, each of them at the second attempt."""
    model = copy.deepcopy(MODEL)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    generator = torch.Generator().manual_seed(link.rank)
    with kind(model, optimizer, "auto", group=link) as method:
        for _ in range(STEPS):
            x = torch.randn(8, 40, generator=generator)

            def fail(x: torch.Tensor = x) -> torch.Tensor:
                raise MemoryError(str(model(x).shape))

            if link.rank in failing:
                with pytest.raises(MemoryError):
                    method.step(fail)
            method.step(lambda x=x: model(x).square().mean())
        method.drain()
    decisions = [(step, decision.plan) for step, decision in method.decisions]
    return decisions, nn.utils.parameters_to_vector(model.parameters()).detach().clone()


@pytest.mark.parametrize("kind", [DSync, PipeSGD])
def test_retried_steps_end_with_the_decisions_and_bits_of_a_run_without_errors(kind: type[Any]) -> None:
    decisions, weights = run_ranks(WORLD, train, kind, ())[0]
    assert [step for step, _ in decisions[:3]] == [WARM_UP + 1 + each for each in TURNS[:3]], (
        "plans are tried"
    )
    for failing in ((1,), range(WORLD)):
        for own_decisions, own_weights in run_ranks(WORLD, train, kind, failing):
            assert own_decisions == decisions
            assert torch.equal(own_weights, weights)
