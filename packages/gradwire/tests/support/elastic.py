"""The example of an elastic restart, as a function that a test's processes can call."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import torch

from support.project import ROOT

EXAMPLE = ROOT / "examples" / "elastic_restart.py"


def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("elastic_restart", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def straight(folder: Path, method: str, steps: int) -> str:
    """Train without an interruption, and without a checkpoint to begin from."""
    torch.set_num_threads(1)
    weights: str = example().train(folder, method, steps)
    return weights
