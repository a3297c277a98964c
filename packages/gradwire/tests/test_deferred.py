"""torch and NumPy by their first use."""

from __future__ import annotations

import builtins

import numpy as np
import pytest
import torch

from gradwire import deferred


def test_what_was_asked_for_once_is_not_looked_up_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A codec asks a dozen times for every segment."""
    assert deferred.torch.float32 is torch.float32
    assert deferred.np.float32 is np.float32
    asked = []
    with monkeypatch.context() as patched:
        patched.setattr(builtins, "__import__", lambda name, *_: asked.append(name))
        again = deferred.torch.float32, deferred.np.float32
    assert not asked
    assert again == (torch.float32, np.float32)
