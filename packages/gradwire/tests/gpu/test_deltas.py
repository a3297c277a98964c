"""Deltas that kernels apply, against those that the host does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gradwire.entropy import DeltaDecoder, DeltaEncoder
from gradwire.entropy.delta import DeltaHeader
from support import gpu_builds, gpu_cases

KINDS = {"bf16": (torch.bfloat16, torch.int16), "fp32": (torch.float32, torch.int32)}


def body_of(payload: torch.Tensor) -> tuple[torch.Tensor, bool]:
    header = DeltaHeader.read(payload)
    return payload[header.nbytes :], header.base is None


def check_words(dtype: Any, entropy: bool) -> None:
    from gradwire.gpu.deltas import queue_delta  # imports Triton, which here is the interpreter

    words, bits = KINDS[dtype]
    for n, scale in ((1, 1.0), (5, 1.0), (1300, 1e-4), (1300, 1.0)):
        masters = gpu_cases.any_bits(n) if scale == 1.0 else gpu_cases.gradients_of_layers(n)
        encoder, decoder = DeltaEncoder(masters, dtype, entropy=entropy), DeltaDecoder(dtype)
        on_host, here = torch.zeros(n, dtype=words), torch.full((n,), 3.0, dtype=words)
        for version in range(3):
            payload = encoder.encode(masters, version)
            decoder.apply(payload, on_host)
            if not DeltaHeader.read(payload).plain:
                body, full = body_of(payload)
                assert int(queue_delta(body, here, full=full)) == 0
            else:
                here.copy_(on_host)
            assert torch.equal(here.view(bits), on_host.view(bits)), (dtype, n, scale, version)
            masters = masters + scale * gpu_cases.gradient(n, version)


@pytest.mark.parametrize("entropy", [True, False])
@pytest.mark.parametrize("dtype", KINDS)
def test_the_words_are_the_host_s(interpreted: Callable[..., Any], dtype: str, entropy: bool) -> None:
    interpreted(check_words, dtype, entropy)


def check_sections() -> None:
    from triton.language import constexpr

    from gradwire.gpu import deltas  # imports Triton, which here is the interpreter

    n = (1 << 20) + 9
    masters, here = torch.ones(n), torch.zeros(n, dtype=torch.bfloat16)
    body, full = body_of(DeltaEncoder(masters).encode(masters, 1))
    before, deltas._TILE = deltas._TILE, constexpr(1 << 18)
    assert int(deltas.queue_delta(body, here, full=full)) == 0
    deltas._TILE = before
    assert bool((here == 1).all())


def test_a_tensor_of_two_sections(interpreted: Callable[..., Any]) -> None:
    interpreted(check_sections)


def check_malformed() -> None:
    from gradwire.gpu.deltas import FAULTS, queue_delta  # imports Triton, which here is the interpreter

    rng, masters = np.random.default_rng(5), gpu_cases.gradients_of_layers(300)
    payload = DeltaEncoder(masters).encode(masters, 1)
    valid, _ = body_of(payload)
    refused = set[int]()
    for trial in range(40):
        body = gpu_cases.altered(valid.numpy(), trial, rng)
        on_host, here = torch.zeros(300, dtype=torch.bfloat16), torch.zeros(300, dtype=torch.bfloat16)
        whole = torch.cat([payload[: payload.numel() - valid.numel()], body])
        reason = gpu_cases.reason(lambda w=whole, o=on_host: DeltaDecoder().apply(w, o))
        status = int(queue_delta(body, here, full=True))
        assert bool(status) == bool(reason), (trial, reason)
        refused.add(status)
        assert torch.equal(here.view(torch.int16), on_host.view(torch.int16)), trial
    assert {0, len(FAULTS)} <= refused
    broken, here = valid.clone(), torch.zeros(300, dtype=torch.bfloat16)
    broken[16] = 9  # after the sizes of one section and of its three blocks: a mode
    assert int(queue_delta(broken, here, full=True)) == 1


def test_what_the_host_refuses_is_refused_and_changes_nothing(interpreted: Callable[..., Any]) -> None:
    interpreted(check_malformed)


@pytest.mark.parametrize("dtype", KINDS)
def test_kernels_compile_as_wanted(dtype: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    deltas = pytest.importorskip("gradwire.gpu.deltas")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    masters = torch.ones(5000)
    body, _ = body_of(DeltaEncoder(masters, dtype).encode(masters, 1))
    words = torch.zeros(5000, dtype=KINDS[dtype][0])
    found = gpu_builds.recorded(lambda: deltas.queue_delta(body, words, full=False), monkeypatch)
    assert len(found) == 4
    for launch in found.values():
        for target in gpu_builds.TARGETS.values():
            built = gpu_builds.build(launch, target, tmp_path)
            assert built.spilled == 0
            assert built.registers <= 128
