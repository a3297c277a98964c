from __future__ import annotations

from pathlib import Path

import pytest

from gradwire.errors import JobError
from gradwire.run.outcome import ModelOutcome, RunOutcome
from gradwire.run.settings import RunSettings


def test_an_outcome_survives_a_file(tmp_path: Path) -> None:
    path = tmp_path / "outcome.json"
    for outcome in (
        RunOutcome(),
        RunOutcome(
            (ModelOutcome("DDP", "a\nb"),), {"plain": (1.0, 2.0), "attached": (3.0, 4.0)}, "fp8 over ring"
        ),
    ):
        outcome.save(path)
        assert RunOutcome.load(path) == outcome
    assert [*tmp_path.iterdir()] == [path]


@pytest.mark.parametrize(
    "text", ["", "[]", '{"models": [{}]}', '{"cycles_s": {"plain": [-1], "attached": [1]}}', '{"x": 1}']
)
def test_a_damaged_outcome_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "outcome.json").write_text(text, encoding="utf-8")
    with pytest.raises(JobError, match="run 'gradwire run' again"):
        RunOutcome.load(tmp_path / "outcome.json")


def test_an_entry_carries_the_settings() -> None:
    settings = RunSettings("/somewhere", "fp8", 5.0, strict=True, cycles=3)
    entry = settings.entry()
    assert entry.folder == "/somewhere"
    assert RunSettings.of_text(entry.settings) == settings
    assert str(settings.outcome.parent) == str(settings.elsewhere.parent) == "/somewhere"
    with pytest.raises(JobError, match="a run's settings"):
        RunSettings.of_text("{}")
