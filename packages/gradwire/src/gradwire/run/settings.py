"""The settings that ``gradwire run`` passes to the processes of a script."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from gradwire.script.entry import ScriptSettings


@dataclass(frozen=True)
class RunSettings(ScriptSettings):
    """The settings of ``gradwire run`` for the script's processes."""

    COMMAND: ClassVar[str] = "run"
    plan: str | None = None  # the codec, or the file of a plan; None if the run chooses its plan
    timeout_s: float = 30.0  # for every single wait for a peer
    strict: bool = False  # whether the script ends with an error if gradwire can't be attached
    cycles: int = 0  # of a comparison; 0 for none
    quiet: bool = False  # whether rank 0 prints nothing

    @property
    def outcome(self) -> Path:
        """The file of the outcome, which rank 0 writes."""
        return Path(self.folder) / "outcome.json"

    @property
    def elsewhere(self) -> Path:
        """The file that ranks other than 0 write. On a machine without rank 0, it shows that ranks ran."""
        return Path(self.folder) / "elsewhere"

    @property
    def facts(self) -> dict[str, str]:
        """The settings that must be equal on all ranks, except the plan, which ``attach`` compares."""
        compares = f"with {self.cycles} cycles" if self.cycles else "no"
        return {"--strict": str(self.strict), "--timeout": str(self.timeout_s), "--compare": compares}
