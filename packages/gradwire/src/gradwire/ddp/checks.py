"""Checks of models that are attached: refusals, and gradients that DDP would leave unaveraged.

DDP averages one backward pass after each forward pass. It ignores a second one, whose gradients stay each
rank's own. It also averages too late for an optimizer that steps in a hook of a parameter.
"""

from __future__ import annotations

import logging
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
from gradwire.ddp.join import joins
from gradwire.ddp.reducer import DDPBucket
from gradwire.errors import AttachError, ExchangeError, SpecError
from gradwire.exchange import Exchange
from gradwire.plan import Plan
from gradwire.sync.gradient_sync import GradientSync
from gradwire.sync.trained import REPLICATE, is_replicated
from gradwire.units import format_size

# Models and plans that attach refuses.


def not_ddp(model: object) -> str:
    """Return the advice for a model that is no ``DistributedDataParallel``."""
    got = f"attach expected a DistributedDataParallel, got a {type(model).__name__}"
    if is_replicated(model):
        return (
            f"{got}, which {REPLICATE} has changed; leave replicate out, wrap the model in "
            "DistributedDataParallel, and attach that"
        )
    if any(each.__name__ == "FSDPModule" for each in type(model).__mro__):
        return f"{got}, whose gradients FSDP reduces; use gradwire.attach_fsdp"
    if isinstance(getattr(model, "_orig_mod", None), DistributedDataParallel):
        return f"{got} around one; attach the DistributedDataParallel inside (model._orig_mod)"
    return f"{got}; wrap the model first"


def check_model(model: DistributedDataParallel) -> None:
    """Raise ``AttachError`` for a model whose gradients no hook can take, or another one takes."""
    for _, state in model._comm_hooks:
        refusal = getattr(state, "refusal", None)  # a HookState of before
        if refusal is not None:
            raise AttachError(refusal)
    hooks = own_hooks(model)
    if hooks:
        raise AttachError(f"attach expected a model without a hook, got one with {', '.join(hooks)}")
    if getattr(model, "_use_python_reducer", False):
        raise AttachError(
            'torch._dynamo.config.optimize_ddp is "python_reducer", with which compiled code averages '
            "gradients without buckets for hooks; set it to True before DistributedDataParallel is made"
        )
    if model._delay_all_reduce_params:
        raise AttachError(
            "parameters in delay_all_reduce_named_params are averaged past every hook; leave that option out"
        )
    if getattr(model, "skip_all_reduce_unused_params", False):
        raise AttachError(
            "with skip_all_reduce_unused_params DDP leaves buckets out, of which no hook learns; leave it off"
        )
    for name, module in model.module.named_modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse:
            raise AttachError(
                f"{name or 'the model'} has sparse gradients, which gradwire does not exchange; make it with "
                "sparse=False"
            )


def check_plan(plan: Plan, model: DistributedDataParallel) -> None:
    """Raise ``SpecError`` for a plan that is sharded or pipelines, or names parameters of no model."""
    if plan.for_whole_gradients("attach").pipeline > 1:
        raise SpecError(
            f"attach is synchronous, but the plan has pipeline={plan.pipeline}; train with "
            "gradwire.PipeSGD, or give attach a plan with pipeline=1"
        )
    check_names(plan.rules, (name for name, _ in model.module.named_parameters()))


# The parameters that DDP averages, compared with those that the module has now.
#
# DDP knows the parameters that the module had when it was made. ``load_state_dict(assign=True)``, a new layer
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
# ``copy.deepcopy`` of a ``DistributedDataParallel`` (``torch.optim.swa_utils.AveragedModel`` makes one, too)
# gives the copy a reducer of its own, of which no hook of the original learns. It would average its gradients
# by itself, uncompressed, and say nothing.


class Copied:
    """Stands where the original has its ``HookState``."""


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

    def __init__(self, sync: GradientSync, parameters: Iterable[torch.Tensor]) -> None:
        self._sync, self._parameters = sync, list(parameters)
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
        self._awaited, self._model = self._sync.steps_done, weakref.ref(model)
        for tensor in _tensors_of(output):
            if tensor.requires_grad and not tensor.is_leaf:
                tensor.register_hook(self._pass)  # type: ignore[no-untyped-call]

    def check_unwritten(self, bucket: DDPBucket) -> None:
        """Raise ``AttachError`` if a hook has changed a parameter before its gradient was averaged."""
        for each in bucket.parameters():
            if self.versions.get(each, each._version) != each._version:
                raise self._sync.fail(
                    AttachError(
                        f"rank {self._sync.context.rank}: a hook has changed a parameter of shape "
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
        sync = self._sync
        if self._awaited == sync.steps_done or sync.context.is_over or not _synchronises(self._model()):
            return
        if any(map(_will_accumulate, self._parameters)):
            raise AttachError(
                f"rank {sync.context.rank}: DDP has averaged one backward pass since the last forward pass, "
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

    def __init__(self, sync: GradientSync, averaged: AveragedParameters) -> None:
        self._sync, self._averaged = sync, averaged

    def __call__(self, model: nn.Module, _inputs: object) -> None:
        """Raise why no backward pass can be, if none can."""
        if torch.compiler.is_compiling():
            return  # a compiled forward pass is traced once
        if not torch.is_grad_enabled():
            return
        if getattr(model, "require_backward_grad_sync", True):
            self._sync.check()
        self._averaged.check()
        if self._sync.steps_done > 0 and not self._sync.context.is_over and _will_cut_buckets(model):
            named_barrier(self._sync)

    def __reduce__(self) -> tuple[type[CopiedCheck], tuple[()]]:
        return CopiedCheck, ()


def _will_cut_buckets(model: nn.Module) -> bool:
    """Return whether DDP broadcasts its new buckets in this forward pass, once after its first step.

    That broadcast has the process group's timeout, and errors of torch's, which a named barrier comes before.
    Ranks that have run out of batches, under ``join``, answer none.
    """
    cuts = getattr(model, "static_graph", False) or not getattr(model, "find_unused_parameters", False)
    return cuts and not joins(model) and not getattr(model, "_has_rebuilt_buckets", True)


def named_barrier(sync: GradientSync) -> None:
    """Exchange one number with all ranks, so that an error names one that is gone or stands still."""
    number = torch.zeros(1, dtype=torch.float32, device="cpu")

    def exchange_it(exchange: Exchange) -> None:
        exchange.all_reduce(number, timeout_s=sync.context.begin_timeout_s)

    sync.exchange_now("a number in the named barrier", exchange_it)


# What DDP sends by itself in each step, beside the gradients.

MUCH = 0.02
"""Buffers of this share of the gradient take as long as a sixth of one that is compressed to an eighth."""
_LOG = logging.getLogger("gradwire")


def warn_about_broadcast_buffers(model: DistributedDataParallel) -> None:
    """Log on rank 0 how much DDP broadcasts in each forward pass, if that is much: no codec shortens it."""
    if model.process_group.rank() != 0 or model.process_group.size() == 1 or not model.broadcast_buffers:
        return
    buffers = sum(each.nbytes for each in model.module.buffers())
    gradient = sum(each.nbytes for each in model.parameters() if each.requires_grad)
    if buffers > MUCH * gradient:
        _LOG.warning(
            "gradwire: DDP broadcasts %s of buffers in each forward pass, beside %s of gradients, and no "
            "codec makes them smaller; if all ranks have the same ones, such as masks, pass "
            "broadcast_buffers=False to DistributedDataParallel",
            format_size(buffers),
            format_size(gradient),
        )
