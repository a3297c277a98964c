"""Attach gradwire to the DDP model of an unchanged script, and time steps before and after it has chosen."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Self

import torch.distributed as dist

from gradwire.auto.estimates.estimate import NOISY
from gradwire.errors import GradwireError, JobError
from gradwire.fields import Source, of, real, rows
from gradwire.files import replace_file
from gradwire.plan import Plan
from gradwire.planner.explain import name_coding
from gradwire.profile.ddp import DdpWatch
from gradwire.tables import Column, Table, figure
from gradwire.timing.measure.repeats import disagreement
from gradwire.training.ddp.hook import Attached, attach
from gradwire.units import format_size

COUNTED = 30
"""Steps with the chosen plan that count."""
SETTLING = 5
"""Steps with a new plan that don't: connections and buffers are new."""


@dataclass(frozen=True)
class Tried:
    """What steps took without gradwire, and then with the plan that it chose.

    Attributes
    ----------
    plan
        The plan, in short.
    chosen_after
        The attached steps before the first that counts.
    plain_s, attached_s
        Seconds of each step that counts, on rank 0.
    plain_nbytes, attached_nbytes
        The bytes that a rank sends in a step: by DDP's ring, and counted.
    """

    plan: str
    chosen_after: int
    plain_s: tuple[float, ...]
    attached_s: tuple[float, ...]
    plain_nbytes: float
    attached_nbytes: float

    def save(self, path: Path) -> None:
        """Write it."""
        replace_file(path, json.dumps(asdict(self)).encode())

    @classmethod
    def load(cls, path: Path) -> Self:
        """Return what ``save`` wrote. Raises ``JobError``."""
        source = Source(f"the measurement {path}", "let 'gradwire profile' alone write it", JobError)
        return source.of_json(
            path.read_text(encoding="utf-8"), of(cls, plain_s=rows(real(0)), attached_s=rows(real(0)))
        )

    @property
    def speedup(self) -> float:
        """How many times as fast a step is with gradwire, by the medians."""
        return median(self.plain_s) / median(self.attached_s)

    @property
    def spread(self) -> float:
        """By what share the speed-up may be off: the scatter of both kinds of steps."""
        return disagreement(self.plain_s) + disagreement(self.attached_s)

    def verdict(self) -> str:
        """Return what was measured, in a sentence."""
        plan = f"gradwire chose {self.plan} after {self.chosen_after} attached steps"
        if self.spread > NOISY:
            return (
                f"Steps are too noisy to say what gradwire gains: they scatter by {self.spread:.0%}, which "
                f"must be below {NOISY:.0%} ({plan}). Try again on a quiet machine, or with more --steps."
            )
        low, high = self.speedup / (1 + self.spread), self.speedup * (1 + self.spread)
        measured = f"A step was measured to be {low:.3g} to {high:.3g} times as fast with gradwire; {plan}."
        return measured if high > 1 else f"{measured} Don't attach gradwire here."

    def report(self) -> list[str | Table]:
        """Return the verdict, and a row for each kind of steps."""
        columns = (
            Column.of_text("steps"),
            Column("counted"),
            Column("median", "ms"),
            Column("scatter"),
            Column("sent by a rank"),
        )
        rows = [
            (
                name,
                str(len(each)),
                figure(1e3 * median(each)),
                f"{disagreement(each):.1%}",
                format_size(nbytes),
            )
            for name, each, nbytes in (
                ("DDP as it is", self.plain_s, self.plain_nbytes),
                ("attached", self.attached_s, self.attached_nbytes),
            )
        ]
        return [self.verdict(), "", Table(columns, rows), "scatter: from the middle to the quartiles."]


class Attempt:
    """Attaches before the watched model's next forward pass, and looks at each step from then on.

    ``refused`` is called with the reason if the model can't be attached.
    """

    def __init__(self, watch: DdpWatch, plain_steps: int, refused: Callable[[str], None]) -> None:
        self._watch, self._refused = watch, refused
        self._plain_s = watch.steps_s[-plain_steps:]
        self._attached: Attached | None = None
        self._steps, self._same, self._nbytes = 0, 0, 0.0
        self._present: Plan | None = None
        self._hook = watch.model.register_forward_pre_hook(self._attach)

    def _attach(self, model: Any, _inputs: object) -> None:
        self._hook.remove()
        try:
            self._attached = attach(model)
        except GradwireError as error:
            self._refused(str(error))

    def passed(self) -> Tried | None:
        """Look at a step that has ended; return the measurement once enough steps had the chosen plan."""
        attached = self._attached
        if attached is None:  # a pass that began before the attachment
            return None
        self._steps += 1
        plan = attached.plan
        self._same = self._same + 1 if attached.decisions and plan == self._present else 0
        self._present = plan
        if self._same == SETTLING:
            self._nbytes = self._sent_nbytes(attached)
        if self._same < SETTLING + COUNTED:
            return None
        world = dist.get_world_size(self._watch.group)
        return Tried(
            f"{name_coding(attached.plan.encoding)} over {attached.plan.algorithm}",
            self._steps - COUNTED,
            tuple(self._plain_s),
            tuple(self._watch.steps_s[-COUNTED:]),
            2 * 4 * self._watch.floats * (world - 1) / world,
            (self._sent_nbytes(attached) - self._nbytes) / COUNTED,
        )

    def close(self) -> None:
        """Give gradwire's connections up, after all ranks have ended their step."""
        self._hook.remove()
        if self._attached is not None:
            dist.barrier(self._watch.group)
            self._attached.close()

    @staticmethod
    def _sent_nbytes(attached: Attached) -> float:
        return float(attached.ledger.summary().total.cost.wire_nbytes)
