"""torch, NumPy and zstandard, imported when something of them is first used.

Their import takes seconds, which ``--help`` or a mistyped codec shouldn't wait for. Modules that parse text
import them from here, and write ``torch.empty`` as usual.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = ["np", "torch", "zstandard"]

if TYPE_CHECKING:
    import numpy as np
    import torch
    import zstandard
else:

    class _Deferred:
        def __init__(self, name: str) -> None:
            self._name = name

        def __getattr__(self, attribute: str) -> object:
            found = getattr(__import__(self._name), attribute)
            setattr(self, attribute, found)  # codecs ask a dozen times for every segment
            return found

    np, torch, zstandard = _Deferred("numpy"), _Deferred("torch"), _Deferred("zstandard")
