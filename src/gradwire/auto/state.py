"""What a checkpoint keeps of an automatic choice, so that a resumed run goes on with the plan that it had."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self

from gradwire.auto.choice.decision import Decision
from gradwire.codecs import parse
from gradwire.errors import GradwireError, StateError, shown
from gradwire.records import read_object

_COUNTS = ("world", "steps", "decide_at", "patience", "since")


@dataclass(frozen=True)
class State:
    """The state of a run between two steps.

    Attributes
    ----------
    world, steps
        How many ranks there were, and how many steps they had begun.
    decide_at
        The step before which they have measured last, or are to do so next.
    patience, since
        Those of the ``Watch``.
    decisions
        What was decided, and before which steps.
    seen, refused
        Those of the ``Contract``, the codecs as their specs.
    """

    world: int
    steps: int
    decide_at: int
    patience: int
    since: int
    decisions: list[tuple[int, Decision]] = field(default_factory=list)
    seen: Mapping[str, float] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)

    def to_json(self) -> str:
        """Return it as a JSON object."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        values["decisions"] = [[step, json.loads(each.to_json())] for step, each in self.decisions]
        return json.dumps(values)

    @classmethod
    def from_json(cls, text: object) -> Self:
        """Read what ``to_json`` wrote. Raises ``StateError``."""
        try:
            values: dict[str, Any] = read_object(str(text), "the state of an automatic choice")
            decisions = [
                (int(step), Decision.from_json(json.dumps(each))) for step, each in values.pop("decisions")
            ]
            own = cls(decisions=decisions, **values)
            for spec in own.refused:
                parse(spec)
        except (GradwireError, KeyError, TypeError, ValueError) as error:
            raise StateError(
                f"the state of an automatic choice cannot be read: {error}; leave 'auto' out of it, and the "
                "run measures anew"
            ) from error
        wrong = [name for name in _COUNTS if not isinstance(getattr(own, name), int)]
        if wrong or not isinstance(own.seen, dict) or not isinstance(own.refused, list):
            raise StateError(f"this is no state of an automatic choice: {shown(text)}")
        return own
