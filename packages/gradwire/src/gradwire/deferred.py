"""torch, NumPy and zstandard, imported when one of their attributes is first used.

Their import takes seconds; ``--help`` or a mistyped codec shouldn't take as long. Modules that parse text
import them from here, and write ``torch.empty`` as usual.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, ParamSpec, TypeVar

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
            setattr(self, attribute, found)  # codecs read a dozen attributes for every segment
            return found

    np, torch, zstandard = _Deferred("numpy"), _Deferred("torch"), _Deferred("zstandard")


# Calls that make tensors for training, also within ``torch.inference_mode``.
#
# A tensor that is created within inference mode can't be changed outside of it, nor saved for a backward
# pass. A script that drains before an evaluation, or saves within one, would otherwise find such tensors in
# its optimizer's state, and its next step would fail.

P = ParamSpec("P")
T = TypeVar("T")


def outside_inference(function: Callable[P, T]) -> Callable[P, T]:
    """Return ``function`` with ``no_grad`` in place of the inference mode that it is called within."""

    @wraps(function)
    def ordinary(*args: P.args, **kwargs: P.kwargs) -> T:
        if not torch.is_inference_mode_enabled():
            return function(*args, **kwargs)
        with torch.inference_mode(mode=False), torch.no_grad():
            return function(*args, **kwargs)

    return ordinary
