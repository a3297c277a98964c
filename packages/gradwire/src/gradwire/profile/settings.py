"""The settings of a profile, which ``gradwire profile`` passes to the processes of a script."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gradwire.errors import JobError
from gradwire.fields import Source, of, text
from gradwire.files import replace_file
from gradwire.script.entry import Entry

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(frozen=True)
class Settings:
    """The settings of a profile, and the paths of its results.

    Attributes
    ----------
    folder
        The folder for results.
    steps, warm_up
        The number of measured steps, and of unmeasured steps before them.
    goes_on
        Whether the script continues after the measured steps.
    tries
        Whether to attach gradwire after the measured steps, and to measure further steps.
    timeout_s
        The timeout of each wait for other ranks while the ranks combine their observations.
    """

    folder: str
    steps: int = 10
    warm_up: int = 5
    goes_on: bool = False
    tries: bool = False
    timeout_s: float = 60.0

    @property
    def observed(self) -> Path:
        """The file of the observation, which rank 0 writes."""
        return Path(self.folder) / "observed.pt"

    @property
    def tried(self) -> Path:
        """The file of the measurement of attached steps, which rank 0 writes."""
        return Path(self.folder) / "tried.json"

    @property
    def notes(self) -> Path:
        """The file of the ``Notes`` on this machine."""
        return Path(self.folder) / "notes.json"

    def entry(self) -> Entry:
        """Return the ``Entry`` that creates the profile's session in each process of the script."""
        return Entry(self.folder, "gradwire.profile.session:session_of", json.dumps(asdict(self)))

    @classmethod
    def of_text(cls, words: str) -> Self:
        """Read the settings from the text in an ``Entry``. Raises ``JobError``."""
        source = Source("a profile's settings", "run 'gradwire profile' again", JobError)
        return source.of_json(words, of(cls))


@dataclass(frozen=True)
class Notes:
    """The progress of a script, as one rank reports it.

    Attributes
    ----------
    steps
        The number of steps of the script's model so far.
    done
        Whether the profile has all the steps that it needs.
    rank
        The rank that writes these notes.
    problem
        The reason why the script cannot be observed, in a sentence; empty without a problem.
    """

    steps: int = 0
    done: bool = False
    rank: int = 0
    problem: str = ""

    def save(self, path: Path) -> None:
        """Write the notes atomically."""
        replace_file(path, json.dumps(asdict(self)).encode())

    @classmethod
    def load(cls, path: Path) -> Self | None:
        """Return the notes in a file, or None if there is no file. Raises ``JobError`` for invalid notes."""
        if not path.exists():
            return None
        source = Source(f"the notes {path}", "run 'gradwire profile' again", JobError)
        words = path.read_text(encoding="utf-8", errors="replace")
        return source.of_json(words, of(cls, problem=text))  # another program's error may have several lines
