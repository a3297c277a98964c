from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from gradwire.autotune.steps import Observed
from gradwire.profile.session import Session
from gradwire.profile.settings import Notes, Settings
from support import profile_ranks
from support.observations import observed

pytestmark = pytest.mark.processes
FLOATS = 32 * 64 + 64 + 2 * (64 * 64 + 64) + 64 * 10 + 10


@pytest.mark.parametrize(
    ("world", "kind"),
    [(3, "plain"), (3, "views"), (2, "unused"), (2, "accumulate"), (2, "checkpoint")],
)
def test_a_profiled_ddp_script_has_the_bits_of_a_plain_one(
    run_processes: Callable[..., list[Any]], tmp_path: Path, world: int, kind: str
) -> None:
    for profiled, plain, left in run_processes(world, profile_ranks.ddp, str(tmp_path), kind):
        assert len(profiled) == profile_ranks.STEPS
        assert all(map(torch.equal, profiled, plain))
        assert left["parameters"] > 0
        assert left["hooks"] == 0, "nothing is left of it"
    seen = Observed.load(tmp_path / "observed.pt")
    assert (seen.kind, seen.world, seen.ranks_per_machine, seen.steps) == ("DDP", world, world, 3)
    assert len(seen.counts) > 1, "DDP cuts the model into buckets"
    more = 32 * 32 + 32 if kind == "checkpoint" else 0
    assert sum(seen.counts) == FLOATS + more
    assert [each.numel() for each in seen.gradients] == [FLOATS + more] * 3
    assert not torch.equal(seen.gradients[0], seen.gradients[1])
    assert 0 < seen.backward_s <= seen.compute_s < 5
    assert seen.line is not None
    assert Notes.load(tmp_path / "notes.json") == Notes(6, done=True)


def test_a_profiled_fsdp_script_has_the_bits_of_a_plain_one(
    run_processes: Callable[..., list[Any]], tmp_path: Path
) -> None:
    for profiled, plain, names in run_processes(2, profile_ranks.fsdp, str(tmp_path)):
        assert all(map(torch.equal, profiled, plain))
        assert len(profiled) == profile_ranks.STEPS
        assert len(set(names)) == 1, "FSDP has its own collectives again"
    seen = Observed.load(tmp_path / "observed.pt")
    assert (seen.kind, seen.world, seen.backward_s) == ("FSDP2", 2, 0.0)
    assert sum(seen.counts) == FLOATS
    assert len(seen.counts) == 3
    assert sum(seen.gathers) >= FLOATS
    assert 0 < seen.exposed_s < seen.step_s
    assert all(math.isfinite(float(each.sum())) for each in seen.gradients)
    assert [each.numel() for each in seen.gradients] == [FLOATS] * len(seen.gradients)
    assert len(seen.gradients) >= 2


def test_the_script_is_stopped_after_the_last_step_that_counts(
    run_processes: Callable[..., list[Any]], tmp_path: Path
) -> None:
    assert run_processes(2, profile_ranks.stopped, str(tmp_path)) == [(4, 0)] * 2  # in the fifth backward
    assert Observed.load(tmp_path / "observed.pt").steps == 3
    assert sorted(each.name for each in tmp_path.iterdir() if each.is_file()) == ["notes.json", "observed.pt"]


def test_a_model_without_peers_is_one_sentence(
    run_processes: Callable[..., list[Any]], tmp_path: Path
) -> None:
    assert run_processes(2, profile_ranks.alone, str(tmp_path)) == [0, 0]
    notes = Notes.load(tmp_path / "notes.json")
    assert notes is not None
    assert "expected a script with 2 or more ranks, got 1" in notes.problem


def test_a_rank_that_is_late_creates_no_folder_again(tmp_path: Path) -> None:
    gone = Settings(str(tmp_path / "gone"))
    Session(gone)._leave(observed())
    assert not Path(gone.folder).exists()
    here = Settings(str(tmp_path))
    Session(here)._leave(observed())
    assert here.observed.exists()
