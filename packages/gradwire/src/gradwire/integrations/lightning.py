"""Lightning: a strategy, also available as ``Trainer(strategy="gradwire")``, and a callback."""

from __future__ import annotations

from gradwire.integrations.attachment import needed
from gradwire.integrations.lightning_parts import DESCRIPTION, NAME, CallbackParts, StrategyParts

with needed("lightning", "lightning"):
    from lightning.pytorch.callbacks import Callback
    from lightning.pytorch.strategies import DDPStrategy, StrategyRegistry


class GradwireStrategy(StrategyParts, DDPStrategy):
    """A DDP strategy with gradients averaged by gradwire, compressed in every hop, on CPU and GPU.

    If the plan keeps residuals, every rank writes its residuals next to each checkpoint
    (``<checkpoint>.gradwire-rank0-of-2.pt``), unless the checkpoint contains only weights. A resumed ``fit``
    reads these files. If the number of ranks has changed, the sum of the residuals is redistributed.

    Parameters
    ----------
    plan, timeout_s, strict
        As for ``gradwire.attach``.
    ledger
        This rank's ledger; or, if Lightning starts the processes, a function of the rank that returns a
        ledger.
    resume_residuals
        Whether a resumed ``fit`` restores the residuals.
    **ddp
        Options of ``DDPStrategy`` and ``DistributedDataParallel``, such as ``bucket_cap_mb``.

    Raises
    ------
    SpecError
        If the plan or the timeout is invalid, or if another communication hook is passed.
    AttachError
        From ``fit``, if ``gradwire.attach`` raises an ``AttachError``, or if no gradient reached gradwire
        during training.
    StateError
        From a resumed ``fit``, if residuals are missing, damaged, or from a different model.

    Examples
    --------
    >>> Trainer(strategy=GradwireStrategy("fp8"), devices=2)  # doctest: +SKIP
    """


class GradwireCallback(CallbackParts, Callback):
    """A callback that attaches gradwire to the DDP model of any strategy, for plans without residuals.

    Parameters
    ----------
    plan, timeout_s, ledger, strict
        As for ``GradwireStrategy``.

    Raises
    ------
    SpecError
        If the plan keeps residuals, because Lightning saves only rank 0's callbacks; and as for
        ``GradwireStrategy``.
    AttachError
        From ``fit``, if the strategy doesn't use DDP; and as for ``GradwireStrategy``.
    """


StrategyRegistry.register(NAME, GradwireStrategy, description=DESCRIPTION, override=True)
