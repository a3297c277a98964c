"""Decisions of earlier runs: the last one of each in a file, and those in checkpoints."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

from gradwire.autotune.config import DEFAULT
from gradwire.autotune.decision import Decision
from gradwire.autotune.rules import CandidateRules
from gradwire.autotune.settings import Auto, terms_of
from gradwire.checkpoints import SUM, check_sealed, sealed
from gradwire.codecs import parse
from gradwire.codecs.rules import check_names
from gradwire.errors import GradwireError, SpecError, StateError, one_line
from gradwire.fields import Source, of, pair, rows, to_values, whole
from gradwire.files import write_files
from gradwire.machine import machine_id
from gradwire.records import make_record, read_record, to_json
from gradwire.version import version

# Whether a run may use a decision that was saved: the user's present settings come first.

_CHOSEN = ("codec", "codecs", "algorithm", "segment_nbytes")
"""The fields of a plan that are chosen; the others are the same in all plans of a run."""


def refusal(decision: Decision, settings: Auto, rules: CandidateRules, names: Iterable[str]) -> str:
    """Return why a run of a model with these parameters must not use a decision; empty if it may.

    The plan has to be one that the run could choose itself. What its exchanges lose of each parameter is
    known only by the mean of the squares, which is a bound for every plan that keeps the contract.
    """
    plan, candidates, most = decision.plan, settings.candidates, settings.max_lost_norm
    codecs = (plan.codec, *(rule.codec for rule in plan.rules))
    other = next((each for each in codecs if each not in candidates), None)
    if other is not None:
        return f"expected codecs among {', '.join(map(str, candidates))}, got {other}"
    if plan.algorithm not in rules.algorithms:
        return f"expected an algorithm among {', '.join(rules.algorithms)}, got {plan.algorithm}"
    if plan.rules and not rules.has_exceptions:
        return "expected one codec for all parameters, got another one for some"
    common = replace(settings.first_plan, pipeline=rules.pipeline)
    if plan != replace(common, **{name: getattr(plan, name) for name in _CHOSEN}):
        return f"expected {common.to_json()} apart from {', '.join(_CHOSEN)}, got {plan.to_json()}"
    if not 0 <= decision.extra <= most**2 * settings.config.rounding:
        return (
            f"expected a loss of at most {most:g} of a gradient's norm, got {abs(decision.extra) ** 0.5:.3g}"
        )
    try:
        check_names(plan.rules, names)
    except SpecError as error:
        return str(error)
    return ""


# What a checkpoint keeps of an automatic choice, so that a resumed run goes on with the plan that it had.

_SOURCE = Source(
    "the state of an automatic choice", "leave 'auto' out of it, and the run measures anew", StateError
)


@dataclass(frozen=True)
class State:
    """The state of a run between two steps.

    Attributes
    ----------
    world, steps
        The number of ranks, and of the steps that they had begun.
    decide_at
        The step before which they have measured last, or are to do so next.
    patience, since
        The attributes of the ``Watch``.
    decisions
        The decisions, and the steps from which on they hold.
    seen, refused
        The attributes of the ``Contract``, the codecs as their specs.
    settings
        The ``terms_of`` the settings under which it was decided; empty in older checkpoints.
    """

    world: int
    steps: int
    decide_at: int
    patience: int
    since: int
    decisions: list[tuple[int, Decision]] = field(default_factory=list)
    seen: Mapping[str, float] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)
    settings: str = ""

    def to_json(self) -> str:
        """Return it as a JSON object."""
        return json.dumps(to_values(self))

    @classmethod
    def from_json(cls, text: object) -> Self:
        """Read what ``to_json`` wrote. Raises ``StateError``."""
        decided, specs = rows(pair(whole(), Decision.from_values)), rows(lambda spec: str(parse(spec)))
        kind = of(cls, decisions=lambda each: [*decided(each)], refused=lambda each: [*specs(each)])
        return _SOURCE.of_json(text, kind)


SCHEMA = "gradwire.auto/1"
_SEALED = ("key", "settings", "decision", SUM)
_LOG = logging.getLogger("gradwire")


def fingerprint(shapes: Sequence[Sequence[int]], world: int, way: str) -> str:
    """Return the key of a decision: a hash of shapes, ranks, rules, machine, and version."""
    facts = json.dumps([[*map(list, shapes)], world, way, machine_id(), version()])
    return hashlib.sha256(facts.encode()).hexdigest()


@dataclass(frozen=True)
class Saved:
    """The saved decisions that a run may go on with: those that its present settings allow.

    ``names`` are those of the model's parameters, and ``key`` is the run's ``fingerprint``. The rank that
    ``tells`` logs why a decision is left out, and writes the file.
    """

    settings: Auto
    rules: CandidateRules
    names: Collection[str]
    key: str
    tells: bool

    def load(self) -> Decision | None:
        """Return the decision of the file that the settings name, if the run may use it."""
        place = self.settings.place
        found = None if place is None else load(place, self.key, terms_of(self.settings), self._most_nbytes)
        return found if found and self._allows(found, f"the decision in {place}") else None

    def save(self, decision: Decision) -> None:
        """Write a decision to that file."""
        if self.tells and self.settings.place is not None:
            save(self.settings.place, self.key, terms_of(self.settings), decision, self._most_nbytes)

    def allows(self, state: State) -> bool:
        """Return whether the run may go on with the state of a checkpoint."""
        if state.settings and state.settings != terms_of(self.settings):
            why = f"expected its settings to be {terms_of(self.settings)}, got {state.settings}"
            return self._leave_out("the choice in the checkpoint", why)
        return not state.decisions or self._allows(state.decisions[-1][1], "the choice in the checkpoint")

    @property
    def _most_nbytes(self) -> int:
        return self.settings.config.most_file_nbytes

    def _allows(self, decision: Decision, called: str) -> bool:
        why = refusal(decision, self.settings, self.rules, self.names)
        return not why or self._leave_out(called, why)

    def _leave_out(self, called: str, why: str) -> bool:
        if self.tells:
            _LOG.warning("the run chooses its plan anew, without %s: %s", one_line(called), one_line(why))
        return False


def load(place: str, key: str, terms: str, most_nbytes: int = DEFAULT.most_file_nbytes) -> Decision | None:
    """Return the decision in a file; None if there is none for this key and these settings.

    A file that cannot be read is a warning. Older files don't tell the settings.
    """
    path = Path(place)
    try:
        if not path.exists():
            return None
        _check_ordinary(path, most_nbytes)
        record = read_record(path, SCHEMA, "decision", "leave it out, and the run measures anew")
        check_sealed({name: record[name] for name in _SEALED if name in record}, f"the fields of {path}")
        if record.get("key") != key or record.get("settings", terms) != terms:
            return None
        return Decision.from_values(record.get("decision"))
    except (GradwireError, OSError) as error:
        _LOG.warning("the run chooses its plan anew: %s", one_line(str(error)))
        return None


def save(
    place: str, key: str, terms: str, decision: Decision, most_nbytes: int = DEFAULT.most_file_nbytes
) -> None:
    """Write a decision to a file, all or nothing; a file that cannot be written is a warning."""
    fields = sealed({"key": key, "settings": terms, "decision": to_values(decision)})
    try:
        _check_ordinary(Path(place), most_nbytes)
        write_files({Path(place): to_json(make_record(SCHEMA, fields)).encode()})
    except (GradwireError, OSError) as error:
        _LOG.warning("the chosen plan is not kept for the next run: %s", one_line(str(error)))


def _check_ordinary(path: Path, most_nbytes: int) -> None:
    """Raise ``SpecError`` for a pipe or a device: reading may never end, and writing would replace it."""
    if path.exists() and not path.is_file():
        raise SpecError(f"expected an ordinary file for decisions, got {path}; name another one")
    if path.exists() and path.stat().st_size > most_nbytes:
        raise SpecError(f"expected at most {most_nbytes} bytes in {path}; remove it, or name another file")
