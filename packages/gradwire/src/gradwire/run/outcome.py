"""The outcome of ``gradwire run``, written by rank 0: the script's models, and a comparison of steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from gradwire.errors import JobError
from gradwire.fields import Source, keyed, mapping, of, optional, real, rows, text
from gradwire.run.comparison import ATTACHED, METHODS, PLAIN
from gradwire.script.entry import ScriptResult

if TYPE_CHECKING:
    from typing_extensions import Self

_LEAST_S = 1e-9


@dataclass(frozen=True)
class ModelOutcome:
    """The outcome for one model of the script, on rank 0."""

    name: str  # such as "DistributedDataParallel 'GPT'"
    problem: str = ""  # the reason why gradwire is not attached, in a sentence; empty if it is
    plan: str = ""  # of the model's last step, in words; empty if gradwire is not attached
    ledger: Mapping[str, Any] = field(default_factory=dict)  # its record's fields; empty without gradwire


def _cycles(value: object) -> dict[str, tuple[float, ...]]:
    """Return a comparison's step times, checked: above 0, and equally many for each method."""
    found = keyed(rows(real(_LEAST_S)))(value)
    if found and (
        not {PLAIN, ATTACHED} <= found.keys() <= {*METHODS} or len({*map(len, found.values())}) > 1
    ):
        counts = ", ".join(f"{method}: {len(times)}" for method, times in found.items())
        raise JobError(f"expected the same number of step times for {PLAIN} and {ATTACHED}, got {counts}")
    return found


@dataclass(frozen=True)
class RunOutcome(ScriptResult):
    """The outcome of a run: the script's models, and the comparison of their steps."""

    COMMAND: ClassVar[str] = "run"
    WHAT: ClassVar[str] = "outcome"
    KINDS: ClassVar[Mapping[str, Any]] = MappingProxyType(
        {
            "models": rows(of(ModelOutcome, "name", problem=text, plan=text, ledger=mapping)),
            "cycles_s": optional(_cycles),
            "plan": text,
        }
    )
    models: tuple[ModelOutcome, ...] = ()  # in the order of their creation
    cycles_s: Mapping[str, tuple[float, ...]] | None = None  # as in ``Compared``; None without a comparison
    plan: str = ""  # of the compared steps, in words

    @property
    def attached(self) -> list[ModelOutcome]:
        """The outcomes of the models to which gradwire is attached."""
        return [each for each in self.models if not each.problem]

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> Self:
        """Return the outcome of a run's record. Raises ``JobError`` if the record is invalid."""
        given = Source("the record of a run", "run 'gradwire run' again", JobError).fields(record)
        return cls(**{name: given.get(name, kind) for name, kind in cls.KINDS.items()})
