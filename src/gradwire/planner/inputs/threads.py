"""The number of threads that a measurement uses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def use_threads(count: int) -> Iterator[None]:
    """Let PyTorch, and the codecs that follow it, use ``count`` threads within a ``with`` block."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
