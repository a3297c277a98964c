"""``--try``: gradwire is attached to an unchanged script, and what steps took is what is said."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gradwire.errors import JobError
from gradwire.profile.ddp import SETTLING
from gradwire.profile.run import find_result
from gradwire.profile.settings import Notes, Settings
from gradwire.profile.tried import COUNTED, Tried
from support import profile_ranks


def settings(folder: Path) -> Settings:
    return Settings(str(folder), steps=3, warm_up=2, tries=True)


@pytest.mark.processes
def test_a_script_is_attached_until_the_run_has_chosen(
    run_processes: Callable[..., list[Any]], tmp_path: Path
) -> None:
    (steps, code), other = run_processes(2, profile_ranks.tried, str(tmp_path), "ddp")
    assert (steps, code) == other, "all ranks stop in the same step"
    assert code == 0
    found = find_result(settings(tmp_path), 0)
    assert isinstance(found, Tried)
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
            r"ended after 15 steps, 10 of them attached, before 30 steps with gradwire's chosen plan",
        ),
        (
            "attached",
            r"expected a script without gradwire, got one that attaches gradwire; profile the",
        ),
        ("hooked", r"rank \d: .*hook"),
        ("fsdp", r"--try: expected a script with DistributedDataParallel, got one with FSDP2"),
    ],
)
def test_a_script_that_cannot_be_tried_says_why(
    run_processes: Callable[..., list[Any]], tmp_path: Path, kind: str, reason: str
) -> None:
    run_processes(2, profile_ranks.tried, str(tmp_path), kind, alone=True)
    with pytest.raises(JobError, match=reason):
        find_result(settings(tmp_path), 0)


def test_a_script_without_a_model_says_so(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="ended without a DistributedDataParallel"):
        find_result(settings(tmp_path), 0)
    Notes(3).save(settings(tmp_path).notes)
    with pytest.raises(JobError, match="ended after 3 steps, expected 5"):
        find_result(settings(tmp_path), 0)
    Notes(done=True, rank=2).save(settings(tmp_path).notes)
    assert find_result(settings(tmp_path), 0) is None
