from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from gradwire.gpu import feedback as carry
from support.gpu_builds import TARGETS, build, recorded


def check_bytes() -> None:
    source = torch.randint(0, 256, (20000,), dtype=torch.uint8)
    for nbytes in (0, 1, 8191, 8192, 20000):
        target = torch.full_like(source, 7)
        carry.queue_carry(source, target, torch.tensor([nbytes]))
        assert torch.equal(target[:nbytes], source[:nbytes])
        assert (target[nbytes:] == 7).all()


def test_it_copies_so_many_bytes(interpreted: Callable[..., Any]) -> None:
    interpreted(check_bytes)


def test_it_compiles_as_wanted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    source = torch.empty(1 << 20, dtype=torch.uint8)
    found = recorded(lambda: carry.queue_carry(source, source, torch.zeros(1).long()), monkeypatch)
    for target in TARGETS.values():
        built = build(found["carry_kernel"], target, tmp_path)
        assert built.spilled == 0
        assert built.widest == {"load", "store"}
