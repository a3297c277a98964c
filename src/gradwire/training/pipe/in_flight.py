"""What a pipeline has under way when its state is taken."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class InFlight:
    """An averaged gradient that has not been applied yet, as a checkpoint keeps it.

    Attributes
    ----------
    gradient
        1-D float32 CPU tensor, laid out like the buffer of ``FlatGradients``; a copy.
    scheduled
        What ``schedule.scheduled`` returned in the step that computed it.
    own
        This rank's own gradient of that step, as eager updates use it, laid out like the average; a copy.
        None where none is kept.
    absent, own_absent
        The numbers of the parameters that no rank's backward pass reached in that step, and that this rank's
        did not.
    """

    gradient: torch.Tensor
    scheduled: list[dict[str, Any]]
    own: torch.Tensor | None = None
    absent: tuple[int, ...] = ()
    own_absent: tuple[int, ...] = ()
