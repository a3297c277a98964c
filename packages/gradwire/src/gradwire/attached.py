"""``Attached``: the handle through which a script controls gradwire on a DDP or FSDP2 model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

from gradwire.checkpoints import SUM, check_sealed
from gradwire.deferred import outside_inference
from gradwire.errors import SpecError, StateError
from gradwire.fields import Source, mapping, text
from gradwire.plan import Plan
from gradwire.sync.bucket.observe import BetweenSteps, PlanChooser, StepObserver
from gradwire.sync.bucket.residual import AUTO, SCALE, STEPS, Residuals
from gradwire.sync.checkpoint import ATTACHED, ATTACHED_SHARDS, RankState, pack, unpack
from gradwire.sync.gradient_sync import GradientSync
from gradwire.sync.ledger.counts import PlanChoice
from gradwire.sync.replicas.compare import ReplicaWatch

if TYPE_CHECKING:
    import torch
    from typing_extensions import Self

    from gradwire.autotune.estimate import Estimate
    from gradwire.autotune.recorder import Recorder

_OLDER = Source(
    "a state of FSDP's residuals", "load the state that state_dict returned on this rank", StateError
)


class Attached:
    """The handle that ``attach`` and ``attach_fsdp`` return, for controlling the exchanges of one model.

    As a context manager, it closes the exchanges at the end of the block. The stack ``undo`` closes the
    exchanges and restores the model. ``watch`` is None for sharded weights.

    Attributes
    ----------
    ledger
        The bytes and seconds of every bucket and step, and the bypasses of compression. With FSDP, each
        backward pass that reduces gradients ends a step.
    """

    def __init__(
        self, sync: GradientSync, chooser: PlanChooser, undo: ExitStack, watch: ReplicaWatch | None
    ) -> None:
        assert sync.context.ledger is not None, "front ends pass a ledger"
        self.ledger = sync.context.ledger
        self._sync, self._chooser, self._undo, self._watch = sync, chooser, undo, watch
        self._method = ATTACHED_SHARDS if watch is None else ATTACHED
        self._scale = ScaleFollower(sync.residuals)
        sync.observe(self._scale)

    @property
    def plan(self) -> Plan:
        """The plan in use, the same on all ranks: the plan of ``attach``, or ``"auto"``'s last choice."""
        return self._sync.plan

    @property
    def decisions(self) -> list[tuple[int, PlanChoice]]:
        """The decisions of ``"auto"``, each with the first step that uses its plan."""
        return [*self._chooser.decisions]

    @outside_inference
    def state_dict(self) -> dict[str, Any]:
        """Return this rank's residuals, and with ``"auto"`` the decisions. Each rank saves its own state.

        Call it between steps. Every key contains the rank (see ``gradwire.sync.checkpoint``), so that
        ``torch.distributed.checkpoint`` saves the states of all ranks side by side. ``gradwire.redivide``
        converts the states of a DDP model's ranks to a different number of ranks.
        """
        self._scale.look()
        state, plan = self._sync.state_dict(), self.plan.to_json()
        own = state["rank"], state["world"], state[STEPS]
        kept, auto, scale = state["residuals"], state.get(AUTO, ""), state.get(SCALE)
        return pack(RankState(*own, self._method, plan, residuals=kept, auto=auto, scale=scale))

    @outside_inference
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore this rank's state from ``state_dict``. Raises ``StateError``, and then changes nothing.

        All ranks load their states between the same two steps. With ``"auto"``, the next step uses the plan
        in rank 0's state. FSDP rejects residuals of a different number of ranks, because their shards differ.
        """
        self._sync.load_state_dict(self._read(state))

    def _read(self, state: Mapping[str, Any]) -> Mapping[str, Any]:
        own, is_sharded = self._sync.residuals, self._watch is None
        opened = state
        if not (isinstance(state, Mapping) and "residuals" in state):  # older versions nested the residuals
            found = unpack(state, own.rank, None if is_sharded else own.world, self._method)
            decided = {AUTO: found.auto} if found.auto else {}
            opened = {**found.of_residuals(), STEPS: found.steps_done, **decided}
        elif is_sharded:
            given = _OLDER.fields(state, "residuals", AUTO, SUM)
            residuals = given.get("residuals", mapping)
            given.get(AUTO, text, None)
            check_sealed(state, f"the residuals of rank {own.rank}")
            opened = {**residuals, **({AUTO: state[AUTO]} if AUTO in state else {})}
        world = opened.get("world")
        if is_sharded and isinstance(world, int) and world != own.world:
            raise StateError(
                f"rank {own.rank}: expected residuals of {own.world} ranks, got residuals of {world} "
                "ranks, which FSDP shards differently; continue without this call of load_state_dict"
            )
        return opened

    @outside_inference
    def check_replicas(self, optimizer: torch.optim.Optimizer | None = None) -> None:
        """Compare all ranks' weights, and the states of their optimizers, bit for bit.

        All ranks call this together, after loading a checkpoint. The default optimizer is the one passed to
        ``attach``. Parameters that DDP ignores aren't compared. The hashes have 64 bytes. If bits differ,
        all ranks raise a ``StateError`` that names the ranks that differ from the majority or, without a
        majority, from rank 0. Also raises ``ExchangeError``, and ``SpecError`` if the optimizer can't be
        compared or the weights are sharded.
        """
        self._replicas.compare(self._sync, optimizer)

    def check_at_next_step(self) -> None:
        """Schedule ``check_replicas`` for the next backward pass, after weights have been loaded."""
        self._replicas.ask()

    @outside_inference
    def estimate(self, rate: str | float | None = None, hosts: int | None = None) -> Estimate | None:
        """Estimate the step time on this cluster, on another network, or with another number of hosts.

        All ranks call this together between two steps. The first call starts to record steps. Calls return
        None until six steps are recorded. ``rate`` is a rate such as ``"10gbit"``, or bytes per second; by
        default the link is measured. Raises ``SpecError``, ``DataError`` and ``ExchangeError``.
        """
        return self._recorder.estimate(self._sync, rate, hosts)

    @outside_inference
    def follow(self, scaler: Scaler) -> None:
        """Rescale this rank's residuals whenever the scale of a scaled loss changes.

        All ranks call this once, before the first step or before ``load_state_dict``. Every step reads the
        scale before its first bucket, and ``state_dict`` saves it with the residuals. Raises ``SpecError`` if
        ``scaler`` has no ``get_scale``.
        """
        if not callable(getattr(scaler, "get_scale", None)):
            raise SpecError(
                f"follow: expected a scaler with get_scale, got a {type(scaler).__name__}; pass a GradScaler"
            )
        self._scale.scaler = scaler
        self._scale.look()

    @outside_inference
    def scale_residuals(self, factor: float) -> None:
        """Multiply this rank's residuals, which are in units of the loss scale, by ``factor``.

        All ranks call this between two steps whenever the scale of a scaled loss changes. ``factor`` is the
        new scale divided by the old one. For a ``GradScaler``, call ``follow`` instead. Raises ``SpecError``
        if ``factor`` isn't above 0 and finite, or if residuals follow a scaler.
        """
        if self._scale.scaler is not None:
            raise SpecError(
                "residuals already follow the scaler passed to follow(); remove the call to scale_residuals"
            )
        self._sync.residuals.scale(factor)

    def close(self) -> None:
        """Close threads and connections. Repeated calls do nothing. Raises ``LinkTimeoutError``.

        Afterwards a DDP model can still be evaluated, but its backward passes raise errors. An FSDP model
        uses its original collectives again.
        """
        self._undo.close()

    def _after_close(self, act: Callable[[], object]) -> None:
        """Call ``act`` once, at the end of ``close``."""
        undo = ExitStack()
        undo.callback(act)
        undo.push(self._undo)
        self._undo = undo

    def _leave_out(self, seconds: float) -> None:
        """Subtract the ``seconds`` of a comparison with another hook from the current step's time."""
        self.ledger._leave_out(seconds)
        self._chooser.leave_out(seconds)

    @property
    def _replicas(self) -> ReplicaWatch:
        if self._watch is None:
            raise SpecError(
                "check_replicas: expected replicated weights, got FSDP shards of "
                f"{self._sync.context.world} ranks; compare checkpoints instead"
            )
        return self._watch

    @cached_property
    def _recorder(self) -> Recorder:
        from gradwire.autotune.recorder import Recorder  # most runs request no estimate

        recorder = Recorder("DDP" if self._watch is not None else "FSDP2")
        self._sync.observe(recorder)
        return recorder

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._sync.context.is_over else f"{self._sync.steps_done} steps"
        return f"<Attached, {state}, by {self._sync.context.exchange!r}>"


class Scaler(Protocol):
    """The part of the interface of ``torch.amp.GradScaler`` that residuals need."""

    def get_scale(self) -> float:
        """Return the current scale of the loss."""


class ScaleFollower(StepObserver):
    """An observer that, once ``scaler`` is set, rescales residuals when the scale of the loss changes."""

    def __init__(self, residuals: Residuals) -> None:
        self._residuals = residuals
        self.scaler: Scaler | None = None

    def begin(self, step: int, sync: BetweenSteps) -> None:  # noqa: ARG002
        """Read the scale before the first bucket of a step."""
        self.look()

    def look(self) -> None:
        """Rescale residuals to the scaler's scale, or to 1 if only the run that saved them had a scaler."""
        if self.scaler is not None and self._residuals.kept:
            self._residuals.follow(self.scaler.get_scale())
        elif self._residuals.scale_followed is not None:
            self._residuals.follow(1.0)
