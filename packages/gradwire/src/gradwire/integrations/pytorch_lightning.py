"""``gradwire.integrations.lightning`` for the package ``pytorch_lightning``, which has the same classes."""

from __future__ import annotations

from gradwire.integrations.attachment import needed
from gradwire.integrations.lightning_parts import DESCRIPTION, NAME, CallbackParts, StrategyParts

with needed("pytorch_lightning", "lightning"):
    from pytorch_lightning.callbacks import Callback
    from pytorch_lightning.strategies import DDPStrategy, StrategyRegistry


class GradwireStrategy(StrategyParts, DDPStrategy):
    """See ``gradwire.integrations.lightning.GradwireStrategy``."""


class GradwireCallback(CallbackParts, Callback):
    """See ``gradwire.integrations.lightning.GradwireCallback``."""


StrategyRegistry.register(NAME, GradwireStrategy, description=DESCRIPTION, override=True)
