"""A step that begins twice, since the script has taken it once more, is steered once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from gradwire import Auto, Link
from support import retried_ranks
from support.piloted import Run
from support.ranks import run_ranks
from support.told_line import WARM_UP, tell_line

RunProcesses = Callable[..., list[Any]]


def test_a_repeated_step_sends_nothing_and_begins_with_no_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    tell_line(monkeypatch)

    def body(link: Link) -> Run:
        run = Run(link, Auto())
        for number in range(1, WARM_UP + 3):
            if link.rank:  # the other rank takes each step once
                run.tuner.begin(number, run)  # and it fails before it takes that plan
                samples = run.tuner._samples
                if samples is not None:
                    samples.expect([(3,)], ["of the first attempt"])
            run.step(number)
        return run

    runs = run_ranks(2, body)
    assert runs[0].plans == runs[1].plans
    assert len(runs[1].tuner.decisions) == 1


@pytest.mark.processes
@pytest.mark.parametrize("method", [retried_ranks.ddp, retried_ranks.fsdp])
def test_a_forward_pass_that_raises_in_each_step_changes_nothing(
    method: Callable[..., Any], run_processes: RunProcesses
) -> None:
    """``PipeSGD`` and ``DSync`` are tested in ``training/methods``."""
    expected = run_processes(2, method, ())
    assert expected[0]["decisions"]
    for failing in ((1,), (0, 1)):
        for found, wanted in zip(run_processes(2, method, failing), expected, strict=True):
            assert found["decisions"] == wanted["decisions"]
            assert all(torch.equal(a, b) for a, b in zip(found["weights"], wanted["weights"], strict=True))
