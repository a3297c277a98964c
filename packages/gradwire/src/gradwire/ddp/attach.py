"""One line on DDP: gradwire exchanges its gradients, bucket by bucket, while backward computes the rest.

The hook is the one that ``DistributedDataParallel.register_comm_hook`` takes. How DDP cuts and orders buckets
is described in Li et al., "PyTorch Distributed", VLDB 2020, section 3.2.3.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, Self

import torch
from torch.nn.parallel import DistributedDataParallel

from gradwire.autotune.initial_plan import InitialPlan, new_recorder
from gradwire.autotune.rules import BUCKETS
from gradwire.autotune.settings import Auto
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
from gradwire.ddp.join import divides_by_active
from gradwire.ddp.reducer import BucketReducer, DDPBucket
from gradwire.deferred import outside_inference
from gradwire.errors import AttachError, SpecError
from gradwire.links.process_group import timeout_s_of
from gradwire.plan import Plan
from gradwire.sync.agreement import all_or_none
from gradwire.sync.buckets import float_count
from gradwire.sync.connect import check_timeout
from gradwire.sync.context import SyncOptions
from gradwire.sync.gradient_sync import GradientSync
from gradwire.sync.hashes import replica_hashes, sha256_of
from gradwire.sync.ledger.counts import PlanChoice
from gradwire.sync.ledger.ledger import Ledger
from gradwire.sync.observe import PlanChooser
from gradwire.sync.replicas import ReplicaWatch, compare_now
from gradwire.sync.trained import check_extras, import_all_of_torch
from gradwire.sync.views import Layouts

if TYPE_CHECKING:
    from gradwire.autotune.estimate import Estimate
    from gradwire.autotune.recorder import Recorder

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
    """Let gradwire average a DDP model's gradients, compressed on every hop; the training loop stays.

    All ranks of the model's group call this at the same point with the same plan. A communication thread
    exchanges each bucket while backward computes the others, or the transport does, with the plan
    ``backend``; ``backward`` returns when all are averaged, with identical bits on all ranks. Gradients in
    float16 and bfloat16 are exchanged as float32 and rounded at the end. Those of other dtypes go through
    torch's own all-reduce, which the ledger counts.

    Parameters
    ----------
    model
        A ``DistributedDataParallel`` without another hook, on the CPU or on GPUs, before or after
        ``torch.compile``. DDP cuts the buckets: its ``bucket_cap_mb`` counts, not the plan's
        ``bucket_nbytes``.
    plan
        A plan; a codec, or its spec such as ``quantize:8``; or the file that ``Plan.save`` or the planner
        wrote: any path, or a string that ends with ``.json`` or holds a ``/``. By default, or with
        ``"auto"`` or an ``Auto``, the run measures and chooses a plan itself.
    timeout_s
        How long any single wait for a peer lasts before it is an error, here and within a step; above 0, at
        most 1e6 seconds.
    begin_timeout_s
        How long a rank that has begun a step waits for the others to begin it, too: they may compile,
        evaluate or save alone meanwhile. By default the timeout of the model's process group, as DDP's own
        (30 minutes for Gloo, where nothing else was said), or ``timeout_s`` where that is longer. A process
        that dies is noticed at once, not by a timeout.
    ledger
        Where buckets and bypasses are counted; the caller closes it. By default one of its own.
    strict
        Whether ``backward`` raises ``LossyError`` on all ranks, in the same step, where encoding has taken
        more than half of a parameter's gradient in several steps and nothing keeps it, on any rank. By
        default that rank warns (``LossyWarning``), once for the parameters of a bucket;
        ``docs/accounting.md`` has the details.
    optimizer
        The model's, for ``check_replicas`` and ``check_replicas_every``, which compare its state with the
        weights then.
    check_replicas_every
        Compare the weights of all ranks, bit for bit, by a CRC32C, when the first backward pass begins and
        again after each such number of steps. Where they differ, ``backward`` raises ``StateError`` on all
        ranks. By default no step does. It costs about 10 ms per 100 MB of weights and state on a CPU.

    Returns
    -------
    Attached
        For its ledger, its state in checkpoints, and ``close``.

    Raises
    ------
    AttachError
        For a model that is no DDP, is attached or has another hook, or gradients or parameters that no hook
        can take, on all ranks when it is so on one; and when plans or versions differ, or a rank does not
        come in time.
    SpecError
        For an invalid plan or one that pipelines, and for an invalid timeout, optimizer or number of steps.
    StateError
        From ``backward``, where replicas differ. Begin again from a checkpoint.
    LossyError
        From ``backward``, where ``strict``. All buckets are averaged then, and the next step can be taken.
    """
    if not isinstance(model, DistributedDataParallel):
        raise AttachError(not_ddp(model))
    check_extras("attach", ledger, strict)
    check_timeout(timeout_s)
    if begin_timeout_s is not None:
        check_timeout(begin_timeout_s, "begin_timeout_s")
    watch = ReplicaWatch(check_replicas_every, optimizer)
    import_all_of_torch()
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
        advice="attach with a longer timeout_s",
    )
    watch.watch(model)
    attached = Attached(model, sync, BucketReducer(sync, names), chooser, watch, owns_ledger=ledger is None)
    try:
        _register(model, attached)
    except BaseException:
        attached.close()
        raise
    warn_about_broadcast_buffers(model)
    return attached


class Scaler(Protocol):
    """The scale of a ``torch.amp.GradScaler``."""

    def get_scale(self) -> float:
        """Return the factor of losses now."""


class Attached:
    """gradwire on one DDP model; ``attach`` makes it.

    As a context manager it closes at the end of the block.

    Attributes
    ----------
    ledger
        Bytes and seconds of every bucket and step, and what went around the codec.
    """

    def __init__(
        self,
        model: DistributedDataParallel,
        sync: GradientSync,
        reducer: BucketReducer,
        chooser: PlanChooser,
        watch: ReplicaWatch,
        *,
        owns_ledger: bool,
    ) -> None:
        assert sync.context.ledger is not None
        self.ledger, self._owns_ledger = sync.context.ledger, owns_ledger
        self._sync, self._reducer, self._chooser, self._watch = sync, reducer, chooser, watch
        self._model = weakref.ref(model)  # DDP's C++ side keeps this object, unseen by the garbage collector
        self._recorder: Recorder | None = None
        self._backward_check: BackwardCheck | None = None
        self._scaler: Scaler | None = None
        weakref.finalize(self, sync.end)

    @property
    def plan(self) -> Plan:
        """The plan in use: what all ranks agreed on, or what they have chosen last."""
        return self._sync.plan

    @property
    def decisions(self) -> list[tuple[int, PlanChoice]]:
        """With ``"auto"``: the steps before which all ranks took a plan, and what was decided."""
        return [*self._chooser.decisions]

    @outside_inference
    def state_dict(self) -> dict[str, Any]:
        """Return this rank's residuals, by the names of the parameters; each rank saves its own.

        With ``"auto"`` it has what was decided, too. Call it between steps. ``gradwire.redivide``
        fits the states of all ranks to another number of ranks.
        """
        self._look_at_scale()
        return self._sync.state_dict()

    @outside_inference
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Adopt what ``state_dict`` returned on this rank. Raises ``StateError`` and then changes nothing.

        With ``"auto"`` the next step takes the plan that rank 0's state has. All ranks load between the same
        two steps.
        """
        self._sync.load_state_dict(state)

    @outside_inference
    def check_replicas(self, optimizer: torch.optim.Optimizer | None = None) -> None:
        """Compare all ranks' weights, and the states of their optimizers, bit for bit.

        All ranks call it together, after loading a checkpoint. The optimizer is the one that ``attach`` got,
        if none is given here. Parameters that DDP ignores are each rank's own. 64 bytes per rank travel.
        Raises ``StateError`` on all ranks, naming those that differ from the majority, or from rank 0 where
        there is none; ``SpecError`` for an optimizer that can't be compared; and ``ExchangeError``.
        """
        watch = self._watch if optimizer is None else ReplicaWatch(None, optimizer)
        model = self._model()
        if model is not None:
            compare_now(self._sync, replica_hashes(model.module, watch.optimizer, sha256_of))

    @outside_inference
    def estimate(self, rate: str | float | None = None, hosts: int | None = None) -> Estimate | None:
        """Estimate the time of a step on another network, with another number of hosts; or on this one.

        All ranks call it together between two steps. The first call begins to record steps, and returns None;
        so do others before five are recorded. ``rate`` is one like ``"10gbit"``, or bytes per second; without
        it the line is measured. Raises ``SpecError``, ``DataError`` and ``ExchangeError``.
        """
        if self._recorder is None:
            self._recorder = new_recorder("DDP")
            self._sync.observe(self._recorder)
        return self._recorder.estimate(self._sync, rate, hosts)

    def check_at_next_step(self) -> None:
        """Let the next backward pass do what ``check_replicas`` does, for weights that are still to come."""
        self._watch.ask()

    @outside_inference
    def follow(self, scaler: Scaler) -> None:
        """Keep this rank's residuals in the units of a scaled loss, whenever its scale changes.

        All ranks call it once, before the first step or before ``load_state_dict``. The scale is read when a
        backward pass hands its first bucket over, and saved with the residuals. Raises ``SpecError`` for what
        has no ``get_scale``.

        Examples
        --------
        >>> scaler = torch.amp.GradScaler()  # doctest: +SKIP
        >>> attached.follow(scaler)  # doctest: +SKIP
        """
        if not callable(getattr(scaler, "get_scale", None)):
            raise SpecError(
                f"residuals follow a scaler with get_scale, but this is a {type(scaler).__name__}"
            )
        self._scaler = scaler
        self._look_at_scale()

    @outside_inference
    def scale_residuals(self, factor: float) -> None:
        """Multiply this rank's residuals: with a loss that is scaled, they are in units of its scale.

        ``follow`` does it by itself for a ``GradScaler``. All ranks call this between two steps, whenever the
        scale changes, with the new scale divided by the old one; a factor of 1 does nothing. Raises
        ``SpecError`` for one that is not above 0 and finite, and where residuals follow a scaler.
        """
        if self._scaler is not None:
            raise SpecError("these residuals follow their scaler by themselves; leave scale_residuals out")
        self._sync.feedback.scale(factor)

    def _look_at_scale(self) -> None:
        """Follow the scaler between two steps; residuals that a scaled run has saved come down to 1."""
        residuals = self._sync.feedback
        if self._scaler is not None and residuals.kept:
            residuals.follow(self._scaler.get_scale())
        elif residuals.scale_followed is not None:
            residuals.follow(1.0)

    @property
    def refusal(self) -> str:
        """The text with which another ``attach`` of the model is refused."""
        if self._sync.context.is_over:
            return f"gradwire was attached to this model before, and was closed or failed; {_REMEDY}"
        return (
            "gradwire is attached to this model already; go on with what the first attach returned, or "
            f"{_REMEDY}"
        )

    def close(self) -> None:
        """Give thread and connections up; the model still evaluates, but a backward pass raises.

        May be called twice. Raises ``LinkTimeoutError`` if the thread does not end.
        """
        self._sync.close()
        if self._owns_ledger:
            self.ledger.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._sync.context.is_over else f"{self._sync.steps_done} steps"
        return f"<Attached, {state}, by {self._sync.context.exchange!r}>"

    def __reduce__(self) -> tuple[type[Copied], tuple[()]]:
        """Leave this behind where the model is copied or pickled: threads and connections stay here."""
        return Copied, ()


def gradwire_hook(attached: Attached, bucket: DDPBucket) -> torch.futures.Future[torch.Tensor]:
    """Hand a bucket over: DDP's hook, named so in its logs."""
    model, check = attached._model(), attached._backward_check
    if check is not None and check.versions:
        check.check_unwritten(bucket)
    if bucket.index() == 0:
        attached._look_at_scale()
    # A static graph's first step begins after backward, and DDP ends it without the engine's callbacks.
    last_waits = attached._sync.steps_done == 0 and model is not None and model.static_graph
    by_active = model is not None and divides_by_active(model)
    return attached._reducer.take(bucket, last_waits=last_waits, by_active=by_active)


gradwire_hook.__annotations__.clear()  # DDP wants them to be classes, and they are strings


def _register(model: DistributedDataParallel, attached: Attached) -> None:
    averaged = AveragedParameters(model)
    averaged.check()
    forget_original(model)
    try:
        model.register_comm_hook(attached, gradwire_hook)
    except RuntimeError as error:
        model._comm_hooks.pop()  # torch has put it there, and then refused it
        raise AttachError("attach expected a model without a hook, got one with a builtin hook") from error
    model._comm_hooks = TakenHooks(model._comm_hooks)
    attached._backward_check = BackwardCheck(attached._sync, averaged)
    model.register_forward_pre_hook(ForwardCheck(attached._sync, averaged))
    model.register_forward_hook(attached._backward_check)
