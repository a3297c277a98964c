"""The residuals in a state of ``attach`` or ``attach_fsdp``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

_BEFORE_KEY = "/residual/"


def residuals_in(state: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Return the tensors by their keys without the rank."""
    return {key.partition(_BEFORE_KEY)[2]: each for key, each in state.items() if _BEFORE_KEY in key}
