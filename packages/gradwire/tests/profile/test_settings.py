from __future__ import annotations

from pathlib import Path

import pytest

from gradwire.errors import JobError
from gradwire.profile.settings import Notes, Settings


def test_an_entry_carries_the_settings() -> None:
    settings = Settings("/somewhere", steps=4, goes_on=True)
    entry = settings.entry()
    assert entry.folder == "/somewhere"
    assert entry.observer == "gradwire.profile.session:session_of"
    assert Settings.of_text(entry.settings) == settings


@pytest.mark.parametrize("text", ["x", "[]", '{"folder": "a", "other": 1}', "{}"])
def test_other_settings_are_refused(text: str) -> None:
    with pytest.raises(JobError, match=r"a profile's settings.*; run 'gradwire profile' again"):
        Settings.of_text(text)


def test_notes_survive_a_file(tmp_path: Path) -> None:
    path = tmp_path / "notes.json"
    for notes in (Notes(), Notes(3, done=True, rank=2), Notes(problem="no peers:\nat \x1b[1m10.0.0.1")):
        notes.save(path)
        assert Notes.load(path) == notes
    assert list(tmp_path.iterdir()) == [path]
