"""The settings of a profile, which ``gradwire profile`` passes to the processes of a script."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

from gradwire.fields import text
from gradwire.script.entry import ScriptResult, ScriptSettings


@dataclass(frozen=True)
class Settings(ScriptSettings):
    """The settings of a profile, and the paths of its results."""

    COMMAND: ClassVar[str] = "profile"
    steps: int = 10  # measured steps
    warm_up: int = 5  # unmeasured steps before them
    goes_on: bool = False  # whether the script continues after the measured steps
    tries: bool = False  # whether to attach gradwire after these steps, and to measure further steps
    timeout_s: float = 60.0  # of each wait for other ranks while the ranks combine their observations

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


@dataclass(frozen=True)
class Notes(ScriptResult):
    """The progress of a script, as one rank reports it."""

    COMMAND: ClassVar[str] = "profile"
    WHAT: ClassVar[str] = "notes"
    KINDS: ClassVar[Mapping[str, Any]] = MappingProxyType({"problem": text})
    steps: int = 0  # of the script's model so far
    done: bool = False  # whether the profile has all the steps that it needs
    rank: int = 0  # the rank that writes these notes
    problem: str = ""  # why the script cannot be observed; another program's error may have several lines
