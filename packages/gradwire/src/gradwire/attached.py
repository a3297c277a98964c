"""``Attached``: what a script holds of gradwire on one model, DDP's or FSDP2's."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, Self

from gradwire.autotune.initial_plan import new_recorder
from gradwire.checkpoints import SUM, check_sealed, sealed
from gradwire.deferred import outside_inference
from gradwire.errors import SpecError, StateError
from gradwire.fields import Source, mapping, text
from gradwire.plan import Plan
from gradwire.sync.gradient_sync import GradientSync
from gradwire.sync.ledger.counts import PlanChoice
from gradwire.sync.observe import BetweenSteps, PlanChooser, StepObserver
from gradwire.sync.replicas import ReplicaWatch
from gradwire.sync.residual import AUTO, Residuals

if TYPE_CHECKING:
    import torch

    from gradwire.autotune.estimate import Estimate
    from gradwire.autotune.recorder import Recorder

_SOURCE = Source("a state of FSDP's residuals", "load what state_dict returned on this rank", StateError)


class Attached:
    """The handle of one model's exchanges, from ``attach`` or ``attach_fsdp`` to ``close``.

    As a context manager it closes at the end of the block. ``undo`` closes the exchanges, and gives the model
    back what it had; ``watch`` is None where each rank has a shard of the weights.

    Attributes
    ----------
    ledger
        Bytes and seconds of every bucket and step, and the bypasses. With FSDP its steps end with the
        backward passes that reduce gradients.
    """

    def __init__(
        self, sync: GradientSync, chooser: PlanChooser, undo: ExitStack, watch: ReplicaWatch | None
    ) -> None:
        assert sync.context.ledger is not None, "front ends have one"
        self.ledger = sync.context.ledger
        self._sync, self._chooser, self._undo, self._watch = sync, chooser, undo, watch
        self._state: GradientSync | ShardedState = ShardedState(sync) if watch is None else sync
        self._scale = ScaleFollower(sync.feedback)
        sync.observe(self._scale)

    @property
    def plan(self) -> Plan:
        """The plan in use: what all ranks agreed on, or what they have chosen last."""
        return self._sync.plan

    @property
    def decisions(self) -> list[tuple[int, PlanChoice]]:
        """With ``"auto"``: the steps before which all ranks took a plan, and the decisions."""
        return [*self._chooser.decisions]

    @outside_inference
    def state_dict(self) -> dict[str, Any]:
        """Return this rank's residuals, and with ``"auto"`` the decisions; each rank saves its own.

        Call it between steps. ``gradwire.redivide`` fits the states of a DDP model's ranks to another number
        of ranks.
        """
        self._scale.look()
        return self._state.state_dict()

    @outside_inference
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Adopt the result of ``state_dict`` on this rank. Raises ``StateError`` and then changes nothing.

        With ``"auto"`` the next step takes the plan of rank 0's state. All ranks load between the same two
        steps. FSDP refuses the residuals of another number of ranks, because it cuts gradients differently.
        """
        self._state.load_state_dict(state)

    @outside_inference
    def check_replicas(self, optimizer: torch.optim.Optimizer | None = None) -> None:
        """Compare all ranks' weights, and the states of their optimizers, bit for bit.

        All ranks call it together, after loading a checkpoint. The optimizer is that of ``attach``, if none
        is given here. Parameters that DDP ignores are each rank's own. 64 bytes per rank travel. Raises
        ``StateError`` on all ranks, naming those that differ from the majority, or from rank 0 where there is
        none; ``ExchangeError``; and ``SpecError`` for an optimizer that can't be compared, and for shards.
        """
        self._replicas.compare(self._sync, optimizer)

    def check_at_next_step(self) -> None:
        """Let the next backward pass do what ``check_replicas`` does, for weights that are still to come."""
        self._replicas.ask()

    @outside_inference
    def estimate(self, rate: str | float | None = None, hosts: int | None = None) -> Estimate | None:
        """Estimate the time of a step on another network, with another number of hosts; or on this one.

        All ranks call it together between two steps. The first call begins to record steps, and returns None;
        so do others before five are recorded. ``rate`` is one like ``"10gbit"``, or bytes per second; without
        it the line is measured. Raises ``SpecError``, ``DataError`` and ``ExchangeError``.
        """
        return self._recorder.estimate(self._sync, rate, hosts)

    @outside_inference
    def follow(self, scaler: Scaler) -> None:
        """Keep this rank's residuals in the units of a scaled loss, whenever its scale changes.

        All ranks call it once, before the first step or before ``load_state_dict``. The scale is read when a
        backward pass begins to average, and saved with the residuals. Raises ``SpecError`` for an object
        without ``get_scale``.
        """
        if not callable(getattr(scaler, "get_scale", None)):
            raise SpecError(f"follow expected a scaler with get_scale, got a {type(scaler).__name__}")
        self._scale.scaler = scaler
        self._scale.look()

    @outside_inference
    def scale_residuals(self, factor: float) -> None:
        """Multiply this rank's residuals: with a loss that is scaled, they are in units of its scale.

        ``follow`` does it by itself for a ``GradScaler``. All ranks call this between two steps, whenever the
        scale changes, with the new scale divided by the old one; a factor of 1 does nothing. Raises
        ``SpecError`` for one that is not above 0 and finite, and where residuals follow a scaler.
        """
        if self._scale.scaler is not None:
            raise SpecError("these residuals follow their scaler by themselves; leave scale_residuals out")
        self._sync.feedback.scale(factor)

    def close(self) -> None:
        """Give up threads and connections; may be called twice. Raises ``LinkTimeoutError``.

        A DDP model still evaluates, but its backward passes raise. An FSDP model has its own collectives
        again.
        """
        self._undo.close()

    @property
    def _replicas(self) -> ReplicaWatch:
        """The checks of the replicas. Raises ``SpecError`` where there are none."""
        if self._watch is None:
            raise SpecError(
                f"check_replicas expected replicated weights, got FSDP shards of {self._sync.context.world} "
                "ranks; compare checkpoints instead"
            )
        return self._watch

    @cached_property
    def _recorder(self) -> Recorder:
        recorder = new_recorder("DDP" if self._watch is not None else "FSDP2")
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
    """The scale of a ``torch.amp.GradScaler``."""

    def get_scale(self) -> float:
        """Return the factor of losses now."""


class ScaleFollower(StepObserver):
    """An observer that keeps residuals in the units of a scaled loss, once it has a scaler."""

    def __init__(self, residuals: Residuals) -> None:
        self._residuals = residuals
        self.scaler: Scaler | None = None

    def begin(self, step: int, sync: BetweenSteps) -> None:  # noqa: ARG002
        """Look at the scale before the first bucket of a step."""
        self.look()

    def look(self) -> None:
        """Follow the scaler between two steps; residuals that a scaled run has saved come down to 1."""
        if self.scaler is not None and self._residuals.kept:
            self._residuals.follow(self.scaler.get_scale())
        elif self._residuals.scale_followed is not None:
            self._residuals.follow(1.0)


class ShardedState:
    """The saved state of a sharded model's exchanges on one rank, to be kept beside its shards.

    The residuals are a state within it, so that ``redivide`` refuses it.
    """

    def __init__(self, sync: GradientSync) -> None:
        self._sync = sync

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's residuals, and with ``"auto"`` the decisions."""
        state = self._sync.state_dict()
        decided = {AUTO: state[AUTO]} if AUTO in state else {}
        residuals = {name: each for name, each in state.items() if name not in (AUTO, SUM)}
        return sealed({"residuals": residuals, **decided})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Adopt the result of ``state_dict`` on this rank, in a world of the same size, or change nothing."""
        feedback = self._sync.feedback
        given = _SOURCE.fields(state, "residuals", AUTO, SUM)
        residuals = given.get("residuals", mapping)
        given.get(AUTO, text, None)
        check_sealed(state, f"the residuals of rank {feedback.rank}")
        world = residuals.get("world")
        if isinstance(world, int) and world != feedback.world:
            raise StateError(
                f"rank {feedback.rank} of {feedback.world} cannot use the residuals of a world of {world} "
                "ranks, for FSDP cuts gradients differently there; go on without them, which gives up what "
                "the last step lost"
            )
        decided = {AUTO: state[AUTO]} if AUTO in state else {}
        self._sync.load_state_dict({**residuals, **decided})
