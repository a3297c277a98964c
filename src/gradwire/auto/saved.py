"""Decisions of earlier runs: the last one of each in a file, and those in checkpoints."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from gradwire.auto.choice.decision import Decision
from gradwire.auto.choice.permitted import refusal
from gradwire.auto.form import Form
from gradwire.auto.settings import Auto, terms_of
from gradwire.auto.state import State
from gradwire.checksum import SUM, check_sealed, sealed
from gradwire.errors import GradwireError, SpecError, one_line
from gradwire.files import write_files
from gradwire.machine import machine_id
from gradwire.records import make_record, read_record, to_json
from gradwire.version import version

SCHEMA = "gradwire.auto/1"
_SEALED = ("key", "settings", "decision", SUM)
_MOST_NBYTES = 1 << 24
"""Far above any decision; and ranks tell each other how long a text is in float32, which ends there."""
_LOG = logging.getLogger("gradwire")


def fingerprint(shapes: Sequence[Sequence[int]], world: int, way: str) -> str:
    """Return what a decision is for: parameters, ranks, a way to exchange them, a machine, and a version."""
    facts = json.dumps([[*map(list, shapes)], world, way, machine_id(), version()])
    return hashlib.sha256(facts.encode()).hexdigest()


@dataclass(frozen=True)
class Saved:
    """The saved decisions that a run may go on with: those that its present settings allow.

    Parameters
    ----------
    settings
        What the user wants of this run.
    form
        How it exchanges its gradients.
    names
        Those of the model's parameters.
    key
        The ``fingerprint`` of the run.
    tells
        True on the rank that logs why a decision is left out.
    """

    settings: Auto
    form: Form
    names: Collection[str]
    key: str
    tells: bool

    def load(self) -> Decision | None:
        """Return the decision of the file that the settings name, if the run may use it."""
        place = self.settings.place
        found = None if place is None else load(place, self.key, terms_of(self.settings))
        return found if found is not None and self._allows(found, f"the decision in {place}") else None

    def save(self, decision: Decision) -> None:
        """Write a decision to that file."""
        if self.settings.place is not None:
            save(self.settings.place, self.key, terms_of(self.settings), decision)

    def allows(self, state: State) -> bool:
        """Return whether the run may go on with the state of a checkpoint."""
        if state.settings and state.settings != terms_of(self.settings):
            why = f"expected its settings to be {terms_of(self.settings)}, got {state.settings}"
            return self._leave_out("the choice in the checkpoint", why)
        return not state.decisions or self._allows(state.decisions[-1][1], "the choice in the checkpoint")

    def _allows(self, decision: Decision, called: str) -> bool:
        why = refusal(decision, self.settings, self.form, self.names)
        return not why or self._leave_out(called, why)

    def _leave_out(self, called: str, why: str) -> bool:
        if self.tells:
            _LOG.warning("the run chooses its plan anew, without %s: %s", one_line(called), one_line(why))
        return False


def load(place: str, key: str, terms: str) -> Decision | None:
    """Return the decision in a file; None if there is none for this key and these settings.

    A file that cannot be read is a warning. Older files don't tell the settings.
    """
    path = Path(place)
    try:
        if not path.exists():
            return None
        _check_ordinary(path)
        record = read_record(path, SCHEMA, "decision", "leave it out, and the run measures anew")
        check_sealed({name: record[name] for name in _SEALED if name in record}, f"the fields of {path}")
        if record.get("key") != key or record.get("settings", terms) != terms:
            return None
        return Decision.from_values(record.get("decision"))
    except (GradwireError, OSError) as error:
        _LOG.warning("the run chooses its plan anew: %s", one_line(str(error)))
        return None


def save(place: str, key: str, terms: str, decision: Decision) -> None:
    """Write a decision to a file, all or nothing; a file that cannot be written is a warning."""
    fields = sealed({"key": key, "settings": terms, "decision": json.loads(decision.to_json())})
    try:
        _check_ordinary(Path(place))
        write_files({Path(place): to_json(make_record(SCHEMA, fields)).encode()})
    except (GradwireError, OSError) as error:
        _LOG.warning("the chosen plan is not kept for the next run: %s", one_line(str(error)))


def _check_ordinary(path: Path) -> None:
    """Raise ``SpecError`` for a pipe or a device: reading may never end, and writing would replace it."""
    if path.exists() and not path.is_file():
        raise SpecError(f"expected an ordinary file for decisions, got {path}; name another one")
    if path.exists() and path.stat().st_size > _MOST_NBYTES:
        raise SpecError(f"expected at most {_MOST_NBYTES} bytes in {path}; remove it, or name another file")
