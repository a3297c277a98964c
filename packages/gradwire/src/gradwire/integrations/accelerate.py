"""Hugging Face Accelerate: attach gradwire to a model that ``Accelerator.prepare`` has wrapped."""

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
    """Attach gradwire to a model that ``accelerator.prepare`` has returned, to average the model's gradients.

    All ranks must call ``attach_prepared`` together, after ``prepare``. If the plan keeps residuals,
    ``accelerator.save_state`` also writes each rank's residuals to the checkpoint's folder, and
    ``accelerator.load_state`` reads the residuals. If the number of ranks has changed, the sum of the
    residuals is redistributed.

    Parameters
    ----------
    accelerator
        The accelerator that prepared the model.
    model
        A ``DistributedDataParallel``, or a compiled module that contains a ``DistributedDataParallel``.
    plan, timeout_s, ledger, strict
        As for ``gradwire.attach``; ``ledger`` may also be a function of the rank that returns a ledger, which
        the handle's ``close`` closes.
    resume_residuals
        Whether ``accelerator.load_state`` restores the residuals.

    Raises
    ------
    AttachError
        If the model isn't wrapped in DDP, as in a single process, or if ``gradwire.attach`` raises an
        ``AttachError``.
    SpecError
        If the plan or the timeout is invalid.
    StateError
        From ``accelerator.load_state``, if residuals are missing, damaged, or from a different model.

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
    """Register hooks that save and load residuals with the accelerator's checkpoints, on every rank."""
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
