"""gradwire on a framework's model: attached when training starts, checked and closed when it ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from gradwire.api import check_timeout
from gradwire.auto import Auto
from gradwire.checksum import sealed
from gradwire.errors import AttachError, SpecError, StateError
from gradwire.integrations.residual_files import ResidualFolder, adopted
from gradwire.plan import Plan, PlanLike
from gradwire.training.ddp.hook import Attached, Scaler, attach
from gradwire.training.ledger.ledger import Ledger

LedgerLike = Ledger | Callable[[int], Ledger] | None


class Attachment:
    """The state of a framework's callback or strategy, for one model at a time.

    Parameters
    ----------
    plan
        As for ``gradwire.attach``; read here, so that mistakes are found before processes start.
    timeout_s
        How long a single wait for a peer may last before it is an error.
    ledger
        This rank's ledger, which the caller closes; or, if the rank isn't known yet, a function that returns
        the ledger of a rank, which ``close`` closes. By default, a new ledger.
    strict
        As for ``gradwire.attach``.
    resume_residuals
        Whether a resumed run restores each rank's residuals. False drops what was lost before.

    Raises
    ------
    SpecError
        For an invalid plan or timeout.
    """

    def __init__(
        self,
        plan: PlanLike | Auto = None,
        *,
        timeout_s: float = 30.0,
        ledger: LedgerLike = None,
        strict: bool = False,
        resume_residuals: bool = True,
    ) -> None:
        check_timeout(timeout_s)
        plan = Auto.of(plan) or plan
        self.plan = plan.first_plan if isinstance(plan, Auto) else Plan.of(plan)
        self._auto = plan if isinstance(plan, Auto) else None
        self.resume_residuals = resume_residuals
        self.rank, self.world = 0, 1
        self._timeout_s = timeout_s
        self._ledger = ledger
        self._strict = strict
        self._attached: Attached | None = None
        self._steps_before = 0
        self._loads = False

    @property
    def attached(self) -> Attached:
        """The result of ``gradwire.attach``, even after ``close``. Raises ``AttachError`` before."""
        if self._attached is None:
            raise AttachError(
                "gradwire is not attached yet, for the model is wrapped when training begins; ask again then"
            )
        return self._attached

    @property
    def keeps_state(self) -> bool:
        """Whether each rank has a state: residuals, or what it has chosen; and there is a model."""
        return self._attached is not None and (self.plan.keeps_residual or self._auto is not None)

    def attach(self, model: DistributedDataParallel) -> Attached:
        """Attach to ``model`` on all ranks, and release an earlier one. Raises as ``gradwire.attach``."""
        self.close()
        self.rank = dist.get_rank(model.process_group)
        self.world = dist.get_world_size(model.process_group)
        ledger = self._ledger(self.rank) if callable(self._ledger) else self._ledger
        if ledger is not None and ledger.rank != self.rank:
            raise SpecError(
                f"rank {self.rank} wants a ledger of its own, but got one of rank {ledger.rank}; give the "
                "function that makes it of a rank: ledger=gradwire.training.Ledger"
            )
        self._attached = attach(
            model, self._auto or self.plan, timeout_s=self._timeout_s, ledger=ledger, strict=self._strict
        )
        self._steps_before = self._attached.ledger.summary().steps
        if self._loads:
            self._attached.check_at_next_step()
        return self._attached

    def loads(self) -> None:
        """Let all ranks compare their weights in the next step, because the framework loads a checkpoint."""
        self._loads = True  # a model that is attached later has these weights, too
        if self._attached is not None:
            self._attached.check_at_next_step()

    def follow(self, scaler: Scaler | None) -> None:
        """Keep the residuals in the units of the framework's scaled loss, if it scales the loss."""
        if scaler is not None:
            self.attached.follow(scaler)

    def check_it_ran(self, updates: int) -> None:
        """Raise ``AttachError`` if there were this many updates but no gradient reached gradwire."""
        if updates > 0 and self.attached.ledger.summary().steps == self._steps_before:
            raise AttachError(
                f"rank {self.rank}: the weights were updated {updates} times, but no gradient came to "
                "gradwire, so compression did not run; does the loop train another model?"
            )

    def close(self) -> None:
        """Close the thread and the connections, if any; you can call this twice."""
        if self._attached is not None:
            self._attached.close()
            if callable(self._ledger):
                self._attached.ledger.close()

    def state(self, step: int | None) -> dict[str, Any]:
        """Return this rank's state: its residuals, or choices, the step of the checkpoint, a checksum."""
        return sealed({"step": step, "residuals": self.attached.state_dict()})

    def resume(self, saved_world: int, read: Callable[[int], Mapping[str, Any]], step: int | None) -> None:
        """Load the states that the ranks of a world saved, which ``read`` returns one by one.

        Each rank loads its own. If the number of ranks has changed, their sum is divided anew. Raises
        ``StateError``, and changes nothing, if a state is missing, damaged, or of another step.
        """
        with _advice():
            self.attached.load_state_dict(adopted(self.rank, self.world, saved_world, read, step))

    def resume_from(self, folder: ResidualFolder, step: int | None) -> None:
        """Load the states in a checkpoint's folder. Raises ``StateError`` as ``resume``, or if none.

        A run that chooses its plan does without, and measures anew.
        """
        if self._auto is not None and folder.empty:
            return
        with _advice():
            saved_world = folder.saved_world(self.world)
        self.resume(saved_world, folder.read(saved_world), step)


class Attaches:
    """A mixin for what a framework calls: its ``Attachment``, and what users ask it for."""

    _gradwire: Attachment

    @property
    def attached(self) -> Attached:
        """What ``gradwire.attach`` returned. Raises ``AttachError`` before training begins."""
        return self._gradwire.attached

    @property
    def ledger(self) -> Ledger:
        """What it counted, also after training. Raises ``AttachError`` before."""
        return self._gradwire.attached.ledger


@contextmanager
def _advice() -> Iterator[None]:
    try:
        yield
    except StateError as error:
        error.add_note("with resume_residuals=False training goes on without what earlier steps lost")
        raise
