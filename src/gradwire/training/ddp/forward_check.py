"""What is checked before each forward pass of an attached model, so that errors come with their reason."""

from __future__ import annotations

import torch
from torch import nn

from gradwire.training.ddp.averaged import AveragedParameters
from gradwire.training.ddp.copies import CopiedCheck
from gradwire.training.ddp.rounds import Rounds


class ForwardCheck:
    """Lets a forward pass that prepares a backward pass fail with the reason, instead of DDP's guess."""

    def __init__(self, rounds: Rounds, averaged: AveragedParameters) -> None:
        self._rounds, self._averaged = rounds, averaged

    def __call__(self, model: nn.Module, _inputs: object) -> None:
        """Raise why no backward pass can be, if none can."""
        if torch.compiler.is_compiling():
            return  # a compiled forward pass is traced once
        if not torch.is_grad_enabled():
            return
        if getattr(model, "require_backward_grad_sync", True):
            self._rounds.check()
        self._averaged.check()
        if self._rounds.steps_done > 0 and not self._rounds.over and _will_cut_buckets(model):
            self._rounds.between.roll_call()

    def __reduce__(self) -> tuple[type[CopiedCheck], tuple[()]]:
        return CopiedCheck, ()


def _will_cut_buckets(model: nn.Module) -> bool:
    """Return whether DDP broadcasts its new buckets in this forward pass, once after its first step.

    That broadcast has the process group's timeout, and errors of torch's, which a roll call comes before.
    Ranks that have run out of batches, under ``join``, answer none.
    """
    cuts = getattr(model, "static_graph", False) or not getattr(model, "find_unused_parameters", False)
    joins = getattr(getattr(model, "_join_config", None), "enable", False)
    return cuts and not joins and not getattr(model, "_has_rebuilt_buckets", True)
