"""gradwire on the model of somebody else's loop: attached when it trains, checked and closed at its end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from gradwire.api import check_timeout
from gradwire.errors import AttachError, SpecError, StateError
from gradwire.integrations.residual_files import ResidualFolder, adopted
from gradwire.plan import Plan, PlanLike
from gradwire.training.checksum import sealed
from gradwire.training.ddp.hook import Attached, Scaler, attach
from gradwire.training.ledger.ledger import Ledger

LedgerLike = Ledger | Callable[[int], Ledger] | None


class Attachment:
    """What a framework's callback or strategy holds; one model at a time.

    Parameters
    ----------
    plan
        As for ``gradwire.attach``; read here, so that a mistake is found before processes start.
    timeout_s
        How long any single wait for a peer lasts before it is an error.
    ledger
        This rank's ledger, which its maker closes; or a function that makes one of the rank, where that is
        not known yet, and ``close`` closes it. By default one of its own.
    strict
        As for ``gradwire.attach``.
    resume_residuals
        Whether a resumed run wants each rank's residuals back. False gives up what was lost before.

    Raises
    ------
    SpecError
        For an invalid plan or timeout.
    """

    def __init__(
        self,
        plan: PlanLike = None,
        *,
        timeout_s: float = 30.0,
        ledger: LedgerLike = None,
        strict: bool = False,
        resume_residuals: bool = True,
    ) -> None:
        check_timeout(timeout_s)
        self.plan = Plan.of(plan)
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
        """What ``gradwire.attach`` returned, also after ``close``. Raises ``AttachError`` before."""
        if self._attached is None:
            raise AttachError(
                "gradwire is not attached yet, for the model is wrapped when training begins; ask again then"
            )
        return self._attached

    @property
    def keeps_residuals(self) -> bool:
        """Whether there are residuals: the plan keeps them, and there is a model."""
        return self._attached is not None and self.plan.keeps_residual

    def attach(self, model: DistributedDataParallel) -> Attached:
        """Attach to ``model``, on all ranks, and give up an earlier one. Raises as ``gradwire.attach``."""
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
            model, self.plan, timeout_s=self._timeout_s, ledger=ledger, strict=self._strict
        )
        self._steps_before = self._attached.ledger.summary().steps
        if self._loads:
            self._attached.check_at_next_step()
        return self._attached

    def loads(self) -> None:
        """Let all ranks compare their weights in the next step: the framework loads a checkpoint now."""
        self._loads = True  # a model that is attached later has these weights, too
        if self._attached is not None:
            self._attached.check_at_next_step()

    def follow(self, scaler: Scaler | None) -> None:
        """Keep the residuals in the units of the framework's scaled loss, where it scales one."""
        if scaler is not None:
            self.attached.follow(scaler)

    def check_it_ran(self, updates: int) -> None:
        """Raise ``AttachError`` if weights were updated so often but no gradient came to gradwire."""
        if updates > 0 and self.attached.ledger.summary().steps == self._steps_before:
            raise AttachError(
                f"rank {self.rank}: the weights were updated {updates} times, but no gradient came to "
                "gradwire, so compression did not run; does the loop train another model?"
            )

    def close(self) -> None:
        """Give thread and connections up, if there are any; may be called twice."""
        if self._attached is not None:
            self._attached.close()
            if callable(self._ledger):
                self._attached.ledger.close()

    def state(self, step: int | None) -> dict[str, Any]:
        """Return what this rank saves: its residuals, the step of their checkpoint, and a checksum."""
        return sealed({"step": step, "residuals": self.attached.state_dict()})

    def resume(self, saved_world: int, read: Callable[[int], Mapping[str, Any]], step: int | None) -> None:
        """Adopt what the ranks of a world saved, ``read`` one by one.

        Each rank takes its own. Where the number of ranks has changed their sum is divided anew. Raises
        ``StateError``, and changes nothing, for what is missing, damaged or of another step.
        """
        with _advice():
            self.attached.load_state_dict(adopted(self.rank, self.world, saved_world, read, step))

    def resume_from(self, folder: ResidualFolder, step: int | None) -> None:
        """Adopt what lies in a checkpoint's folder. Raises ``StateError`` as ``resume``, and for none."""
        with _advice():
            saved_world = folder.saved_world(self.world)
        self.resume(saved_world, folder.read(saved_world), step)


@contextmanager
def _advice() -> Iterator[None]:
    try:
        yield
    except StateError as error:
        error.add_note("with resume_residuals=False training goes on without what earlier steps lost")
        raise
