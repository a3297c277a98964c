"""The entry point for FSDP2: an encoded reduce-scatter of gradients and all-gather of weights."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from itertools import chain

import torch
import torch.distributed as dist
from torch import nn

from gradwire.attached import Attached
from gradwire.autotune import InitialPlan
from gradwire.autotune.settings import SHARDS, Auto
from gradwire.codecs import Codec
from gradwire.deferred import outside_inference
from gradwire.errors import AttachError, SpecError
from gradwire.fsdp.comms import GatherWeights, ReplicaGroup, ScatterGradients, ShardedSteps, residual_key
from gradwire.fsdp.sync_contexts import Purpose, SyncContexts
from gradwire.fsdp.units import Unit, UnitLayouts, units_of, world_group
from gradwire.log import level
from gradwire.plan import Plan
from gradwire.sync.bucket.residual import Residuals
from gradwire.sync.context import SyncOptions
from gradwire.sync.gradient_sync import GradientSync
from gradwire.sync.group import agree, check_initialised, check_timeout, facts_of
from gradwire.sync.layout import Layouts
from gradwire.sync.ledger.ledger import Ledger
from gradwire.sync.replicas.deltas import Deltas, weight_codec_of


@outside_inference
def attach_fsdp(
    module: nn.Module,
    gradients: Plan | Codec | Auto | str | os.PathLike[str] | None = None,
    weights: Codec | str | None = "identity",
    *,
    timeout_s: float = 30.0,
    ledger: Ledger | None = None,
    strict: bool = False,
) -> Attached:
    """Encode FSDP2's reduce-scatter of gradients and all-gather of weights with codecs.

    All ranks must call ``attach_fsdp`` together, with equal arguments, after ``fully_shard`` and before a
    forward pass. The call changes every FSDP module within ``module`` through ``set_custom_reduce_scatter``
    and ``set_custom_all_gather``. On a two-dimensional mesh, the all-reduce between replicas is encoded, too.

    Gradients and weights in bfloat16 and float16 are exchanged as float32 of equal value. FSDP's own
    collectives exchange all other dtypes, and the ledger counts and logs these exchanges as bypasses.

    Parameters
    ----------
    module
        A module that is or contains an ``FSDPModule``, on the CPU or an accelerator.
    gradients
        A plan; a codec, or its spec; or a file written by ``Plan.save`` or the planner: any path, or a string
        that ends with ``.json`` or contains ``/``. Gradients are always scattered around a ring; the plan's
        algorithm applies only between replicas. The plan's buckets are ignored, because FSDP exchanges one
        module's gradients at a time. By default, or with ``"auto"`` or an ``Auto``, the run measures and
        chooses one codec for all parameters. This choice requires all modules to be sharded over all ranks;
        if they are not, the default is ``fp8``, and ``"auto"`` is an error.
    weights
        A codec or its spec. All ranks, including the owner of a shard, compute with the decoded weights; the
        shards that the optimizer updates stay exact. ``identity`` is exact for every dtype. ``delta:fp32`` is
        also exact, and sends the changes since the last all-gather; ``delta:bf16`` sends the changes of
        weights rounded to bfloat16. Both delta codecs keep all weights in host memory on every rank, and
        require modules with ``reshard_after_forward=False``. None keeps FSDP's own all-gather.
    timeout_s
        The timeout of every single wait for a peer; above 0 and at most 1e6 seconds.
    ledger
        The ledger that counts exchanges and bypasses; the caller closes it. By default, a new ledger.
    strict
        Whether ``backward`` raises ``LossyError`` on all ranks, in the same step, if on any rank encoding
        errors exceed half of a parameter's gradient; see ``gradwire.attach``. By default, the rank with this
        parameter only warns. ``strict`` requires all modules to be on one mesh of all ranks.

    Returns
    -------
    Attached
        The handle, whose ``close`` restores FSDP's collectives.

    Raises
    ------
    SpecError
        For an invalid plan, codec, or timeout. A ``SpecError`` or ``AttachError`` leaves the module
        unchanged.
    AttachError
        For a module without FSDP or an already attached module; for a torch without FSDP's extension points;
        if ranks have different settings or are late; if ``strict`` is set and a module is not on a mesh of
        all ranks; and if ``weights`` is a delta codec and a module frees its weights after forward.
    LossyError
        From ``backward``, if ``strict``. All gradients are reduced, and training can continue.
    ExchangeError
        From forward and backward passes, if a peer fails: the shards are unchanged since the last optimizer
        step, but FSDP is in the middle of a pass. Save ``module.state_dict()``, and restart all ranks.

    Examples
    --------
    >>> import gradwire
    >>> attached = gradwire.attach_fsdp(model, weights="bf16")  # doctest: +SKIP
    """
    who = "attach_fsdp"
    initial = InitialPlan.of(gradients, "gradients")
    plan = initial.plan.for_whole_gradients(who).for_one_codec(who).on_host(who)
    codec = weight_codec_of(weights, "weights")
    check_timeout(timeout_s)
    level()
    check_initialised(AttachError)
    units = units_of(module)
    _check(units, plan, codec, strict)
    other = next((unit for unit in units if not unit.is_over_all), None)
    if other is not None and gradients is None:
        initial = InitialPlan(plan)
    elif other is not None and initial.auto is not None:
        raise AttachError(
            f"gradients='auto': expected modules sharded over all {dist.get_world_size()} ranks, got "
            f"{other.name!r} on a mesh of {tuple(other.parameters.mesh_info.mesh.shape)}; pass a plan or a "
            "codec"
        )
    chooser = initial.chooser(SHARDS, module.named_parameters())
    options = SyncOptions(timeout_s, strict=strict)
    rank = dist.get_rank()
    with ExitStack() as undo:
        book = Ledger(rank) if ledger is None else ledger
        if ledger is None:
            undo.callback(book.close)
        contexts = SyncContexts(plan, codec, options, book)
        undo.callback(contexts.close)
        groups = _groups(units, codec, all_agree=strict or initial.auto is not None)
        facts = {
            **facts_of(plan),
            **initial.facts,
            "weights": str(codec),
            "strict": str(strict),
            "modules": ", ".join(unit.name for unit in units),
        }
        for group in dict.fromkeys(group for _, group in groups):
            agree(group, facts, timeout_s)
        members = [contexts.connect(*each) for each in groups]
        layouts = [unit.layouts(module) for unit in units]
        names = Layouts([name for each in layouts for name in each.all_names()])
        usual = [_residuals_of(*each) for each in zip(units, layouts, strict=True)]
        residuals = Residuals(plan, rank, dist.get_world_size(), usual=dict(chain(*usual)))
        sync = GradientSync(members[-1].context, names, residuals, [chooser])
        undo.callback(sync.close)
        # Without this finalizer, a thread would keep the links of a deleted model open.
        end = weakref.finalize(module, sync.end)
        end.atexit = False
        undo.callback(end.detach)
        steps = ShardedSteps(sync, contexts, book)
        # Ranks may compile differently, and a compiled forward pass would call the hook only while tracing.
        forward = torch.compiler.disable(steps.forward)  # type: ignore[no-untyped-call]
        undo.callback(module.register_forward_pre_hook(forward, prepend=True).remove)
        for unit, layout in zip(units, layouts, strict=True):
            _install(unit, steps, codec, layout, undo)
        chooser.prepare(sync)
        return Attached(sync, chooser, undo.pop_all(), None)


def steps_of(module: nn.Module) -> ShardedSteps | None:
    """Return the ``ShardedSteps`` of a module, or None if gradwire is not attached to any of its units."""
    comms = (unit.reduce_scatter for unit in units_of(module))
    return next((each.steps for each in comms if isinstance(each, ScatterGradients)), None)


def _check(units: list[Unit], plan: Plan, weights: Codec | None, strict: bool) -> None:
    """Raise ``AttachError`` or ``SpecError`` if the modules don't support the settings of ``attach_fsdp``."""
    for unit in units:
        held = unit.all_gather, unit.reduce_scatter, unit.replica_group
        if any(isinstance(each, GatherWeights | ScatterGradients | ReplicaGroup) for each in held):
            raise AttachError(
                f"attach_fsdp: expected modules without gradwire, got {unit.name!r}, which is attached; "
                "call close() on the earlier Attached"
            )
    if plan.pipeline != 1:
        raise SpecError(
            f"attach_fsdp: expected a plan without a pipeline, got pipeline={plan.pipeline}; use a plan "
            "with pipeline=1"
        )
    if plan.algorithm != "ring" and not any(unit.replica_group for unit in units):
        raise SpecError(
            "attach_fsdp: expected the algorithm 'ring' on a mesh without a replica dimension, got "
            f"{plan.algorithm!r}; use a plan with algorithm='ring'"
        )
    freeing = next((unit.name for unit in units if not unit.stays_whole), None)
    if isinstance(weights, Deltas) and freeing is not None:
        raise AttachError(
            f"weights={str(weights)!r}: expected modules that keep their weights after forward, got "
            f"{freeing!r}, which frees them; call fully_shard with reshard_after_forward=False, or use "
            "weights='identity'"
        )
    if strict and not all(unit.is_on_world for unit in units):
        raise AttachError(
            "strict=True: expected every FSDP module on a mesh of all ranks, got a smaller mesh; "
            "omit strict, or shard all modules over all ranks"
        )


def _groups(
    units: list[Unit], weights: Codec | None, *, all_agree: bool
) -> list[tuple[Purpose, dist.ProcessGroup]]:
    """Return the process groups to connect, without repetitions, in an order that all ranks share.

    In the last group, the ranks choose plans and agree on them. It is the group of all ranks if one is
    required, otherwise a group that reduces gradients.
    """
    every = dict.fromkeys(each for unit in units for each in unit.groups())
    gathers = [each for each in every if each[0] is Purpose.GATHER and weights is not None]
    reductions = [each for each in every if each[0] is not Purpose.GATHER]
    is_hybrid = any(unit.replica_group for unit in units)
    if all_agree or (is_hybrid and all(unit.is_on_world for unit in units)):
        return [*gathers, *reductions, (Purpose.AGREE, world_group())]
    if reductions:
        return [*gathers, *reductions]
    alone = units[0].shard_group
    assert alone is not None, "a unit without a shard group has a replica group"
    return [(Purpose.AGREE, alone)]


def _residuals_of(unit: Unit, layouts: UnitLayouts) -> Iterator[tuple[str, int]]:
    """Yield the keys and lengths of a unit's residuals for passes in which all parameters have gradients."""
    count, shards = sum(layouts.counts), unit.shard_group
    if shards is not None and shards.size() > 1:
        yield residual_key(f"{unit.name}.gradients", count * shards.size()), count * shards.size()
    if unit.replica_group is not None:
        yield residual_key(f"{unit.name}.replicas", count), count


def _install(
    unit: Unit, steps: ShardedSteps, weights: Codec | None, layouts: UnitLayouts, undo: ExitStack
) -> None:
    if weights is not None:
        put, before = unit.module.set_custom_all_gather, unit.all_gather
        put(GatherWeights(f"{unit.name}.weights", steps, before, weights))
        undo.callback(put, before)
    put, before = unit.module.set_custom_reduce_scatter, unit.reduce_scatter
    put(ScatterGradients(f"{unit.name}.gradients", steps, before, layouts))
    undo.callback(put, before)
    if unit.replica_group is not None:
        group = unit.replica_group
        unit.set_replica_group(ReplicaGroup(f"{unit.name}.replicas", steps, group, layouts))
        undo.callback(partial(unit.set_replica_group, group))
