"""Gradients that DDP would leave unaveraged, noticed in the backward pass that computes them.

DDP averages one backward pass after each forward pass. It ignores a second one, whose gradients stay each
rank's own. It also averages too late for an optimizer that steps in a hook of a parameter.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, is_dataclass

import torch
from torch import nn
from torch.autograd.graph import get_gradient_edge
from torch.utils.hooks import unserializable_hook

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
        self._model: Callable[[], nn.Module | None] = lambda: None  # that of the pass
        self.versions: dict[torch.Tensor, int] = {}

    def __call__(self, model: nn.Module, _inputs: object, output: object) -> None:
        """Note a forward pass."""
        if torch.compiler.is_compiling():
            return
        if not torch.is_grad_enabled():
            return
        # DDP averages even a backward pass within no_sync(), if it has waited for one since a pass before.
        self.versions = {each: each._version for each in self._parameters if _has_hooks(each)}
        if not _synchronises(model):
            return
        self._awaited, self._model = self._rounds.steps_done, weakref.ref(model)
        for tensor in _tensors_of(output):
            if tensor.requires_grad and not tensor.is_leaf:
                tensor.register_hook(self._pass)  # type: ignore[no-untyped-call]

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

    @unserializable_hook  # type: ignore[untyped-decorator]
    def _pass(self, _gradient: torch.Tensor) -> None:
        """Look at a backward pass that reaches an output of a noted forward pass.

        What it adds within ``no_sync`` is averaged with the next one.
        """
        if self._awaited == self._rounds.steps_done or self._rounds.over or not _synchronises(self._model()):
            return
        if any(map(_will_accumulate, self._parameters)):
            raise AttachError(
                f"rank {self._rounds.rank}: DDP has averaged one backward pass since the last forward pass, "
                "and leaves the gradients of another one as they are on each rank; add the losses and call "
                "backward once, or compute a forward pass for each, all but the last within no_sync()"
            )

    def __reduce__(self) -> tuple[type[CopiedNotes], tuple[()]]:
        return CopiedNotes, ()


def _tensors_of(output: object) -> Iterator[torch.Tensor]:
    """Yield the tensors in which DDP looks for unused parameters; parts may hold each other or be unset."""
    seen, found = set[int](), [output]
    while found:
        each = found.pop()
        if isinstance(each, torch.Tensor):
            yield each
        elif id(each) not in seen:
            seen.add(id(each))
            if isinstance(each, list | tuple):
                found += each
            elif isinstance(each, dict):
                found += each.values()
            elif is_dataclass(each):
                found += (getattr(each, part.name, None) for part in fields(each))


def _synchronises(model: nn.Module | None) -> bool:
    """Return whether DDP averages gradients now: it does, but for ``no_sync``."""
    return bool(getattr(model, "require_backward_grad_sync", True))


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
