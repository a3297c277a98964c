"""Deferred imports: torch, NumPy, and zstandard are imported when one of their attributes is first used.

Importing these packages takes seconds: ``--help`` and errors about mistyped codecs must not wait for them.
Modules that parse text import these packages from here, and write ``torch.empty`` as usual.
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


# A decorator for functions that must create normal tensors, even within ``torch.inference_mode``.
#
# A tensor created in inference mode can't be changed outside of it, nor saved for a backward pass. If a
# script drained or saved during an evaluation, its optimizer's state would contain such tensors, and the next
# training step would fail.

P = ParamSpec("P")
T = TypeVar("T")


def outside_inference(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function: a call within inference mode runs in ``no_grad`` instead."""

    @wraps(function)
    def ordinary(*args: P.args, **kwargs: P.kwargs) -> T:
        if not torch.is_inference_mode_enabled():
            return function(*args, **kwargs)
        with torch.inference_mode(mode=False), torch.no_grad():
            return function(*args, **kwargs)

    return ordinary
