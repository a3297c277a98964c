"""Lightning: a strategy, also available as ``Trainer(strategy="gradwire")``, and a callback.

This module is for the package ``lightning``; for the package ``pytorch_lightning``, use
``gradwire.integrations.pytorch_lightning``.
"""

from __future__ import annotations

from gradwire.integrations.attachment import needed
from gradwire.integrations.lightning_parts import DESCRIPTION, NAME, CallbackParts, StrategyParts

with needed("lightning", "lightning"):
    from lightning.pytorch.callbacks import Callback
    from lightning.pytorch.strategies import DDPStrategy, StrategyRegistry


class GradwireStrategy(StrategyParts, DDPStrategy):
    """DDP whose gradients gradwire averages, compressed in every hop, on CPU and GPU.

    If the plan keeps residuals, every rank writes its own beside each checkpoint
    (``<checkpoint>.gradwire-rank0-of-2.pt``), unless the checkpoint holds only weights. A resumed ``fit``
    reads them; if the number of ranks has changed, their sum is divided anew.

    Parameters
    ----------
    plan, timeout_s, strict
        As for ``gradwire.attach``.
    ledger
        This rank's ledger, or, if Lightning starts the processes, a function that returns a rank's ledger.
    resume_residuals
        If False, a resumed ``fit`` continues without what earlier steps lost.
    **ddp
        Options of ``DDPStrategy`` and ``DistributedDataParallel``, such as ``bucket_cap_mb``.

    Raises
    ------
    SpecError
        For an invalid plan or timeout, and for a communication hook beside gradwire.
    AttachError
        From ``fit``, as ``gradwire.attach`` does, and at its end if no gradient reached gradwire.
    StateError
        From a resumed ``fit``, if residuals are missing or damaged, or don't fit.

    Examples
    --------
    >>> Trainer(strategy=GradwireStrategy("fp8"), devices=2)  # doctest: +SKIP
    """


class GradwireCallback(CallbackParts, Callback):
    """gradwire on the DDP model of your own strategy during ``fit``, for plans without residuals.

    Parameters
    ----------
    plan, timeout_s, ledger, strict
        As for ``GradwireStrategy``.

    Raises
    ------
    SpecError
        For a plan that keeps residuals, because Lightning saves only rank 0's callbacks; and as
        ``GradwireStrategy`` does.
    AttachError
        From ``fit``: for a strategy without DDP, and as ``GradwireStrategy`` does.
    """


StrategyRegistry.register(NAME, GradwireStrategy, description=DESCRIPTION, override=True)
