"""Hugging Face Accelerate: ``attach_prepared`` takes a model that ``Accelerator.prepare`` has wrapped."""

from __future__ import annotations

import weakref
from typing import Any

from torch import nn

from gradwire.attached import Attached
from gradwire.autotune import Auto
from gradwire.integrations.attachment import Attachment, LedgerLike, ResidualFolder, ddp_inside, needed
from gradwire.plan import PlanLike

with needed("accelerate", "huggingface"):
    from accelerate import Accelerator

_attached_models = weakref.WeakKeyDictionary[Accelerator, int]()


def attach_prepared(
    accelerator: Accelerator,
    model: nn.Module,
    plan: PlanLike | Auto = None,
    *,
    timeout_s: float = 30.0,
    ledger: LedgerLike = None,
    strict: bool = False,
    resume_residuals: bool = True,
) -> Attached:
    """Let gradwire average the gradients of a model that ``accelerator.prepare`` has returned.

    All ranks call it together after ``prepare``. If the plan keeps residuals, ``accelerator.save_state`` then
    also writes each rank's residuals to the checkpoint's folder, and ``load_state`` reads them; if the number
    of ranks has changed, their sum is divided anew.

    Parameters
    ----------
    accelerator
        The accelerator that prepared the model.
    model
        A ``DistributedDataParallel``, or a compiled module with one inside.
    plan, timeout_s, ledger, strict
        As for ``gradwire.attach``; ``ledger`` may also be a function of the rank.
    resume_residuals
        If False, ``load_state`` continues without what earlier steps lost.

    Raises
    ------
    AttachError
        For a model without DDP inside, as in one process alone, and as ``gradwire.attach`` does.
    SpecError
        For an invalid plan or timeout.
    StateError
        From ``load_state``, if residuals are missing or damaged, or don't fit.

    Examples
    --------
    >>> model, optimizer = accelerator.prepare(model, optimizer)  # doctest: +SKIP
    >>> attached = attach_prepared(accelerator, model, "fp8")  # doctest: +SKIP
    """
    attachment = Attachment(
        plan, timeout_s=timeout_s, ledger=ledger, strict=strict, resume_residuals=resume_residuals
    )
    attached = attachment.attach(ddp_inside(model, "Accelerate"), accelerator.scaler)
    accelerator.register_load_state_pre_hook(lambda _models, _folder: attachment.loads())
    if attachment.keeps_state:
        _keep_with_checkpoints(accelerator, attachment)
    return attached


def _keep_with_checkpoints(accelerator: Accelerator, attachment: Attachment) -> None:
    """Save and load with the accelerator, whose hooks run on every rank."""
    number = _attached_models.get(accelerator, 0)
    _attached_models[accelerator] = number + 1
    key = f"-model{number}" if number else ""

    def save(_models: Any, _weights: Any, output_dir: str) -> None:
        ResidualFolder(output_dir, key).write(attachment.state(None), attachment.rank, attachment.world)

    def load(_models: Any, input_dir: str) -> None:
        if attachment.resume_residuals:
            attachment.resume_from(ResidualFolder(input_dir, key), step=None)

    accelerator.register_save_state_pre_hook(save)
    accelerator.register_load_state_pre_hook(load)
