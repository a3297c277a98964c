from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from support import gpu_builds, gpu_cases


def check_quotients() -> None:
    from gradwire.gpu.feedback import queue_finish  # imports Triton, which here is the interpreter

    for n in (0, 1, 2048, 5000):
        for x in (gpu_cases.gradient(n), gpu_cases.any_bits(n), torch.full((n,), 1e-45)):
            for ranks in (1, 3, 8):
                here, on_host, word = x.clone(), x.clone(), torch.zeros(1, dtype=torch.int32)
                queue_finish(here, ranks, word)
                if ranks > 1:
                    on_host.div_(ranks)
                gpu_cases.assert_same_bits(here, on_host, f"{x} by {ranks}")
                assert int(word) == (not bool(on_host.isfinite().all()))


def test_quotients_have_the_host_s_bits_and_what_is_not_finite_is_told(
    interpreted: Callable[..., Any],
) -> None:
    interpreted(check_quotients)


def test_the_kernel_compiles_as_wanted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    finish = pytest.importorskip("gradwire.gpu.feedback")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    x, word = torch.zeros(1 << 20), torch.zeros(1, dtype=torch.int32)
    found = gpu_builds.recorded(lambda: finish.queue_finish(x, 3, word), monkeypatch)
    for target in gpu_builds.TARGETS.values():
        built = gpu_builds.build(found["finish_kernel"], target, tmp_path)
        assert built.spilled == 0
        assert built.registers <= 128
        assert built.widest == {"load", "store"}
        assert ".ftz" not in built.assembly
