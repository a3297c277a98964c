"""Scripts without gradwire, to which a session attaches it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from gradwire.run.comparison import ATTACHED, BF16, PLAIN
from gradwire.run.models import IDLE_STEPS, SETTLING
from gradwire.run.outcome import RunOutcome
from gradwire.run.session import NO_PASS
from gradwire.run.settings import RunSettings
from gradwire.sync.ledger.summary import read_summary
from support import run_ranks
from support.forks import torchrun

pytestmark = pytest.mark.processes
Run = Callable[..., list[Any]]
DDP = "DistributedDataParallel 'Sequential'"


def outcome(folder: Path) -> RunOutcome:
    assert (folder / "elsewhere").exists(), "the other ranks leave a sign"
    return RunOutcome.load(folder / "outcome.json")


@pytest.mark.parametrize(
    ("plan", "kind"),
    [("identity", "plain"), ("fp8", "views"), ("quantize:4", "accumulates"), ("fp8", "evaluates")],
)
def test_a_ddp_script_ends_with_the_bits_of_attach(
    run_processes: Run, tmp_path: Path, plan: str, kind: str
) -> None:
    for plain, run, attached in run_processes(2, run_ranks.ddp, str(tmp_path), plan, kind):
        assert torch.equal(run, attached)
        assert torch.equal(run, plain) is (plan == "identity")
    (found,) = outcome(tmp_path).models
    assert (found.name, found.problem) == (DDP, "")
    assert found.plan == f"{plan} over ring"
    summary = read_summary(found.ledger)
    assert summary.steps == run_ranks.STEPS
    assert len(summary.buckets) > 1


@pytest.mark.parametrize(("plan", "replicas"), [("identity", 1), ("fp8", 1), (None, 2)])
def test_an_fsdp_script_ends_with_the_bits_of_attach_fsdp(
    run_processes: Run, tmp_path: Path, plan: str | None, replicas: int
) -> None:
    world = 4 if replicas > 1 else 2
    for plain, run, attached in run_processes(world, run_ranks.fsdp, str(tmp_path), plan, replicas):
        assert torch.equal(run, attached)
        assert torch.equal(run, plain) is (plan == "identity")
    (found,) = outcome(tmp_path).models
    assert (found.name, found.problem) == ("FSDP2 'Sequential'", "")
    assert read_summary(found.ledger).steps == run_ranks.STEPS


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("hook", "the script registers the communication hook fp16_compress_hook"),
        ("attached", "the script attaches gradwire itself"),
    ],
)
def test_a_script_with_its_own_hook_stays_as_it_is(
    run_processes: Run, tmp_path: Path, kind: str, reason: str
) -> None:
    for plain, run, error in run_processes(2, run_ranks.refused, str(tmp_path), kind):
        assert torch.equal(plain, run)
        assert error == ""
    (found,) = outcome(tmp_path).models
    assert (found.problem, found.plan, found.ledger) == (reason, "", {})


def test_strict_ends_such_a_script_before_its_first_step(run_processes: Run, tmp_path: Path) -> None:
    for plain, run, error in run_processes(2, run_ranks.refused, str(tmp_path), "hook", True):
        assert not torch.equal(plain, run)
        assert error.startswith(f"gradwire run --strict: {DDP} is not attached: the script registers")


def test_one_rank_is_told_why(run_processes: Run, tmp_path: Path) -> None:
    (found,) = run_processes(1, run_ranks.ddp, str(tmp_path), "fp8", "plain")
    assert torch.equal(found[0], found[1])
    (model,) = RunOutcome.load(tmp_path / "outcome.json").models
    assert model.problem.startswith("the job has 1 rank, which exchanges nothing; start more")


def test_each_of_several_models_is_attached_once_it_trains(run_processes: Run, tmp_path: Path) -> None:
    for first, second, copied in run_processes(2, run_ranks.several, str(tmp_path)):
        assert torch.equal(first, second)
        assert not torch.equal(first, copied), "a copy is averaged by DDP"
    found = outcome(tmp_path).models
    assert [each.problem for each in found] == ["", "", NO_PASS]
    assert [read_summary(each.ledger).steps for each in found[:2]] == [run_ranks.STEPS] * 2


def test_all_ranks_go_on_plain_if_one_cannot_attach(run_processes: Run, tmp_path: Path) -> None:
    for run, plain in run_processes(2, run_ranks.one_rank_cannot, str(tmp_path), alone=True):
        assert torch.equal(run, plain)
    (found,) = outcome(tmp_path).models
    assert "expected all ranks to attach, but rank 1 cannot (no memory is left)" in found.problem


DIES = """
import os, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

if __name__ == "__main__":
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(30, 20))
    for step in range(100):
        model(torch.randn(2, 30)).square().mean().backward()
        if step == 50:
            time.sleep(2.5)  # the result is saved every two seconds
        if step == 60 and dist.get_rank() == 1:
            os._exit(9)
"""


def test_a_dead_rank_leaves_the_result_so_far(tmp_path: Path) -> None:
    script, settings = tmp_path / "train.py", RunSettings(str(tmp_path), "fp8")
    script.write_text(DIES, encoding="utf-8")
    variables = settings.entry().variables({})
    done = torchrun(script, log=tmp_path / "log", cwd=tmp_path, variables=variables)
    assert done.returncode == 1
    assert "attached to DistributedDataParallel 'Linear' (2.48kB of gradients)" in done.stderr
    (found,) = outcome(tmp_path).models
    assert 50 <= read_summary(found.ledger).steps <= 61


@pytest.mark.parametrize(("kind", "methods"), [("ddp", (PLAIN, BF16, ATTACHED)), ("fsdp", (PLAIN, ATTACHED))])
def test_steps_take_turns(run_processes: Run, tmp_path: Path, kind: str, methods: tuple[str, ...]) -> None:
    compared = 3 * 5 * len(methods)
    results = run_processes(2, run_ranks.compared, str(tmp_path), kind, SETTLING + compared + 4)
    for found, seen in results:
        first, second = methods, methods[::-1]
        turns = [method for order in (first, second, first) for method in order for _ in range(5)]
        assert seen == [*[ATTACHED] * SETTLING, *turns, *[ATTACHED] * 4]
        assert {method: len(each) for method, each in found["cycles"].items()} == dict.fromkeys(methods, 3)
        assert all(second > 0 for each in found["cycles"].values() for second in each)
        assert found["steps"] == SETTLING + 15 + 4, "gradwire's ledger has the steps that it averaged"
    assert results[0][1] == results[1][1]
    assert outcome(tmp_path).cycles_s is not None


def test_a_model_that_trains_no_more_does_not_keep_the_others_from_gradwire(
    run_processes: Run, tmp_path: Path
) -> None:
    for seen, cycles in run_processes(2, run_ranks.finished_in_a_turn, str(tmp_path)):
        assert seen[:IDLE_STEPS] == [PLAIN] * IDLE_STEPS
        assert seen[IDLE_STEPS : IDLE_STEPS + SETTLING] == [ATTACHED] * SETTLING
        assert cycles == 3
        assert seen[-4:] == [ATTACHED] * 4


def test_a_run_that_chooses_its_plan_is_compared_after_its_choice(run_processes: Run, tmp_path: Path) -> None:
    for found, seen in run_processes(2, run_ranks.compared, str(tmp_path), "auto", 320):
        assert set(seen) == {PLAIN, BF16, ATTACHED}
        assert len(found["cycles"][PLAIN]) == 3


def test_a_script_that_ends_early_has_the_rounds_so_far(run_processes: Run, tmp_path: Path) -> None:
    for found, _ in run_processes(2, run_ranks.compared, str(tmp_path), "ddp", SETTLING + 2):
        assert found["cycles"] == {PLAIN: (), BF16: (), ATTACHED: ()}
