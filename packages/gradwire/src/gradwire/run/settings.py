"""The settings that ``gradwire run`` passes to the processes of a script, in an ``Entry``."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gradwire.errors import JobError
from gradwire.fields import Source, of
from gradwire.script.entry import Entry

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(frozen=True)
class RunSettings:
    """The settings of ``gradwire run`` for the script's processes.

    Attributes
    ----------
    folder
        The folder for the outcome.
    plan
        The codec, or the file of a plan, for ``gradwire.attach``; None if the run chooses its plan.
    timeout_s
        The timeout of every single wait for a peer, in seconds.
    strict
        Whether the script ends with an error if gradwire can't be attached to a model.
    cycles
        The number of cycles of a comparison; 0 for none.
    quiet
        Whether rank 0 prints nothing.
    """

    folder: str
    plan: str | None = None
    timeout_s: float = 30.0
    strict: bool = False
    cycles: int = 0
    quiet: bool = False

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

    def entry(self) -> Entry:
        """Return the ``Entry`` that starts a ``RunSession`` in the script's processes."""
        return Entry(self.folder, "gradwire.run.session:session_of", json.dumps(asdict(self)))

    @classmethod
    def of_text(cls, words: str) -> Self:
        """Return the settings in the text of an ``Entry``. Raises ``JobError``."""
        return Source("a run's settings", "run 'gradwire run' again", JobError).of_json(words, of(cls))
