from __future__ import annotations

from pathlib import Path

import pytest

from gradwire.autotune.steps import Observed
from gradwire.errors import JobError
from gradwire.profile.run import find_result
from gradwire.profile.settings import Notes, Settings
from support.observations import observed


def test_what_rank_0_leaves_is_read(tmp_path: Path) -> None:
    settings = Settings(str(tmp_path))
    observed().save(settings.observed)
    found = find_result(settings, 1)
    assert isinstance(found, Observed)
    assert found.values() == observed().values()


def test_a_machine_without_rank_0_has_nothing_to_print(tmp_path: Path) -> None:
    settings = Settings(str(tmp_path))
    Notes(15, done=True, rank=3).save(settings.notes)
    assert find_result(settings, 0) is None


@pytest.mark.parametrize(
    ("notes", "code", "sentence"),
    [
        (None, 0, "the script ended without a DistributedDataParallel or an FSDP2 module"),
        (None, 7, "the script ended with exit code 7, see above, without a Distributed"),
        (Notes(3), 0, "the script ended after 3 steps, expected 15 \\(5 to warm up, 10 to measure\\)"),
        (Notes(1), 1, "the script ended with exit code 1, see above, after 1 step, expected 15"),
        (Notes(problem="it has no peers"), 0, "^it has no peers$"),
    ],
)
def test_why_nothing_was_observed_is_one_sentence(
    tmp_path: Path, notes: Notes | None, code: int, sentence: str
) -> None:
    settings = Settings(str(tmp_path))
    if notes is not None:
        notes.save(settings.notes)
    with pytest.raises(JobError, match=sentence):
        find_result(settings, code)
