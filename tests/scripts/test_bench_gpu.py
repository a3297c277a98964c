"""The benchmark of GPUs runs without one, so that it does when somebody has one."""

from __future__ import annotations

import contextlib
import io
import runpy
from collections.abc import Callable
from typing import Any

import pytest
import torch

from support.project import ROOT


def printed(*arguments: str) -> str:
    script = runpy.run_path(str(ROOT / "bench" / "gpu.py"))
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert script["main"](list(arguments)) == 0
    return out.getvalue()


def test_it_compares_and_counts_with_the_interpreter(interpreted: Callable[..., Any]) -> None:
    specs = ["bf16", "quantize:4", "errbound:2^-10"]
    text = interpreted(printed, *specs, "--interpret", "--residual", "--values", "64")
    assert text.startswith("Triton's interpreter on the CPU, torch ")
    assert (
        "encoded bytes, decoded bits, and sums equal the host's for 300 random values of every kind" in text
    )
    rows = {line.split()[0]: line.split()[1:] for line in text.splitlines() if line.startswith(tuple(specs))}
    assert rows.keys() == set(specs)
    crossed, floats = float(rows["bf16"][0]), 8 * 64
    assert crossed == pytest.approx((4 * 64 + 3 * 4) / floats, abs=0.001)


def test_without_a_gpu_it_says_so() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    assert (
        printed()
        == "This machine has no GPU that PyTorch sees, so nothing was measured; --interpret needs none.\n"
    )
