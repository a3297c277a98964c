"""DDP's communication hook, which exchanges each bucket while backward computes the next gradients.

``attach`` registers the hook with ``DistributedDataParallel.register_comm_hook``. Li et al., "PyTorch
Distributed", VLDB 2020, section 3.2.3, describe how DDP forms and orders buckets.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Mapping
from contextlib import ExitStack

import torch
from torch.nn.parallel import DistributedDataParallel

from gradwire.attached import Attached
from gradwire.autotune import InitialPlan
from gradwire.autotune.settings import BUCKETS, Auto
from gradwire.codecs import Codec
from gradwire.ddp.checks import (
    AveragedParameters,
    BackwardCheck,
    Copied,
    ForwardCheck,
    TakenHooks,
    check_model,
    check_plan,
    forget_original,
    not_ddp,
    warn_about_broadcast_buffers,
)
from gradwire.ddp.reducer import BucketReducer, DDPBucket, divides_by_active
from gradwire.deferred import outside_inference
from gradwire.errors import AttachError
from gradwire.links.process_group import timeout_s_of
from gradwire.plan import Plan
from gradwire.sync.context import SyncOptions
from gradwire.sync.flat.gradients import float_count
from gradwire.sync.gradient_sync import GradientSync
from gradwire.sync.group import all_or_none, check_timeout
from gradwire.sync.layout import Layouts
from gradwire.sync.ledger.ledger import Ledger
from gradwire.sync.replicas.compare import ReplicaWatch
from gradwire.sync.trained import check_extras, import_all_of_torch

_REMEDY = "wrap the module in a new DistributedDataParallel and attach that"


@outside_inference
def attach(
    model: DistributedDataParallel,
    plan: Plan | Codec | Auto | str | os.PathLike[str] | None = None,
    *,
    timeout_s: float = 30.0,
    begin_timeout_s: float | None = None,
    ledger: Ledger | None = None,
    strict: bool = False,
    optimizer: torch.optim.Optimizer | None = None,
    check_replicas_every: int | None = None,
) -> Attached:
    """Average a DDP model's gradients with gradwire, compressed on every hop, in an unchanged training loop.

    All ranks of the model's group must call ``attach`` at the same point, with the same plan. A communication
    thread exchanges each bucket while backward computes the next buckets; with the algorithm ``backend``,
    Gloo's all-reduce averages the bucket instead. ``backward`` returns when all buckets are averaged, with
    identical bits on all ranks. Gradients in float16 and bfloat16 are exchanged as float32, and the averages
    are rounded to the gradients' dtype. Gradients of all other dtypes are averaged by torch's own all-reduce,
    and the ledger counts them as bypasses.

    Parameters
    ----------
    model
        A ``DistributedDataParallel`` without a communication hook, on the CPU or on GPUs, before or after
        ``torch.compile``. DDP forms the buckets, so its ``bucket_cap_mb`` applies, not the plan's
        ``bucket_nbytes``.
    plan
        A plan; a codec, or its spec such as ``quantize:8``; or a file written by ``Plan.save`` or the
        planner: any path, or a string that ends with ``.json`` or contains ``/``. By default, or with
        ``"auto"`` or an ``Auto``, the run measures and chooses a plan.
    timeout_s
        The timeout of every single wait for a peer, in this call and within a step; above 0 and at most 1e6
        seconds.
    begin_timeout_s
        The timeout of the wait until all other ranks begin a step, in seconds. Between two steps, a rank may
        compile, evaluate, or save. By default, the longer of ``timeout_s`` and the timeout of the model's
        process group, which DDP uses (30 minutes for Gloo, unless it was set). A dead process is detected at
        once, without a timeout.
    ledger
        The ledger that counts buckets and bypasses; the caller closes it. By default, a new ledger.
    strict
        Whether encoding that destroys gradients is an error. If, on any rank, a parameter without a residual
        has lost more than half of its gradient's norm to encoding in several steps, ``backward`` raises
        ``LossyError`` on all ranks, in the same step. By default, only the rank with this parameter issues a
        ``LossyWarning``, once for all parameters of a bucket; see ``docs/accounting.md``.
    optimizer
        The model's optimizer, whose state ``check_replicas`` and ``check_replicas_every`` then also compare.
        By default, they compare only weights.
    check_replicas_every
        The number of steps between comparisons of all ranks' weights, bit for bit, by a CRC32C; the first
        backward pass begins with a comparison. If weights differ, ``backward`` raises ``StateError`` on all
        ranks. By default, replicas aren't compared. A comparison takes about 10 ms per 100 MB of weights and
        state on a CPU.

    Returns
    -------
    Attached
        The handle with the ledger, the state for checkpoints, and ``close``.

    Raises
    ------
    AttachError
        For a model that is not a DDP, is already attached, has another hook, or has gradients or parameters
        that hooks do not support; if ranks have different plans or versions of gradwire; or if a rank is
        late. An error on one rank is raised on all ranks.
    SpecError
        For an invalid plan, a plan with a pipeline, and an invalid timeout, ``optimizer``, or
        ``check_replicas_every``.
    StateError
        From ``backward``, if replicas differ. Restart from a checkpoint.
    LossyError
        From ``backward``, if ``strict``. All buckets are averaged, and training can continue.
    """
    if not isinstance(model, DistributedDataParallel):
        raise AttachError(not_ddp(model))
    check_extras("attach", ledger, strict)
    check_timeout(timeout_s)
    if begin_timeout_s is not None:
        check_timeout(begin_timeout_s, "begin_timeout_s")
    watch = ReplicaWatch(check_replicas_every, optimizer)
    group = model.process_group
    with all_or_none(group, timeout_s):
        check_model(model)
        initial = InitialPlan.of(plan)
        check_plan(initial.plan, model)
    if begin_timeout_s is None:
        begin_timeout_s = max(timeout_s, timeout_s_of(group))
    chooser = initial.chooser(BUCKETS, model.module.named_parameters())
    names = {parameter: name for name, parameter in model.module.named_parameters()}
    sync = GradientSync.connect(
        group,
        initial.plan,
        SyncOptions(timeout_s, begin_timeout_s, strict),
        Layouts(list(names.values()), {name: float_count(each) for each, name in names.items()}),
        {**watch.facts, **initial.facts},
        ledger,
        [watch, chooser],
        remedy=_REMEDY,
        late_advice="attach with a longer timeout_s",
    )
    watch.watch(model)
    with ExitStack() as undo:
        book = sync.context.ledger
        if ledger is None and book is not None:
            undo.callback(book.close)
        undo.callback(sync.close)
        import_all_of_torch()  # takes seconds; no timeout is running, and the first log line is already out
        chooser.prepare(sync)
        _register(model, HookState(model, sync, names))
        warn_about_broadcast_buffers(model)
        return Attached(sync, chooser, undo.pop_all(), watch)


class HookState:
    """The state of gradwire's hook, held by a C++ reference that Python's garbage collector does not see.

    Raises ``AttachError`` if the module trains a parameter that DDP does not average. ``stand_in`` is None,
    or a hook that averages the buckets instead of gradwire from the next step on, the same on all ranks.
    """

    def __init__(
        self, model: DistributedDataParallel, sync: GradientSync, names: Mapping[torch.Tensor, str]
    ) -> None:
        self.averaged = AveragedParameters(model)
        self.averaged.check()
        self.sync, self.reducer, self.model = sync, BucketReducer(sync, names), weakref.ref(model)
        self.backward_check = BackwardCheck(sync, self.averaged)
        self.stand_in: Callable[[DDPBucket], torch.futures.Future[torch.Tensor]] | None = None
        weakref.finalize(self, sync.end)

    @property
    def refusal(self) -> str:
        """The error text for a second ``attach`` of the model."""
        got, remedy = "one that is attached", f"use the result of the first attach, or {_REMEDY}"
        if self.sync.context.is_over:
            got, remedy = "one whose attachment was closed or has failed", _REMEDY
        return f"attach: expected a model without gradwire, got {got}; {remedy}"

    def __reduce__(self) -> tuple[type[Copied], tuple[()]]:
        """Copy or pickle the state as ``Copied``, because threads and connections can't be copied."""
        return Copied, ()


def gradwire_hook(state: HookState, bucket: DDPBucket) -> torch.futures.Future[torch.Tensor]:
    """Start the exchange of a bucket. DDP calls this hook, and shows its name in logs."""
    model = state.model()
    by_active = model is not None and divides_by_active(model)
    if state.stand_in is not None and not by_active:
        return state.stand_in(bucket)
    if state.backward_check.versions:
        state.backward_check.check_unwritten(bucket)
    # With a static graph, DDP calls the hook for the first step's buckets only after backward. The engine
    # then runs no more callbacks, so the last call waits for the averages.
    last_waits = state.sync.steps_done == 0 and model is not None and model.static_graph
    return state.reducer.take(bucket, last_waits=last_waits, by_active=by_active)


gradwire_hook.__annotations__.clear()  # DDP expects classes as annotations, and these are strings


def hook_state(model: DistributedDataParallel) -> HookState | None:
    """Return the ``HookState`` of a model, or None if gradwire is not attached to the model."""
    states = (state for _, state in model._comm_hooks)
    return next((each for each in states if isinstance(each, HookState)), None)


def _register(model: DistributedDataParallel, state: HookState) -> None:
    forget_original(model)
    try:
        model.register_comm_hook(state, gradwire_hook)
    except RuntimeError as error:
        model._comm_hooks.pop()  # torch appends the hook before it refuses the hook
        raise AttachError(
            f"attach: expected a model without a communication hook, got one with a builtin hook; {_REMEDY}"
        ) from error
    model._comm_hooks = TakenHooks(model._comm_hooks)
    model.register_forward_pre_hook(ForwardCheck(state.sync, state.averaged))
    model.register_forward_hook(state.backward_check)
