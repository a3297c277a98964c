"""Gradients that DDP would leave unaveraged, noticed in the backward pass that computes them.

DDP averages one backward pass after each forward pass. It ignores a second one, whose gradients stay each
rank's own. It also averages too late for an optimizer that steps in a hook of a parameter.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, is_dataclass
from itertools import chain
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import get_gradient_edge
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import unserializable_hook

from gradwire.ddp.buckets import DDPBucket
from gradwire.ddp.rounds import Rounds
from gradwire.errors import AttachError, ExchangeError, GradwireError

# The parameters that DDP averages, compared with those that the module has now.
#
# DDP knows the parameters that the module had when it was made. ``load_state_dict(assign=True)``, a new
# layer,
# or ``requires_grad_`` after that give the module others. DDP averages none of them and says nothing.


class AveragedParameters:
    """The parameters whose gradients DDP averages: those that asked for one when it was made."""

    def __init__(self, model: DistributedDataParallel) -> None:
        self._module, self._ignored = model.module, frozenset(model.parameters_to_ignore)
        every = set[torch.Tensor](model._module_parameters)
        known = model._get_ddp_logging_data().get("num_parameter_tensors")  # type: ignore[no-untyped-call]
        asks = all(each.requires_grad for each in every)
        self._averaged = every if asks and known == len(every) else _in_buckets(model)
        self._frozen = every - self._averaged
        self._note()
        self._ids.clear()  # the first check looks at all

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(self._averaged)

    def check(self) -> None:
        """Raise ``AttachError`` if the module trains a parameter that DDP does not average."""
        replaced = [*map(id, self._members())] != self._ids
        if not replaced and not any(each.requires_grad for each in self._frozen):
            return
        for name, each in self._module.named_parameters():
            if each in self._averaged or name in self._ignored or not each.requires_grad:
                continue
            if not (isinstance(each, nn.Parameter) and each.is_leaf):
                continue  # a tensor that stands in for a parameter, as torch.func.functional_call lets it
            how = "unfrozen" if each in self._frozen else "put in its place"
            raise AttachError(
                f"{name} was {how} after DistributedDataParallel was made, which averages no gradient of it; "
                "load_state_dict(assign=True) and changes of the model come before: wrap the module in a new "
                "DistributedDataParallel and attach that, and make the optimizer anew"
            )
        self._note()

    def _note(self) -> None:
        """Note which parameters and modules each module has; kept, so that no id becomes another's."""
        self._groups = [
            group for each in self._module.modules() for group in (each._parameters, each._modules)
        ]
        self._kept = [*self._members()]
        self._ids = [*map(id, self._kept)]

    def _members(self) -> Iterator[object]:
        return chain.from_iterable(map(dict.values, self._groups))


def _in_buckets(model: DistributedDataParallel) -> set[torch.Tensor]:
    """Return the parameters in DDP's buckets, which it lists in those of zeros that ``join`` takes."""
    return {each for bucket in model.reducer._get_zeros_like_grad_buckets() for each in bucket.parameters()}


# What a copy of an attached model has in gradwire's place: no thread, no connections, and a warning sign.
#
# ``copy.deepcopy`` of a ``DistributedDataParallel`` (``torch.optim.swa_utils.AveragedModel`` makes one,
# too)
# gives the copy a reducer of its own, to which no hook of the original was told. It would average its
# gradients
# by itself, uncompressed, and say nothing.


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


# What is checked before each forward pass of an attached model, so that errors come with their reason.


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
