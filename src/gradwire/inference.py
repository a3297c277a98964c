"""Calls that make tensors for training, within ``torch.inference_mode``, too.

A tensor that is created within inference mode can't be changed outside of it, nor saved for a backward pass.
A script that drains before an evaluation, or saves within one, would otherwise find such tensors in its
optimizer's state, and its next step would fail.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from gradwire.deferred import torch

P = ParamSpec("P")
T = TypeVar("T")


def outside_inference(function: Callable[P, T]) -> Callable[P, T]:
    """Return ``function`` with ``no_grad`` in place of inference mode, if it is called within that mode."""

    @wraps(function)
    def ordinary(*args: P.args, **kwargs: P.kwargs) -> T:
        if not torch.is_inference_mode_enabled():
            return function(*args, **kwargs)
        with torch.inference_mode(mode=False), torch.no_grad():
            return function(*args, **kwargs)

    return ordinary
