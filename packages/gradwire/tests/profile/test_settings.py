from __future__ import annotations

import os
from pathlib import Path

import pytest

from gradwire.errors import JobError
from gradwire.profile.settings import START, VARIABLE, Notes, Settings


def test_the_environment_carries_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings("/somewhere", steps=4, goes_on=True)
    found = settings.variables({"PYTHONPATH": "/mine", "HOME": "/home"})
    assert found["PYTHONPATH"].split(os.pathsep) == [str(START), "/mine"]
    assert found["HOME"] == "/home"
    assert settings.variables({})["PYTHONPATH"] == str(START)
    assert (START / "sitecustomize.py").is_file()
    monkeypatch.setenv(VARIABLE, found[VARIABLE])
    assert Settings.of_environment() == settings
    monkeypatch.delenv(VARIABLE)
    assert Settings.of_environment() is None


@pytest.mark.parametrize("text", ["x", "[]", '{"folder": "a", "other": 1}', "{}"])
def test_what_somebody_else_has_set_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(VARIABLE, text)
    with pytest.raises(JobError, match=r"GRADWIRE_PROFILE.*; only 'gradwire profile' sets it"):
        Settings.of_environment()


def test_notes_survive_a_file(tmp_path: Path) -> None:
    path = tmp_path / "notes.json"
    assert Notes.load(path) is None
    for notes in (Notes(), Notes(3, done=True, rank=2), Notes(problem="no peers:\nat \x1b[1m10.0.0.1")):
        notes.save(path)
        assert Notes.load(path) == notes
    assert list(tmp_path.iterdir()) == [path]
