"""Mixins for Lightning's classes in the packages ``lightning`` and ``pytorch_lightning``.

The two packages have separate copies of the same classes, and each package rejects the classes of the other
package. Therefore, this module imports neither package.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gradwire.autotune import Auto
from gradwire.errors import SpecError
from gradwire.integrations.attachment import Attaches, Attachment, LedgerLike, ddp_inside, file_name
from gradwire.plan import PlanLike

NAME = "gradwire"
DESCRIPTION = "DDP with gradients averaged by gradwire, compressed in every hop"
_HOOKS = ("ddp_comm_hook", "ddp_comm_state", "ddp_comm_wrapper")
_KEY = "gradwire"

if TYPE_CHECKING:
    _Base = Any  # a class of Lightning, the second base of each subclass
else:
    _Base = object


class StrategyParts(Attaches, _Base):
    """A mixin for ``DDPStrategy`` that attaches gradwire, and saves residuals with checkpoints."""

    def __init__(
        self,
        plan: PlanLike | Auto = None,
        *,
        timeout_s: float = 30.0,
        ledger: LedgerLike = None,
        strict: bool = False,
        resume_residuals: bool = True,
        **ddp: Any,
    ) -> None:
        if hooks := [name for name in _HOOKS if ddp.get(name) is not None]:
            raise SpecError(
                f"expected no communication hook besides gradwire's, got {' and '.join(hooks)}; omit "
                f"{' and '.join(hooks)}"
            )
        super().__init__(**ddp)
        self._gradwire = Attachment(
            plan, timeout_s=timeout_s, ledger=ledger, strict=strict, resume_residuals=resume_residuals
        )
        self._updates = 0
        self._restored_from = ""

    def configure_ddp(self) -> None:
        """Wrap the model in DDP, and attach gradwire."""
        super().configure_ddp()
        scaler = getattr(self.precision_plugin, "scaler", None)
        self._gradwire.attach(ddp_inside(self.model, "Lightning's strategy"), scaler)
        self._updates = 0

    def optimizer_step(self, *args: Any, **kwargs: Any) -> Any:
        """Run a step of the optimizer, and count it as an update of the weights."""
        self._updates += 1
        return super().optimizer_step(*args, **kwargs)

    def on_train_end(self) -> None:
        """Raise ``AttachError`` if weights were updated but gradwire averaged no gradient."""
        super().on_train_end()
        self._gradwire.check_it_ran(self._updates)

    def teardown(self) -> None:
        """Close gradwire, even after an exception."""
        try:
            super().teardown()
        finally:
            self._gradwire.close()

    def save_checkpoint(
        self, checkpoint: dict[str, Any], filepath: str | os.PathLike[str], storage_options: Any = None
    ) -> None:
        """Save a checkpoint with the number of ranks, and each rank's residuals next to the checkpoint."""
        if "optimizer_states" in checkpoint and self._gradwire.keeps_state:
            checkpoint[_KEY] = {"world": self._gradwire.world}
            record = self._gradwire.state(checkpoint["global_step"])
            path = self._residual_path(filepath, self._gradwire.rank, self._gradwire.world)
            self.checkpoint_io.save_checkpoint(record, path)
        super().save_checkpoint(checkpoint, filepath, storage_options=storage_options)

    def remove_checkpoint(self, filepath: str | os.PathLike[str]) -> None:
        """Remove a checkpoint and this rank's residuals."""
        super().remove_checkpoint(filepath)
        if self._gradwire.keeps_state:
            path = self._residual_path(filepath, self._gradwire.rank, self._gradwire.world)
            self.checkpoint_io.remove_checkpoint(path)

    def load_checkpoint(
        self, checkpoint_path: str | os.PathLike[str], *args: Any, **kwargs: Any
    ) -> dict[str, Any]:
        """Load a checkpoint, and store its resolved path, because the residuals are next to it."""
        self._gradwire.loads()
        linked = os.path.islink(checkpoint_path)
        self._restored_from = os.path.realpath(checkpoint_path) if linked else os.fspath(checkpoint_path)
        checkpoint: dict[str, Any] = super().load_checkpoint(checkpoint_path, *args, **kwargs)
        return checkpoint

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """Restore the optimizers and this rank's residuals, after ``fit`` has attached gradwire."""
        super().load_optimizer_state_dict(checkpoint)
        saved = checkpoint.get(_KEY)
        if saved is None or not self._gradwire.resume_residuals:
            return  # residuals start at 0: none were saved, or the user doesn't restore them
        world = saved["world"]

        def read(rank: int) -> Mapping[str, Any]:
            path = self._residual_path(self._restored_from, rank, world)
            record: Mapping[str, Any] = self.checkpoint_io.load_checkpoint(path)
            return record

        self._gradwire.resume(world, read, checkpoint["global_step"])

    @staticmethod
    def _residual_path(filepath: str | os.PathLike[str], rank: int, world: int) -> str:
        return f"{os.fspath(filepath)}.{file_name(rank, world)}"


class CallbackParts(Attaches, _Base):
    """A mixin for ``Callback`` that attaches gradwire to the DDP model of any strategy."""

    def __init__(
        self,
        plan: PlanLike | Auto = None,
        *,
        timeout_s: float = 30.0,
        ledger: LedgerLike = None,
        strict: bool = False,
    ) -> None:
        super().__init__()
        self._gradwire = Attachment(plan, timeout_s=timeout_s, ledger=ledger, strict=strict)
        if self._gradwire.plan.keeps_residual:
            raise SpecError(
                f"expected a plan without residuals, which Lightning's callbacks cannot save for each rank, "
                f"got {self._gradwire.plan.codec}; train with GradwireStrategy"
            )
        self._began_at = 0

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002 - Lightning's names
        """Attach gradwire to the model that the strategy has wrapped."""
        self._gradwire.attach(ddp_inside(trainer.strategy.model, "Lightning's strategy"))

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002 - Lightning's names
        """Record the number of updates before training; it isn't 0 in a resumed run."""
        self._began_at = trainer.global_step

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002 - Lightning's names
        """Close gradwire. Raise ``AttachError`` if weights were updated but gradwire averaged no gradient."""
        self._gradwire.close()
        self._gradwire.check_it_ran(trainer.global_step - self._began_at)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:  # noqa: ARG002
        """Close gradwire after an exception."""
        self._gradwire.close()
