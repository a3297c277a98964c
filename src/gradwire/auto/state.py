"""What a checkpoint keeps of an automatic choice, so that a resumed run goes on with the plan that it had."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Self

from gradwire.auto.choice.decision import Decision
from gradwire.codecs import parse
from gradwire.errors import StateError
from gradwire.fields import Source, of, pair, rows, whole

_SOURCE = Source(
    "the state of an automatic choice", "leave 'auto' out of it, and the run measures anew", StateError
)


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
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        values["decisions"] = [[step, json.loads(each.to_json())] for step, each in self.decisions]
        return json.dumps(values)

    @classmethod
    def from_json(cls, text: object) -> Self:
        """Read what ``to_json`` wrote. Raises ``StateError``."""
        decided, specs = rows(pair(whole(), Decision.from_values)), rows(lambda spec: str(parse(spec)))
        kind = of(cls, decisions=lambda each: [*decided(each)], refused=lambda each: [*specs(each)])
        return _SOURCE.of_json(text, kind)
