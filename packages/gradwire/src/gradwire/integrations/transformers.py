"""Hugging Face's Trainer: a callback that attaches gradwire to the Trainer's DDP model."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from gradwire.autotune import Auto
from gradwire.errors import StateError
from gradwire.integrations.attachment import (
    Attaches,
    Attachment,
    LedgerLike,
    ResidualFolder,
    ddp_inside,
    needed,
)
from gradwire.plan import PlanLike

with needed("transformers", "huggingface"):
    from transformers import Trainer, TrainerCallback, TrainerState, TrainingArguments
    from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR


class GradwireCallback(Attaches, TrainerCallback):
    """A callback with which gradwire averages a ``Trainer``'s gradients during ``train()``.

    If the plan keeps residuals, every rank writes its residuals to the folder of each checkpoint, unless
    ``save_only_model`` is set. A resumed run reads these residuals. If the number of ranks has changed, the
    sum of the residuals is redistributed. If ``train()`` raises an exception, gradwire stays
    attached until the next ``train()``, or until ``attached.close()``.

    Parameters
    ----------
    trainer
        The Trainer, which must use DDP, as it does under ``torchrun``.
    plan, timeout_s, strict
        As for ``gradwire.attach``.
    ledger
        This rank's ledger, or a function of the rank that returns a ledger.
    resume_from
        The checkpoint's folder, if it isn't below the Trainer's ``output_dir``: the same folder that you pass
        to ``train`` as ``resume_from_checkpoint``.
    resume_residuals
        Whether a resumed run restores the residuals.

    Raises
    ------
    SpecError
        If the plan or the timeout is invalid.
    AttachError
        From ``train()``, if the Trainer doesn't use DDP, as in a single process, if ``gradwire.attach``
        raises an ``AttachError``, or if no gradient reached gradwire during training.
    StateError
        From a resumed ``train()``, if residuals are missing, damaged, or from a different model.

    Examples
    --------
    >>> trainer.add_callback(GradwireCallback(trainer, "fp8"))  # doctest: +SKIP
    """

    def __init__(
        self,
        trainer: Trainer,
        plan: PlanLike | Auto = None,
        *,
        timeout_s: float = 30.0,
        ledger: LedgerLike = None,
        strict: bool = False,
        resume_from: str | os.PathLike[str] | None = None,
        resume_residuals: bool = True,
    ) -> None:
        self._trainer = trainer
        self._resume_from = resume_from
        self._gradwire = Attachment(
            plan, timeout_s=timeout_s, ledger=ledger, strict=strict, resume_residuals=resume_residuals
        )
        self._began_at = 0

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, *_: Any, **__: Any) -> None:
        """Attach gradwire, and load the residuals of the checkpoint from which training resumes."""
        model = ddp_inside(self._trainer.model_wrapped, "the Trainer")
        self._gradwire.attach(model, self._trainer.accelerator.scaler)
        self._began_at = state.global_step
        if state.global_step:
            self._gradwire.loads()
        if state.global_step and self._gradwire.keeps_state and self._gradwire.resume_residuals:
            self._gradwire.resume_from(self._resumed_folder(args, state), state.global_step)

    def _resumed_folder(self, args: TrainingArguments, state: TrainerState) -> ResidualFolder:
        """Return the folder of the resumed checkpoint; the Trainer passes callbacks only the step."""
        folder = Path(self._resume_from or _checkpoint(args, state))
        if not folder.is_dir() and self._gradwire.plan.keeps_residual:
            given = "resume_from" if self._resume_from else "a folder below output_dir"
            raise StateError(
                f"expected residuals in the checkpoint {folder} ({given}), got no such folder; "
                "pass train's resume_from_checkpoint to GradwireCallback(resume_from=), or pass "
                "resume_residuals=False"
            )
        return ResidualFolder(folder)

    def on_save(self, args: TrainingArguments, state: TrainerState, *_: Any, **__: Any) -> None:
        """Write this rank's residuals to the checkpoint's folder."""
        if args.save_only_model or state.is_hyper_param_search or not self._gradwire.keeps_state:
            return  # the checkpoint can't be resumed, or gradwire has no state
        record = self._gradwire.state(state.global_step)
        ResidualFolder(_checkpoint(args, state)).write(record, self._gradwire.rank, self._gradwire.world)

    def on_train_end(self, _args: TrainingArguments, state: TrainerState, *_: Any, **__: Any) -> None:
        """Close gradwire. Raise ``AttachError`` if weights were updated but gradwire averaged no gradient."""
        self._gradwire.close()
        self._trainer.model_wrapped = self._trainer.model  # the next train() wraps and attaches again
        self._gradwire.check_it_ran(state.global_step - self._began_at)


def _checkpoint(args: TrainingArguments, state: TrainerState) -> Path:
    return Path(args.output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"
