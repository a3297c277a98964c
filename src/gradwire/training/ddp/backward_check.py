"""Gradients that DDP would leave unaveraged, noticed in the backward pass that computes them.

DDP averages one backward pass after each forward pass. It ignores a second one, whose gradients stay each
rank's own. It also averages too late for an optimizer that steps in a hook of a parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import nn
from torch.autograd.graph import get_gradient_edge
from torch.nn.parallel.distributed import _find_tensors

from gradwire.errors import AttachError, GradwireError
from gradwire.training.ddp.copies import CopiedNotes
from gradwire.training.ddp.grad_bucket import DDPBucket
from gradwire.training.ddp.rounds import Rounds


class BackwardCheck:
    """Notes each forward pass after which DDP averages, and raises where a gradient would not be averaged.

    It is a forward hook of the model. A compiled forward pass is traced once and not noted.

    Attributes
    ----------
    versions
        Those of the parameters with hooks, when the last forward pass had ended; empty once all are averaged.
    """

    def __init__(self, rounds: Rounds, parameters: Iterable[torch.Tensor]) -> None:
        self._rounds, self._parameters = rounds, list(parameters)
        self._awaited: int | None = None  # the steps done when the last forward pass was noted
        self.versions: dict[torch.Tensor, int] = {}

    def __call__(self, model: nn.Module, _inputs: object, output: object) -> None:
        """Note a forward pass."""
        if torch.compiler.is_compiling():
            return
        if not torch.is_grad_enabled() or not getattr(model, "require_backward_grad_sync", True):
            return
        self._awaited = self._rounds.steps_done
        self.versions = {each: each._version for each in self._parameters if _has_hooks(each)}
        for tensor in _find_tensors(output):  # type: ignore[no-untyped-call]
            if tensor.requires_grad and not tensor.is_leaf:
                tensor.register_hook(self._pass)

    def check_unwritten(self, bucket: DDPBucket, give_up: Callable[[GradwireError], GradwireError]) -> None:
        """Raise ``AttachError`` if a hook has changed a parameter before its gradient was averaged."""
        for each in bucket.parameters():
            if self.versions.get(each, each._version) != each._version:
                raise give_up(
                    AttachError(
                        f"rank {self._rounds.rank}: a hook has changed a parameter of shape "
                        f"{tuple(each.shape)} in backward, before its gradient was averaged, so that ranks "
                        "differ now; step the optimizer after backward, and begin again from a checkpoint"
                    )
                )
        if bucket.is_last():
            self.versions = {}

    def _pass(self, _gradient: torch.Tensor) -> None:
        """Look at a backward pass that reaches an output of a noted forward pass."""
        if self._awaited == self._rounds.steps_done or self._rounds.over:
            return
        if any(map(_will_accumulate, self._parameters)):
            raise AttachError(
                f"rank {self._rounds.rank}: DDP has averaged one backward pass since the last forward pass, "
                "and leaves the gradients of another one as they are on each rank; add the losses and call "
                "backward once, or compute a forward pass for each, all but the last within no_sync()"
            )

    def __reduce__(self) -> tuple[type[CopiedNotes], tuple[()]]:
        return CopiedNotes, ()


def _has_hooks(parameter: torch.Tensor) -> bool:
    return bool(parameter._post_accumulate_grad_hooks or parameter._backward_hooks)


def _will_accumulate(parameter: torch.Tensor) -> bool:
    """Return whether the backward pass under way adds to a parameter's gradient."""
    if not parameter.requires_grad:
        return False
    try:
        return torch._C._will_engine_execute_node(get_gradient_edge(parameter).node)
    except RuntimeError:  # torch.autograd.grad, which returns the gradient instead
        return False
