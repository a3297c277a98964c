"""The check of replicas that a run repeats every so many steps."""

from __future__ import annotations

import sys

import torch
from torch import nn

from gradwire.codecs.spec import is_whole
from gradwire.errors import SpecError, shown
from gradwire.training.replicas.hashes import check_replicated, crc32c_of, replica_hashes


class ReplicaWatch:
    """Which steps begin with a check of the replicas, and what it compares.

    Parameters
    ----------
    every
        The steps from one check to the next; the first step has one, too. None: no step has.
    optimizer
        The one whose state is compared with the weights; None: the weights alone.

    Raises
    ------
    SpecError
        For anything else, and for an optimizer whose state is divided among the ranks.
    """

    def __init__(self, every: int | None = None, optimizer: torch.optim.Optimizer | None = None) -> None:
        if every is not None and not is_whole(every, 1, sys.maxsize):
            raise SpecError(
                "check_replicas_every must be a whole number of steps from 1 up, or None, but is "
                f"{shown(every)}"
            )
        if optimizer is not None:
            check_replicated(optimizer)
        self.every, self.optimizer = every, optimizer

    @property
    def facts(self) -> dict[str, str]:
        """What must be equal on all ranks, since all of them check at once."""
        what = "weights" if self.optimizer is None else "weights and optimizer"
        return {"check_replicas_every": str(self.every), "what is checked": what}

    def is_due(self, steps_done: int) -> bool:
        """Return whether the next step begins with a check."""
        return self.every is not None and steps_done % self.every == 0

    def hashes(self, model: nn.Module) -> dict[str, bytes]:
        """Return what this rank has, in 4 bytes for each part."""
        return replica_hashes(model, self.optimizer, crc32c_of)
