"""Attach gradwire to the DDP model of an unchanged script, and measure steps with its chosen plan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from gradwire.attached import Attached
from gradwire.ddp.attach import attach
from gradwire.errors import GradwireError
from gradwire.plan import Plan
from gradwire.planner.explain import name_coding
from gradwire.profile.ddp import DdpWatch
from gradwire.profile.tried import COUNTED, Tried

SETTLING = 5
"""Steps after a change of plan that aren't measured, because connections and buffers are new."""


class Attempt:
    """A trial of gradwire on the observed model, attached before its next forward pass.

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
        """Record a completed step; return the measurement once enough steps used the chosen plan."""
        attached = self._attached
        if attached is None:  # the pass began before the attachment
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
        """Close gradwire's connections after all ranks have ended their step."""
        self._hook.remove()
        if self._attached is not None:
            dist.barrier(self._watch.group)
            self._attached.close()

    @staticmethod
    def _sent_nbytes(attached: Attached) -> float:
        return float(attached.ledger.summary().total.cost.wire_nbytes)
