"""Decisions for a plan: their comparison, and their storage in files and checkpoints."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from gradwire.autotune.settings import DEFAULT, Auto, AutoConfig, CandidateRules, terms_of
from gradwire.checkpoints import SUM, check_sealed, sealed
from gradwire.codecs import parse
from gradwire.codecs.rules import check_names
from gradwire.errors import GradwireError, SpecError, StateError, one_line
from gradwire.fields import Source, of, pair, real, rows, to_values, whole
from gradwire.files import write_files
from gradwire.log import LOG
from gradwire.machine import machine_id
from gradwire.plan import Plan
from gradwire.records import make_record, read_record, to_json
from gradwire.units import counted, format_duration
from gradwire.version import version

if TYPE_CHECKING:
    from typing_extensions import Self

STAYS = "stays, since no plan could be chosen"
"""The words in a decision's reason if rank 0 could not choose a plan."""
_AGAIN = "remove the file, so the run measures again"
_SOURCE = Source("a decision", _AGAIN)


@dataclass(frozen=True)
class Decision:
    """A plan that a run uses from one step on, and its expected times.

    The seconds are of a step with this plan, of a step with the fastest plan without compression, and of
    computation alone. After a trial, the step times of tried plans are measured.
    """

    plan: Plan
    step_s: float
    uncompressed_s: float
    compute_s: float
    reason: str  # for users, in one sentence
    extra: float = 0.0  # the share of extra steps that the plan's encoding noise may cost
    nbytes: float = 0.0  # the bytes per step of the rank that sends the most
    left_out: tuple[str, ...] = ()  # the codecs that break the contract for over ``wide_share`` of the values

    @property
    def to_loss_s(self) -> float:
        """Seconds until training progresses as far as in one step without compression."""
        return self.step_s * (1 + self.extra)

    @property
    def in_short(self) -> str:
        """The plan in a few words: codec, algorithm, lanes, and whether some parameters have other codecs."""
        others = " and others" if self.plan.codecs else ""
        lanes = f" in {self.plan.lanes} lanes" if self.plan.lanes > 1 else ""
        return f"{self.plan.codec}{others} over {self.plan.algorithm}{lanes}"

    def in_words(self, hosts: int) -> str:
        """Return a line for users that describes the plan of a job on ``hosts`` hosts."""
        if STAYS in self.reason:
            return self.reason
        if self.plan.codec.EXACT and not self.plan.codecs:
            waits = max(1 - self.compute_s / self.step_s, 0.0) if self.step_s else 0.0
            return f"{100 * waits:.0f} % of a step is spent waiting for the network; not compressing"
        between = f" between {counted(hosts, 'host')}" if hosts > 1 else ""
        step, uncompressed = format_duration(self.step_s), format_duration(self.uncompressed_s)
        return f"{self.in_short}{between}: expected step time {step}, {uncompressed} without compression"

    def to_json(self) -> str:
        """Return the decision as the text of a JSON object."""
        return json.dumps(to_values(self))

    @classmethod
    def from_json(cls, text: str) -> Decision:
        """Read the output of ``to_json``; ``left_out`` may be missing. Raises ``SpecError``."""
        return _SOURCE.of_json(text, cls.from_values)

    @classmethod
    def from_values(cls, values: object) -> Decision:
        """Read the parsed output of ``to_json``; ``left_out`` may be missing. Raises ``SpecError``."""
        kinds = {"plan": Plan.from_values, "left_out": rows(lambda spec: str(parse(spec)))}
        seconds = dict.fromkeys(("step_s", "uncompressed_s", "compute_s"), real(0.0, finite=False))
        return _SOURCE.read(values, of(cls, **kinds, **seconds))


def same_way(plan: Plan, present: Plan) -> bool:
    """Return whether two plans have the same codec, algorithm, segment size, and lanes.

    The codecs of single parameters are not compared.
    """
    names = "codec", "algorithm", "segment_nbytes", "lanes"
    return all(getattr(plan, name) == getattr(present, name) for name in names)


def stays(present: Decision, best: Decision, same: float, config: AutoConfig = DEFAULT) -> bool:
    """Return whether the present plan is as good as the best plan.

    The present plan must be as fast, within the share ``same``, and send as few bytes, within ``stay_share``.
    """
    is_as_fast = present.to_loss_s <= (1 + same) * best.to_loss_s
    return is_as_fast and present.nbytes <= (1 + config.stay_share) * best.nbytes


def best_of(
    decisions: Iterable[Decision], same: float = DEFAULT.equal_share, config: AutoConfig = DEFAULT
) -> Decision:
    """Return the decision with the shortest time to a loss, or an equally fast decision with fewer bytes.

    Among decisions whose times differ by at most the share ``same``, the decision with the smallest product
    of time and bytes is best. A decision that sends as few bytes and adds less noise is preferred. Of
    decisions that differ only in lanes, the decision with the fewest lanes is returned.
    """
    every = list(decisions)
    least_s = min(each.to_loss_s for each in every)
    as_fast = [each for each in every if each.to_loss_s <= (1 + same) * least_s]
    best = min(as_fast, key=lambda it: it.to_loss_s * it.nbytes)
    most = min(config.less_noise_share * best.extra, best.extra - config.least_saved_share)
    as_lean = (each for each in as_fast if each.nbytes <= (1 + config.stay_share) * best.nbytes)
    less_noise = (each for each in as_lean if each.extra <= most)
    best = min(less_noise, key=lambda it: it.to_loss_s * it.nbytes, default=best)
    lanes = best.plan.lanes
    alike = (each for each in as_fast if replace(each.plan, lanes=lanes) == best.plan)
    fewer = (each for each in alike if each.plan.lanes < lanes)
    return min(fewer, key=lambda it: it.plan.lanes, default=best)


_CHOSEN = ("codec", "codecs", "algorithm", "segment_nbytes", "lanes")
"""The fields of a plan that a run chooses; all other fields are equal in all plans of the run."""


def refusal(decision: Decision, settings: Auto, rules: CandidateRules, names: Iterable[str]) -> str:
    """Return the reason why a run with these parameters must not use a decision, or ``""`` without a reason.

    The run must be able to choose the plan itself. A decision stores only the mean of the parameters' squared
    relative errors, which is at most the squared limit for every plan that meets the contract.
    """
    plan, candidates, most = decision.plan, settings.candidates, settings.max_lost_norm
    codecs = (plan.codec, *(rule.codec for rule in plan.rules))
    other = next((each for each in codecs if each not in candidates), None)
    if other is not None:
        return f"expected only the codecs {', '.join(map(str, candidates))}, got {other}"
    if plan.algorithm not in rules.algorithms:
        return f"expected one of the algorithms {', '.join(rules.algorithms)}, got {plan.algorithm}"
    if plan.lanes > 1 and not rules.has_lanes:
        return f"expected one lane, got {plan.lanes}"
    if plan.rules and not rules.has_exceptions:
        return "expected one codec for all parameters, got several codecs"
    common = replace(settings.first_plan, pipeline=rules.pipeline)
    if plan != replace(common, **{name: getattr(plan, name) for name in _CHOSEN}):
        return f"expected {common.to_json()} apart from {', '.join(_CHOSEN)}, got {plan.to_json()}"
    if not 0 <= decision.extra <= most**2 * settings.config.rounding:
        return f"expected a relative error of at most {most:g}, got {abs(decision.extra) ** 0.5:.3g}"
    try:
        check_names(plan.rules, names)
    except SpecError as error:
        return str(error)
    return ""


_STATE = Source(
    "the state of an automatic choice", "remove 'auto' from the state, so the run measures again", StateError
)


@dataclass(frozen=True)
class State:
    """The state of an automatic choice between two steps."""

    world: int
    steps: int  # begun
    decide_at: int  # the step before which the ranks last chose a plan, or will choose next
    patience: int  # the minimum number of steps between two decisions
    since: int  # the step of the latest decision; 0 before the first decision
    # each with the first step of its plan
    decisions: list[tuple[int, Decision]] = field(default_factory=list)
    # the last measured relative errors of whole exchanges with the present plan's codec, by parameter
    seen: Mapping[str, float] = field(default_factory=dict)
    # the specs of the more precise codecs that broke the contract under the present plan
    refused: list[str] = field(default_factory=list)
    settings: str = ""  # from ``terms_of``; empty in older checkpoints

    def to_json(self) -> str:
        """Return the state as the text of a JSON object."""
        return json.dumps(to_values(self))

    @classmethod
    def from_json(cls, text: object) -> Self:
        """Read the output of ``to_json``. Raises ``StateError``."""
        return _STATE.of_json(text, cls.from_values)

    @classmethod
    def from_values(cls, values: object) -> Self:
        """Read the output of ``to_values``. Raises ``StateError``."""
        decided, specs = rows(pair(whole(), Decision.from_values)), rows(lambda spec: str(parse(spec)))
        kind = of(cls, decisions=lambda each: [*decided(each)], refused=lambda each: [*specs(each)])
        return _STATE.read(values, kind)


SCHEMA = "gradwire.auto/1"
_SEALED = ("key", "settings", "decision", SUM)


def fingerprint(shapes: Sequence[Sequence[int]], world: int, rules: str) -> str:
    """Return the key of a decision: a hash of shapes, ranks, rules, machine, and version."""
    facts = json.dumps([[*map(list, shapes)], world, rules, machine_id(), version()])
    return hashlib.sha256(facts.encode()).hexdigest()


@dataclass(frozen=True)
class Saved:
    """A run's access to the saved decisions that its present settings allow.

    ``names`` are the names of the model's parameters, and ``key`` is the run's ``fingerprint``. Only the rank
    for which ``tells`` is true writes the file, and logs why a decision is ignored.
    """

    settings: Auto
    rules: CandidateRules
    names: Collection[str]
    key: str
    tells: bool

    def load(self) -> Decision | None:
        """Return the decision in the settings' file, or None if the run can't or may not use it."""
        place, most_nbytes = self.settings.place, self.settings.config.most_file_nbytes
        found = None if place is None else load(place, self.key, terms_of(self.settings), most_nbytes)
        return found if found and self._allows(found, f"the decision in {place}") else None

    def save(self, decision: Decision) -> None:
        """Write a decision to the settings' file, if the settings name a file."""
        place, most_nbytes = self.settings.place, self.settings.config.most_file_nbytes
        if self.tells and place is not None:
            save(place, self.key, terms_of(self.settings), decision, most_nbytes)

    def allows(self, state: State) -> bool:
        """Return whether the run may continue with the state of a checkpoint."""
        if state.settings and state.settings != terms_of(self.settings):
            why = f"expected the settings {terms_of(self.settings)}, got {state.settings}"
            return self._leave_out("the choice in the checkpoint", why)
        return not state.decisions or self._allows(state.decisions[-1][1], "the choice in the checkpoint")

    def _allows(self, decision: Decision, called: str) -> bool:
        why = refusal(decision, self.settings, self.rules, self.names)
        return not why or self._leave_out(called, why)

    def _leave_out(self, called: str, why: str) -> bool:
        if self.tells:
            LOG.warning("the run ignores %s and chooses a new plan: %s", one_line(called), one_line(why))
        return False


def load(place: str, key: str, terms: str, most_nbytes: int = DEFAULT.most_file_nbytes) -> Decision | None:
    """Return the decision in a file, or None if the file has no decision for this key and these settings.

    A file that cannot be read causes a warning. Older files contain no settings.
    """
    path = Path(place)
    try:
        if not path.exists():
            return None
        _check_ordinary(path, most_nbytes)
        record = read_record(path, SCHEMA, "decision", _AGAIN)
        check_sealed({name: record[name] for name in _SEALED if name in record}, f"the fields of {path}")
        if record.get("key") != key or record.get("settings", terms) != terms:
            return None
        return Decision.from_values(record.get("decision"))
    except (GradwireError, OSError) as error:
        LOG.warning("the run chooses a new plan: %s", one_line(str(error)))
        return None


def save(
    place: str, key: str, terms: str, decision: Decision, most_nbytes: int = DEFAULT.most_file_nbytes
) -> None:
    """Write a decision to a file atomically. A file that cannot be written causes a warning."""
    fields = sealed({"key": key, "settings": terms, "decision": to_values(decision)})
    try:
        _check_ordinary(Path(place), most_nbytes)
        write_files({Path(place): to_json(make_record(SCHEMA, fields)).encode()})
    except (GradwireError, OSError) as error:
        LOG.warning("the chosen plan is not saved for the next run: %s", one_line(str(error)))


def _check_ordinary(path: Path, most_nbytes: int) -> None:
    """Raise ``SpecError`` for a file that is too large, or is not a regular file.

    Reading a pipe or a device may never end, and writing would replace the pipe or device.
    """
    if path.exists() and not path.is_file():
        raise SpecError(f"expected a regular file for decisions, got {path}; pass the path of a regular file")
    if path.exists() and path.stat().st_size > most_nbytes:
        size = path.stat().st_size
        raise SpecError(
            f"expected at most {most_nbytes} bytes in {path}, got {size}; remove the file, or pass the path "
            "of another file"
        )
