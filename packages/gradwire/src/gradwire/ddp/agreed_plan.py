"""The plan that all ranks of a DDP model agree on when they attach, and the models that attach refuses."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gradwire import codecs, collectives
from gradwire.autotune.settings import Auto
from gradwire.codecs import Codec
from gradwire.codecs.rules import check_names
from gradwire.ddp.checks import own_hooks
from gradwire.errors import AttachError, GradwireError, SpecError
from gradwire.fields import to_values
from gradwire.plan import Plan
from gradwire.sync.agreement import REFUSED, agree
from gradwire.sync.trained import REPLICATE, is_replicated
from gradwire.units import format_size


def not_ddp(model: object) -> str:
    """Return what to do about a model that is no ``DistributedDataParallel``."""
    got = f"attach wants a DistributedDataParallel, but got a {type(model).__name__}"
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


def agreed_plan(
    model: DistributedDataParallel,
    plan: Plan | Codec | Auto | str | os.PathLike[str] | None,
    timeout_s: float,
    facts: Mapping[str, str],
) -> Plan:
    """Return the plan that all ranks have chosen; they agree on ``facts``, too.

    Raises ``AttachError`` on all of them if one cannot.
    """
    try:
        _check_model(model)
        chosen = plan.first_plan if isinstance(plan, Auto) else _read_plan(plan)
        check_names(chosen.rules, (name for name, _ in model.module.named_parameters()))
    except GradwireError as error:
        try:
            agree(model.process_group, {REFUSED: str(error)}, timeout_s)
        except AttachError:
            raise error from None  # the others have the reason, too
        raise
    parts = {name: str(part) for name, part in to_values(chosen).items()}
    world = str(dist.get_world_size(model.process_group))
    parts |= codecs.origins(chosen) | collectives.origins(chosen)
    parts |= plan.facts if isinstance(plan, Auto) else {}
    agree(model.process_group, {**parts, **facts, "world": world}, timeout_s)
    return chosen


def _check_model(model: DistributedDataParallel) -> None:
    for _, state in model._comm_hooks:
        refusal = getattr(state, "refusal", None)  # an Attached of before
        if refusal is not None:
            raise AttachError(refusal)
    hooks = own_hooks(model)
    if hooks:
        raise AttachError(f"attach wants a model without a hook, but this one has {', '.join(hooks)}")
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
            "with skip_all_reduce_unused_params DDP leaves buckets out, which no hook is told; leave it off"
        )
    for name, module in model.module.named_modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse:
            raise AttachError(
                f"{name or 'the model'} has sparse gradients, which gradwire does not exchange; make it with "
                "sparse=False"
            )


def _read_plan(plan: Plan | Codec | str | os.PathLike[str] | None) -> Plan:
    chosen = Plan.of(plan).for_whole_gradients("attach")
    if chosen.pipeline > 1:
        raise SpecError(
            f"attach is synchronous, but the plan has pipeline={chosen.pipeline}; train with "
            "gradwire.PipeSGD, or give attach a plan with pipeline=1"
        )
    return chosen


# What DDP sends by itself in each step, beside the gradients.

MUCH = 0.02
"""Buffers of this share of the gradient take as long as a sixth of one that is compressed to an eighth."""
_LOG = logging.getLogger("gradwire")


def tell_of_buffers(model: DistributedDataParallel) -> None:
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
