"""Checks of attached models: unsupported models, and gradients that DDP doesn't average.

DDP averages one backward pass after each forward pass. DDP ignores a second backward pass, whose gradients
then differ between ranks. DDP also averages too late for an optimizer that steps in a hook of a parameter.
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

from gradwire.codecs.rules import check_names
from gradwire.ddp.reducer import DDPBucket
from gradwire.errors import AttachError, ExchangeError, SpecError
from gradwire.log import LOG
from gradwire.plan import Plan
from gradwire.sync.gradient_sync import GradientSync
from gradwire.sync.replicas.compare import joins
from gradwire.sync.trained import REPLICATE, is_replicated
from gradwire.units import format_size

# Models and plans that attach refuses.


def not_ddp(model: object) -> str:
    """Return the error text for a model that isn't a ``DistributedDataParallel``."""
    got = f"attach: expected a DistributedDataParallel, got a {type(model).__name__}"
    if is_replicated(model):
        return (
            f"{got} with {REPLICATE}; remove replicate, wrap the model in DistributedDataParallel, and "
            "attach that"
        )
    if any(each.__name__ == "FSDPModule" for each in type(model).__mro__):
        return f"{got}, whose gradients FSDP reduces; use gradwire.attach_fsdp"
    if isinstance(getattr(model, "_orig_mod", None), DistributedDataParallel):
        return f"{got} that wraps a DistributedDataParallel; attach model._orig_mod instead"
    return f"{got}; wrap the model in DistributedDataParallel first"


def check_model(model: DistributedDataParallel) -> None:
    """Raise ``AttachError`` if the model cannot use a communication hook or already has a hook."""
    for _, state in model._comm_hooks:
        refusal = getattr(state, "refusal", None)  # a HookState of an earlier attach
        if refusal is not None:
            raise AttachError(refusal)
    if hooks := own_hooks(model):
        raise AttachError(
            f"attach: expected a model without a communication hook, got one with {', '.join(hooks)}; "
            "remove the call of register_comm_hook"
        )
    option = remedy = ""
    if getattr(model, "_use_python_reducer", False):
        option = 'torch._dynamo.config.optimize_ddp=True, got "python_reducer"'
        remedy = "set optimize_ddp to True before you create the DistributedDataParallel"
    elif model._delay_all_reduce_params:
        option = "a model without delay_all_reduce_named_params, got one with this option"
        remedy = "remove the option"
    elif getattr(model, "skip_all_reduce_unused_params", False):
        option, remedy = "skip_all_reduce_unused_params=False, got True", "set the option to False"
    if option:
        raise AttachError(f"attach: expected {option}, which bypasses communication hooks; {remedy}")
    for name, module in model.module.named_modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse:
            raise AttachError(
                f"attach: expected dense gradients, got sparse gradients from {name or 'the model'}; create "
                "the embedding with sparse=False"
            )


def check_plan(plan: Plan, model: DistributedDataParallel) -> None:
    """Raise ``SpecError`` for a sharded or pipelined plan, or for a rule that matches no parameter."""
    if plan.for_whole_gradients("attach").pipeline > 1:
        raise SpecError(
            f"attach: expected a plan with pipeline=1, got pipeline={plan.pipeline}; use pipeline=1, or "
            "train with gradwire.PipeSGD"
        )
    check_names(plan.rules, (name for name, _ in model.module.named_parameters()))


# DDP's constructor reads the module's parameters. DDP silently leaves a parameter unaveraged if
# ``load_state_dict(assign=True)`` or a new layer adds it later, or ``requires_grad_`` unfreezes it later.


class AveragedParameters:
    """The parameters whose gradients DDP averages: those that required a gradient when DDP was created."""

    def __init__(self, model: DistributedDataParallel) -> None:
        self._module, self._ignored = model.module, frozenset(model.parameters_to_ignore)
        every = set[torch.Tensor](model._module_parameters)
        known = model._get_ddp_logging_data().get("num_parameter_tensors")  # type: ignore[no-untyped-call]
        asks = all(each.requires_grad for each in every)
        self._averaged = every if asks and known == len(every) else _in_buckets(model)
        self._frozen = every - self._averaged
        self._note()
        self._ids.clear()  # the first check examines all parameters

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
                continue  # a tensor in place of a parameter, as with torch.func.functional_call
            how = "unfrozen" if each in self._frozen else "added"
            raise AttachError(
                f"{name} was {how} after DistributedDataParallel was created, so its gradient is not "
                "averaged; add, unfreeze, and load_state_dict(assign=True) all parameters before you create "
                "the DistributedDataParallel and the optimizer"
            )
        self._note()

    def _note(self) -> None:
        """Store each module's parameters and submodules. The references keep Python from reusing ids."""
        self._groups = [
            group for each in self._module.modules() for group in (each._parameters, each._modules)
        ]
        self._kept = [*self._members()]
        self._ids = [*map(id, self._kept)]

    def _members(self) -> Iterator[object]:
        return chain.from_iterable(map(dict.values, self._groups))


def _in_buckets(model: DistributedDataParallel) -> set[torch.Tensor]:
    """Return the parameters in DDP's buckets, as listed in the zero-filled buckets of ``join``."""
    return {each for bucket in model.reducer._get_zeros_like_grad_buckets() for each in bucket.parameters()}


# Placeholders for hooks in a copy of an attached model. The copy has no thread and no connections.
#
# ``copy.deepcopy`` of a ``DistributedDataParallel`` (also in ``torch.optim.swa_utils.AveragedModel``) creates
# a new reducer, which would silently average the copy's gradients uncompressed.


class Copied:
    """The placeholder in a copied model for the ``HookState`` of the original model."""


class CopiedCheck:
    """A check that rejects forward passes of a copied model until gradwire is attached to the copy.

    Forward passes after which no gradients would be averaged are allowed.
    """

    def __call__(self, model: nn.Module, _inputs: object) -> None:
        """Raise ``ExchangeError`` if DDP would average the gradients of this forward pass."""
        if torch.is_grad_enabled() and _synchronises(model):
            raise ExchangeError(
                "expected a model with gradwire attached, got an unattached copy, whose gradients would be "
                "averaged uncompressed; attach the copy, or evaluate the copy under torch.no_grad()"
            )


class CopiedNotes:
    """The placeholder in a copied model for the ``BackwardCheck`` of the original model."""

    def __call__(self, *_: object) -> None:
        """Ignore a forward pass of the copy."""


class TakenHooks(list[tuple[Any, object]]):
    """DDP's list of communication hooks after ``attach``, with gradwire's hook; it rejects a second hook."""

    def append(self, pair: tuple[Any, object]) -> None:
        """Raise ``AttachError``, because DDP supports only one hook."""
        raise AttachError(
            "DDP supports only one communication hook, and gradwire.attach has registered it; remove the "
            f"call register_comm_hook({pair[0].__qualname__}), or wrap the module in a new "
            "DistributedDataParallel without gradwire"
        )

    def __reduce__(self) -> tuple[type[list[Any]], tuple[list[Any]]]:
        """Copy or pickle this list as a plain list, because the copy may have a different hook."""
        return list, ([*self],)


def own_hooks(model: DistributedDataParallel) -> list[str]:
    """Return the names of a model's communication hooks, without the placeholders in a copy."""
    return [hook.__qualname__ for hook, state in model._comm_hooks if not isinstance(state, Copied)]


def forget_original(model: DistributedDataParallel) -> None:
    """Remove the original model's placeholders from a copied model, so that gradwire can attach to it."""
    model._comm_hooks[:] = [pair for pair in model._comm_hooks if not isinstance(pair[1], Copied)]
    for hooks in (model._forward_pre_hooks, model._forward_hooks):
        for number, hook in list(hooks.items()):
            if isinstance(hook, CopiedCheck | CopiedNotes):
                del hooks[number]


class BackwardCheck:
    """A forward hook that records forward passes, and raises an error if DDP would not average a gradient.

    A compiled forward pass is traced once and not recorded. ``versions`` has torch's version counters, at the
    end of the last forward pass, of the parameters with hooks; it is empty once all gradients are averaged.
    """

    def __init__(self, sync: GradientSync, parameters: Iterable[torch.Tensor]) -> None:
        self._sync, self._parameters = sync, list(parameters)
        self._awaited: int | None = None  # the number of completed steps at the last recorded forward pass
        self._model: Callable[[], nn.Module | None] = lambda: None  # the model of that pass
        self.versions: dict[torch.Tensor, int] = {}

    def __call__(self, model: nn.Module, _inputs: object, output: object) -> None:
        """Record a forward pass, to check the backward pass that follows."""
        if torch.compiler.is_compiling() or not torch.is_grad_enabled():
            return
        # DDP averages a backward pass even within no_sync() if an earlier forward pass has prepared for it.
        hooked = (
            each for each in self._parameters if each._post_accumulate_grad_hooks or each._backward_hooks
        )
        self.versions = {each: each._version for each in hooked}
        if not _synchronises(model):
            return
        self._awaited, self._model = self._sync.steps_done, weakref.ref(model)
        for tensor in _tensors_of(output):
            if tensor.requires_grad and not tensor.is_leaf:
                tensor.register_hook(self._pass)  # type: ignore[no-untyped-call]

    def check_unwritten(self, bucket: DDPBucket) -> None:
        """Raise ``AttachError`` if a hook changed a parameter before its gradient was averaged."""
        for each in bucket.parameters():
            if self.versions.get(each, each._version) != each._version:
                raise self._sync.fail(
                    AttachError(
                        f"rank {self._sync.context.rank}: expected parameters to change only after their "
                        f"gradients were averaged, got a parameter of shape {tuple(each.shape)} that a hook "
                        "changed in backward; call optimizer.step() after backward, and restart from a "
                        "checkpoint"
                    )
                )
        if bucket.is_last():
            self.versions = {}

    @unserializable_hook  # type: ignore[untyped-decorator]
    def _pass(self, _gradient: torch.Tensor) -> None:
        """Check a backward pass that reaches an output of a recorded forward pass.

        Within ``no_sync``, the pass is allowed, because its gradients are averaged with the next pass.
        """
        sync = self._sync
        if self._awaited == sync.steps_done or sync.context.is_over or not _synchronises(self._model()):
            return
        if any(map(_will_accumulate, self._parameters)):
            raise AttachError(
                f"rank {sync.context.rank}: expected one backward pass after each forward pass, got two, and "
                "DDP does not average the second; add the losses and call backward once, or run a forward "
                "pass before each backward pass (all but the last pair within no_sync())"
            )

    def __reduce__(self) -> tuple[type[CopiedNotes], tuple[()]]:
        return CopiedNotes, ()


def _tensors_of(output: object) -> Iterator[torch.Tensor]:
    """Yield the tensors in a model's output that DDP finds; containers may be cyclic."""
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
    """Return whether DDP averages gradients now, that is, outside of ``no_sync``."""
    return bool(getattr(model, "require_backward_grad_sync", True))


def _will_accumulate(parameter: torch.Tensor) -> bool:
    """Return whether the running backward pass adds to a parameter's gradient."""
    if not parameter.requires_grad:
        return False
    try:
        return torch._C._will_engine_execute_node(get_gradient_edge(parameter).node)
    except RuntimeError:  # within torch.autograd.grad, which adds to no gradient
        return False


class ForwardCheck:
    """A forward pre-hook that raises an error if DDP could not average the next backward pass."""

    def __init__(self, sync: GradientSync, averaged: AveragedParameters) -> None:
        self._sync, self._averaged = sync, averaged

    def __call__(self, model: nn.Module, _inputs: object) -> None:
        """Raise an error if DDP could not average the next backward pass."""
        if torch.compiler.is_compiling() or not torch.is_grad_enabled():  # a compiled pass is traced once
            return
        if _synchronises(model):
            self._sync.check()
        self._averaged.check()
        if self._sync.steps_done > 0 and not self._sync.context.is_over and _will_cut_buckets(model):
            named_barrier(self._sync)

    def __reduce__(self) -> tuple[type[CopiedCheck], tuple[()]]:
        return CopiedCheck, ()


def _will_cut_buckets(model: nn.Module) -> bool:
    """Return whether DDP broadcasts rebuilt buckets in this forward pass, as it does after the first step.

    The broadcast of buckets waits as long as the process group's timeout, and its errors name no rank.
    Therefore, a named barrier precedes it, except under ``join``, because ranks without batches would not
    take part in the barrier.
    """
    cuts = getattr(model, "static_graph", False) or not getattr(model, "find_unused_parameters", False)
    return cuts and not joins(model) and not getattr(model, "_has_rebuilt_buckets", True)


def named_barrier(sync: GradientSync) -> None:
    """Wait for all ranks by exchanging a number, so that an error names a rank that has ended or stopped."""
    number = torch.zeros(1, dtype=torch.float32, device="cpu")
    sync.exchange_now(
        "a number in the named barrier",
        lambda exchange: exchange.all_reduce(number, timeout_s=sync.context.begin_timeout_s),
    )


# The model's buffers, which DDP broadcasts in each step in addition to averaging gradients.

MUCH = 0.02
"""The ratio of buffers to gradients above which rank 0 warns.

At this ratio, buffers add a sixth to the bytes if gradients are compressed 8-fold.
"""


def warn_about_broadcast_buffers(model: DistributedDataParallel) -> None:
    """Warn on rank 0 if the buffers that DDP broadcasts uncompressed in each forward pass are large."""
    if model.process_group.rank() != 0 or model.process_group.size() == 1 or not model.broadcast_buffers:
        return
    buffers = sum(each.nbytes for each in model.module.buffers())
    gradient = sum(each.nbytes for each in model.parameters() if each.requires_grad)
    if buffers > MUCH * gradient:
        LOG.warning(
            "DDP also broadcasts %s of buffers uncompressed in each forward pass (gradients: %s); if the "
            "buffers are equal on all ranks, such as masks, pass broadcast_buffers=False to "
            "DistributedDataParallel",
            format_size(buffers),
            format_size(gradient),
        )
