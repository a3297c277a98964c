"""Turns for threads that use torch's default generator, because ranks of tests are threads.

``torch.get_rng_state`` holds the generator's mutex while it makes a tensor. If a garbage collection within it
releases the interpreter lock, another thread may wait for the mutex with that lock, so that the whole process
stands still (PyTorch 2.13). ``fork_rng`` and ``checkpoint`` call these functions.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

NAMES = ("get_rng_state", "set_rng_state", "manual_seed")


def take_turns() -> None:
    """Let one thread at a time into these functions; a thread that waits has no interpreter lock."""
    turn = threading.RLock()
    for name in NAMES:
        replacement = _in_turn(getattr(torch.random, name), turn)
        setattr(torch, name, replacement)
        setattr(torch.random, name, replacement)


def _in_turn(function: Callable[..., Any], turn: AbstractContextManager[Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def called(*args: Any, **named: Any) -> Any:
        with turn:
            return function(*args, **named)

    return called
