"""Lightning: a strategy, which ``Trainer(strategy="gradwire")`` takes by its name, too, and a callback.

For the package ``lightning``; ``gradwire.integrations.pytorch_lightning`` has the same for the package of
that name.
"""

from __future__ import annotations

from gradwire.integrations.lightning_parts import DESCRIPTION, NAME, CallbackParts, StrategyParts
from gradwire.integrations.needed import needed

with needed("lightning", "lightning"):
    from lightning.pytorch.callbacks import Callback
    from lightning.pytorch.strategies import DDPStrategy, StrategyRegistry


class GradwireStrategy(StrategyParts, DDPStrategy):
    """DDP whose gradients gradwire averages, compressed on every hop, on CPU and GPU.

    Where the plan keeps residuals, every rank writes its own beside each checkpoint
    (``<checkpoint>.gradwire-rank0-of-2.pt``), unless that holds weights only, and a resumed ``fit`` reads
    them back; with another number of ranks their sum is divided anew.

    Parameters
    ----------
    plan, timeout_s, strict
        As for ``gradwire.attach``.
    ledger
        This rank's, or a function that makes one of the rank, where Lightning starts the processes.
    resume_residuals
        False lets a resumed ``fit`` go on without what earlier steps lost.
    **ddp
        What ``DDPStrategy`` and ``DistributedDataParallel`` take, such as ``bucket_cap_mb``.

    Raises
    ------
    SpecError
        For an invalid plan or timeout, and for a communication hook beside gradwire.
    AttachError
        From ``fit``, as ``gradwire.attach`` does, and at its end if no gradient came to gradwire.
    StateError
        From a resumed ``fit``, for residuals that are missing, damaged or do not fit.

    Examples
    --------
    >>> Trainer(strategy=GradwireStrategy("fp8"), devices=2)  # doctest: +SKIP
    """


class GradwireCallback(CallbackParts, Callback):
    """gradwire on the DDP of a strategy of your own, while it fits; for plans without residuals.

    Parameters
    ----------
    plan, timeout_s, ledger, strict
        As for ``GradwireStrategy``.

    Raises
    ------
    SpecError
        For a plan that keeps residuals, since Lightning saves the callbacks of rank 0 alone; and as
        ``GradwireStrategy`` does.
    AttachError
        From ``fit``: for a strategy without DDP, and as ``GradwireStrategy`` does.
    """


StrategyRegistry.register(NAME, GradwireStrategy, description=DESCRIPTION, override=True)
