"""The benchmark of training on a GPU runs without one, so that it does when somebody has one."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from support.project import ROOT

SCRIPT = str(ROOT / "bench" / "gpu_training.py")


def printed(*arguments: str) -> str:
    done = subprocess.run([sys.executable, SCRIPT, *arguments], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_trains_and_compares_weights_without_a_gpu() -> None:
    text = printed("fp8, device", "--device", "cpu", "--hidden", "16", "--steps", "2")
    assert text.startswith("the CPU, torch ")
    for row in ("fp8, device", "weights on the device", "static:32", "static:16", "static:8", "delta:fp32"):
        assert f"\n{row} " in text, row
    losses = {
        line[:22].strip(): float(line[31:40]) for line in text.splitlines() if line.startswith("static:")
    }
    assert losses["static:32"] == pytest.approx(losses["static:16"], rel=0.02)


def test_an_unknown_method_is_refused() -> None:
    done = subprocess.run([sys.executable, SCRIPT, "fp9"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "methods, got fp9; choose from DDP, bf16 hook" in done.stderr


def test_without_a_gpu_it_says_so() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    assert printed() == (
        "This machine has no GPU that PyTorch sees, so nothing was measured; --device cpu needs none.\n"
    )
