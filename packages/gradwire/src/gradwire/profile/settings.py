"""What ``gradwire profile`` tells the processes of a script, through the environment."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from gradwire.errors import JobError
from gradwire.fields import Source, of, text
from gradwire.files import replace_file

VARIABLE = "GRADWIRE_PROFILE"
START = Path(__file__).parent / "start"
"""The folder on ``PYTHONPATH`` whose ``sitecustomize`` every Python runs at its start."""


@dataclass(frozen=True)
class Settings:
    """What to watch, and where to leave it.

    Attributes
    ----------
    folder
        Where what was observed is left.
    steps, warm_up
        How many steps count, and how many before them do not.
    goes_on
        Whether the script goes on after these steps.
    tries
        Whether gradwire is attached after these steps, and more are measured.
    timeout_s
        How long ranks wait for each other when they compare what they have seen.
    """

    folder: str
    steps: int = 10
    warm_up: int = 5
    goes_on: bool = False
    tries: bool = False
    timeout_s: float = 60.0

    @property
    def observed(self) -> Path:
        """The file of what was observed, which rank 0 leaves."""
        return Path(self.folder) / "observed.pt"

    @property
    def tried(self) -> Path:
        """The file of what attached steps took, which rank 0 leaves."""
        return Path(self.folder) / "tried.json"

    @property
    def notes(self) -> Path:
        """The file of ``Notes``, which one rank of each machine leaves."""
        return Path(self.folder) / "notes.json"

    def variables(self, inherited: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of the script."""
        path = os.pathsep.join(filter(None, (str(START), inherited.get("PYTHONPATH"))))
        return {**inherited, VARIABLE: json.dumps(asdict(self)), "PYTHONPATH": path}

    @classmethod
    def of_environment(cls) -> Self | None:
        """Return what the environment says, None where nobody profiles. Raises ``JobError``."""
        words = os.environ.get(VARIABLE)
        if not words:
            return None
        source = Source(VARIABLE, "it is set by 'gradwire profile' alone, so unset it", JobError)
        return source.of_json(words, of(cls))


@dataclass(frozen=True)
class Notes:
    """How far a script has come.

    Attributes
    ----------
    steps
        The steps that its model has taken.
    done
        Whether it has taken enough.
    rank
        Who says so.
    problem
        Why it cannot be watched, in a sentence; empty where it can.
    """

    steps: int = 0
    done: bool = False
    rank: int = 0
    problem: str = ""

    def save(self, path: Path) -> None:
        """Write them; whoever reads the path sees all or nothing."""
        replace_file(path, json.dumps(asdict(self)).encode())

    @classmethod
    def load(cls, path: Path) -> Self | None:
        """Return what ``save`` wrote, None where nothing was."""
        if not path.exists():
            return None
        source = Source(f"the notes {path}", "let 'gradwire profile' alone write them", JobError)
        words = path.read_text(encoding="utf-8", errors="replace")
        return source.of_json(words, of(cls, problem=text))  # another program's error may have lines
