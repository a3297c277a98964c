"""Kernels of ``gradwire.gpu`` against the host's, in a process where Triton interprets them on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import torch

from gradwire import gpu
from gradwire.codecs import Codec, parse
from gradwire.errors import PayloadError
from support.interpreter import interpret
from support.processes import forkserver


def interpreter() -> ProcessPoolExecutor:
    """Return a process of its own, in which ``TRITON_INTERPRET`` is set before Triton is imported."""
    return ProcessPoolExecutor(1, forkserver(), initializer=interpret)


def gradient(n: int, seed: int = 0) -> torch.Tensor:
    """Return finite values of many magnitudes, with zeros of both signs and subnormals."""
    rng = np.random.default_rng(n + seed)
    x = rng.laplace(0.0, 1e-2, n) * 2.0 ** rng.choice([0, 0, 0, -3, 5, -100, -140, 100], n)
    x[rng.random(n) < 0.05] = 0.0
    x[rng.random(n) < 0.05] *= -0.0
    return torch.from_numpy(x.astype(np.float32))


def any_bits(n: int, seed: int = 0) -> torch.Tensor:
    """Return floats of random bits: NaN of all kinds and infinities are among them."""
    bits = np.random.default_rng(n + seed).integers(0, 1 << 32, n, dtype=np.uint32)
    bits[::7] = np.resize(
        np.array([0x7F800000, 0xFF800000, 0x7F800001, 0xFFC12345, 1], np.uint32), bits[::7].size
    )
    return torch.from_numpy(bits.view(np.float32))


def gradients_of_layers(n: int) -> torch.Tensor:
    """Return small values with one scale a stretch, as gradients have, and one infinity in the middle."""
    rng = np.random.default_rng(n)
    x = rng.normal(0.0, 1.0, n) * np.repeat(2.0 ** rng.integers(-20, 4, n // 64 + 1), 64)[:n]
    x[n // 2 : n // 2 + 1] = np.inf
    return torch.from_numpy(x.astype(np.float32))


def chunks() -> Iterator[torch.Tensor]:
    """Yield inputs of all kinds; of lengths of one program and several."""
    yield from (gradient(0), any_bits(1), gradient(5), any_bits(33), torch.zeros(100))
    yield from (gradients_of_layers(4500), any_bits(2100), torch.full((77,), 1e-39), torch.full((300,), -1.5))


def check_chunks(spec: str) -> None:
    """Compare encoded bytes, decoded bits, and sums."""
    codec = parse(spec)
    longest = _longest(spec)
    for x in chunks():
        check_chunk(codec, x[:longest].clone())


def _longest(spec: str) -> int:
    """Return how many values the interpreter encodes soon enough."""
    if "=48" in spec:
        return 500  # these blocks take a program each
    return {"inceptionn": 200, "terngrad": 1100}.get(parse(spec).name, 5000)


def check_chunk(codec: Codec, x: torch.Tensor) -> None:
    """Compare those of one chunk."""
    wanted = codec.encode(x)
    payload = gpu.encode(codec, x).payload().clone()
    assert payload.tolist() == wanted.tolist(), f"{codec} encodes {x} as {payload}, not {wanted}"
    acc = any_bits(x.numel(), 1)
    on_host, here = acc.clone(), acc.clone()
    codec.decode_add(wanted, on_host)
    gpu.decode_add(codec, payload, here).check()
    # Which of two NaN a sum on the host returns depends on the compiler, and on the place in the chunk.
    codec.decode(wanted, decoded := torch.empty_like(x))
    either = acc.isnan() & decoded.isnan()
    assert here[either].isnan().all()
    assert on_host[either].isnan().all()
    assert_same_bits(here[~either], on_host[~either], f"{codec} added to {acc}")
    codec.decode(wanted, on_host)
    gpu.decode(codec, payload, here).check()
    assert_same_bits(here, on_host, f"{codec} of {x}")


def assert_same_bits(here: torch.Tensor, on_host: torch.Tensor, what: str) -> None:
    """Fail with the first value whose bits differ."""
    at = (here.view(torch.int32) != on_host.view(torch.int32)).nonzero().flatten()
    assert not at.numel(), f"{what}: value {int(at[0])} is {here[at[0]]!r}, not {on_host[at[0]]!r}"


def check_golden(spec: str, x: torch.Tensor, payload: bytes) -> None:
    """Compare with a golden vector."""
    codec = parse(spec)
    assert bytes(gpu.encode(codec, x).payload().tolist()).hex() == payload.hex()
    here, on_host = torch.full_like(x, 7.0), torch.full_like(x, 7.0)
    there = (
        torch.frombuffer(bytearray(payload), dtype=torch.uint8).clone() if payload else torch.empty(0).byte()
    )
    gpu.decode(codec, there, here).check()
    codec.decode(there, on_host)
    assert_same_bits(here, on_host, spec)


def check_malformed(spec: str) -> None:
    """Compare what both say of altered payloads, and that a refused one is not decoded."""
    codec, rng = parse(spec), np.random.default_rng(3)
    for n in (5, min(2100, _longest(spec))):
        valid = codec.encode(gradient(n)).numpy()
        for trial in range(8):
            check_refusal(codec, altered(valid, trial, rng), n)


def altered(valid: np.ndarray, trial: int, rng: np.random.Generator) -> torch.Tensor:
    """Return other bytes: random ones, one changed, too few, too many."""
    if trial % 4 == 0:
        changed = rng.integers(0, 256, valid.size).astype(np.uint8)
    elif trial % 4 == 1:
        changed = valid.copy()
        changed[-1:] = rng.choice([0xFF, 0x88, 2])
    elif trial % 4 == 2:
        changed = valid.copy()
        changed[rng.integers(0, max(valid.size, 1), 1) % max(valid.size, 1)] = rng.integers(0, 256)
    else:
        changed = np.resize(valid, max(0, valid.size + rng.choice([-3, -1, 1, 5])))
    return torch.from_numpy(np.ascontiguousarray(changed)).clone()


def check_refusal(codec: Codec, payload: torch.Tensor, n: int) -> None:
    """Compare the errors for one payload, or what it decodes to."""
    on_host, here = torch.full((n,), 7.0), torch.full((n,), 7.0)
    assert reason(lambda: gpu.decode(codec, payload, here).check()) == reason(
        lambda: codec.decode(payload, on_host)
    ), f"{codec} of {payload.tolist()} for {n} values"
    assert_same_bits(here, on_host, f"{codec} of {payload.tolist()[:64]}")


def reason(call: object) -> str:
    """Return why a payload was refused, "" if it was not."""
    assert callable(call)
    try:
        call()
    except PayloadError as error:
        return str(error).partition(": ")[2].partition(";")[0]
    return ""
