"""``--try``: gradwire is attached to an unchanged script, and what steps took is what is said."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gradwire.errors import JobError
from gradwire.profile.attempt import COUNTED, SETTLING, Tried
from gradwire.profile.script import read_tried
from gradwire.profile.settings import Notes, Settings
from gradwire.tables import lines
from support import profile_ranks

TRIED = Tried("fp8 over ring", 11, (0.2,) * 10, (0.1,) * COUNTED, 64e6, 8e6)


def settings(folder: Path) -> Settings:
    return Settings(str(folder), steps=3, warm_up=2, tries=True)


def test_quiet_steps_give_a_range_and_their_bytes() -> None:
    assert TRIED.speedup == 2
    assert TRIED.verdict() == (
        "A step was measured to be 2 to 2 times as fast with gradwire; gradwire chose fp8 over ring after 11 "
        "attached steps."
    )
    scattered = replace(TRIED, attached_s=tuple(0.1 + 0.0002 * step for step in range(COUNTED)))
    assert 0 < scattered.spread < 0.15
    low, high = (float(word) for word in scattered.verdict().split(" be ")[1].split()[:3:2])
    assert low < scattered.speedup < high
    printed = [line.split() for line in lines(*TRIED.report())]
    assert ["DDP", "as", "it", "is", "10", "200", "0.0%", "64MB"] in printed
    assert ["attached", "30", "100", "0.0%", "8MB"] in printed


def test_a_slower_step_is_no_gain() -> None:
    slower = replace(TRIED, attached_s=(0.4,) * COUNTED).verdict()
    assert "0.5 to 0.5 times as fast" in slower
    assert slower.endswith("Don't attach gradwire here.")


def test_steps_that_scatter_by_more_than_15_percent_are_too_noisy_to_say() -> None:
    noisy = replace(TRIED, plain_s=(0.1, 0.2, 0.3, 0.4, 0.5))
    assert noisy.spread > 0.15
    assert noisy.verdict().startswith("Steps are too noisy to say what gradwire gains: they scatter by ")
    assert "times as fast" not in noisy.verdict()


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    TRIED.save(tmp_path / "tried.json")
    assert Tried.load(tmp_path / "tried.json") == TRIED
    (tmp_path / "tried.json").write_text("{}")
    with pytest.raises(JobError, match="let 'gradwire profile' alone write it"):
        Tried.load(tmp_path / "tried.json")


@pytest.mark.processes
def test_a_script_is_attached_until_the_run_has_chosen(
    run_processes: Callable[..., list[Any]], tmp_path: Path
) -> None:
    (steps, code), other = run_processes(2, profile_ranks.tried, str(tmp_path), "ddp")
    assert (steps, code) == other, "all ranks stop in the same step"
    assert code == 0
    found = read_tried(settings(tmp_path), 0)
    assert found is not None
    assert (len(found.plain_s), len(found.attached_s)) == (3, COUNTED)
    assert found.chosen_after >= SETTLING
    assert steps == 5 + found.chosen_after + COUNTED - 1, "it is stopped in its last backward pass"
    assert found.plain_nbytes == 4 * 11_082
    assert 0 < found.attached_nbytes < 2 * found.plain_nbytes


@pytest.mark.processes
@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (
            "short",
            r"ended after 15 steps, 10 of them attached, before gradwire had chosen a plan and taken 30",
        ),
        ("attached", r"the script lets gradwire exchange its gradients already; profile it without attach"),
        ("hooked", r"rank \d: .*hook"),
        ("fsdp", r"--try attaches gradwire to a DistributedDataParallel, but the script shards with FSDP2"),
    ],
)
def test_a_script_that_cannot_be_tried_says_why(
    run_processes: Callable[..., list[Any]], tmp_path: Path, kind: str, reason: str
) -> None:
    run_processes(2, profile_ranks.tried, str(tmp_path), kind, alone=True)
    with pytest.raises(JobError, match=reason):
        read_tried(settings(tmp_path), 0)


def test_a_script_without_a_model_says_so(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="before it made a DistributedDataParallel"):
        read_tried(settings(tmp_path), 0)
    Notes(3).save(settings(tmp_path).notes)
    with pytest.raises(JobError, match="ended after 3 steps, but 5 are needed"):
        read_tried(settings(tmp_path), 0)
    Notes(done=True, rank=2).save(settings(tmp_path).notes)
    assert read_tried(settings(tmp_path), 0) is None
