"""What a copy of an attached model has in gradwire's place: no thread, no connections, and a warning sign.

``copy.deepcopy`` of a ``DistributedDataParallel`` (``torch.optim.swa_utils.AveragedModel`` makes one, too)
gives the copy a reducer of its own, to which no hook of the original was told. It would average its gradients
by itself, uncompressed, and say nothing.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gradwire.errors import AttachError, ExchangeError


class Copied:
    """Stands where the original has its ``Attached``."""


class CopiedCheck:
    """Refuses forward passes that prepare a backward pass, until the copy is attached itself."""

    def __call__(self, model: nn.Module, _inputs: object) -> None:
        """Raise ``ExchangeError`` where gradients would be averaged."""
        if torch.is_grad_enabled() and getattr(model, "require_backward_grad_sync", True):
            raise ExchangeError(
                "this model is a copy of one that gradwire is attached to, and its gradients would be "
                "averaged uncompressed; attach the copy, too, or evaluate it under torch.no_grad()"
            )


class CopiedNotes:
    """Stands where the original notes its forward passes."""

    def __call__(self, *_: object) -> None:
        """Note nothing."""


class TakenHooks(list[tuple[Any, object]]):
    """DDP's list of hooks while gradwire's is its one: the next is refused in words, before torch does so."""

    def append(self, pair: tuple[Any, object]) -> None:
        """Raise ``AttachError``."""
        raise AttachError(
            "gradwire averages this model's gradients, since gradwire.attach was called, and DDP takes one "
            f"hook alone; leave register_comm_hook({pair[0].__qualname__}) out, or wrap the module in a new "
            "DistributedDataParallel without gradwire"
        )

    def __reduce__(self) -> tuple[type[list[Any]], tuple[list[Any]]]:
        """Leave a list behind in a copy, which may have a hook of its own."""
        return list, ([*self],)


def own_hooks(model: DistributedDataParallel) -> list[str]:
    """Return the names of the hooks that average a model's gradients; one of a copy's original does not."""
    return [hook.__qualname__ for hook, state in model._comm_hooks if not isinstance(state, Copied)]


def forget_original(model: DistributedDataParallel) -> None:
    """Take out of a copy what reminds of the original's hook, so that it can have one; else do nothing."""
    model._comm_hooks[:] = [pair for pair in model._comm_hooks if not isinstance(pair[1], Copied)]
    for hooks in (model._forward_pre_hooks, model._forward_hooks):
        for number, hook in list(hooks.items()):
            if isinstance(hook, CopiedCheck | CopiedNotes):
                del hooks[number]
