from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gradwire.script.entry import START, VARIABLE
from gradwire.script.start.sitecustomize import run_hidden


def test_the_one_that_the_folder_hides_runs_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sitecustomize", sys)
    here, other = tmp_path / "here", tmp_path / "other"
    for folder, word in ((here, "wrong"), (other, "right")):
        folder.mkdir()
        (folder / "sitecustomize.py").write_text(f"found = {word!r}\n", encoding="utf-8")
    run_hidden(str(here), [str(here), str(other)])
    assert sys.modules["sitecustomize"].found == "right"


def test_where_none_is_hidden_nothing_happens(tmp_path: Path) -> None:
    run_hidden(str(tmp_path), [str(tmp_path)])


@pytest.mark.processes
@pytest.mark.parametrize(
    ("program", "said"),
    [
        (["-S", "-c", "import sitecustomize"], False),  # without site-packages, and so without gradwire
        (["-c", ""], True),
    ],
)
def test_the_hidden_one_runs_where_gradwire_cannot(program: list[str], said: bool, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('hidden')\n", encoding="utf-8")
    variables = {**os.environ, "PYTHONPATH": f"{START}{os.pathsep}{tmp_path}", VARIABLE: "no entry"}
    done = subprocess.run(
        [sys.executable, *program], env=variables, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (0, "hidden\n")
    assert ("JobError" in done.stderr) is bool(done.stderr) is said
