"""The outcome of ``gradwire run``, written by rank 0: the script's models, and a comparison of steps."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from gradwire.errors import JobError
from gradwire.fields import Source, keyed, mapping, of, optional, real, rows, text
from gradwire.files import replace_file
from gradwire.run.comparison import ATTACHED, METHODS, PLAIN

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(frozen=True)
class ModelOutcome:
    """The outcome for one model of the script, on rank 0.

    Attributes
    ----------
    name
        The model's name, such as "DistributedDataParallel 'GPT'".
    problem
        The reason why gradwire is not attached to the model, in a sentence; empty if gradwire is attached.
    plan
        The plan of the model's last step, in words; empty if gradwire is not attached.
    ledger
        The fields of the ledger's record; empty if gradwire is not attached.
    """

    name: str
    problem: str = ""
    plan: str = ""
    ledger: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class RunOutcome:
    """The outcome of a run: the script's models, and the comparison of their steps.

    Attributes
    ----------
    models
        The outcome for each model, in the order of the models' creation.
    cycles_s
        For each method, the median step time in each cycle (see ``Compared``); None without a comparison.
    plan
        The plan of the compared steps, in words.
    """

    models: tuple[ModelOutcome, ...] = ()
    cycles_s: Mapping[str, tuple[float, ...]] | None = None
    plan: str = ""

    @property
    def attached(self) -> list[ModelOutcome]:
        """The outcomes of the models to which gradwire is attached."""
        return [each for each in self.models if not each.problem]

    def save(self, path: Path) -> None:
        """Write the outcome to a file, atomically."""
        replace_file(path, json.dumps(asdict(self)).encode())

    @classmethod
    def load(cls, path: Path) -> Self:
        """Return the outcome in a file written by ``save``. Raises ``JobError`` if the file is invalid."""
        source = Source(f"the outcome {path}", "run 'gradwire run' again", JobError)
        return source.of_json(path.read_text(encoding="utf-8"), of(cls, **KINDS))

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> Self:
        """Return the outcome of a run's record. Raises ``JobError`` if the record is invalid."""
        given = Source("the record of a run", "run 'gradwire run' again", JobError).fields(record)
        found: dict[str, Any] = {name: given.get(name, kind) for name, kind in KINDS.items()}
        return cls(**found)


def _cycles(value: object) -> dict[str, tuple[float, ...]]:
    """Return a comparison's step times, checked: above 0, and equally many for each method.

    Raises ``JobError``.
    """
    found = keyed(rows(real(_LEAST_S)))(value)
    if found and (
        not {PLAIN, ATTACHED} <= found.keys() <= {*METHODS} or len({*map(len, found.values())}) > 1
    ):
        counts = ", ".join(f"{method}: {len(times)}" for method, times in found.items())
        raise JobError(f"expected the same number of step times for {PLAIN} and {ATTACHED}, got {counts}")
    return found


_LEAST_S = 1e-9
_MODEL = of(ModelOutcome, "name", problem=text, plan=text, ledger=mapping)
KINDS = MappingProxyType({"models": rows(_MODEL), "cycles_s": optional(_cycles), "plan": text})
"""The kind of each field of an outcome, in files and records."""
