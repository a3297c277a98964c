"""Kernels as they are launched, compiled for GPUs that are not here."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from gradwire import gpu
from gradwire.codecs import Codec, parse

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
_TYPES = {
    torch.uint8: "*u8",
    torch.uint16: "*u16",
    torch.uint32: "*u32",
    torch.int32: "*i32",
    torch.int64: "*i64",
    torch.float64: "*fp64",
}
_CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
_N = 1 << 20


@dataclass
class Launch:
    """One launch."""

    kernel: Any
    args: tuple[Any, ...]
    constants: dict[str, Any]
    warps: int

    def source(self) -> ASTSource:
        """Return what Triton would compile on a GPU: with what it knows of the arguments."""
        names = [each for each in self.kernel.arg_names if each not in self.constants]
        signature = {
            name: _TYPES[arg.dtype] if isinstance(arg, torch.Tensor) else "i32"
            for name, arg in zip(names, self.args, strict=True)
        }
        even = {
            (self.kernel.arg_names.index(name),): [["tt.divisibility", 16]]
            for name, arg in zip(names, self.args, strict=True)
            if isinstance(arg, torch.Tensor) and arg.data_ptr() % 16 == 0
        }
        return ASTSource(self.kernel, signature, self.constants, even)


@dataclass
class Built:
    """A compiled kernel."""

    assembly: str
    registers: int
    spilled: int
    shared_nbytes: int
    widest: set[str] = field(default_factory=set)


def recorded(call: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> dict[str, Launch]:
    """Return what a call launches, by the kernel's name, recorded instead of run."""
    found: dict[str, Launch] = {}

    def record(self: Any, *args: Any, **options: Any) -> None:
        constants = {key: each for key, each in options.items() if key.isupper()}
        assert options["enable_fp_fusion"] is False
        named = constants.get("CONVERT", self)  # a function that a kernel applies
        name = f"{named.fn.__name__}{'+' if constants.get('ADD') else ''}"
        found.setdefault(name, Launch(self, args, constants, options["num_warps"]))

    monkeypatch.setattr(triton.JITFunction, "run", record)
    monkeypatch.setattr("gradwire.gpu.chunks._is_interpreted", lambda: True)
    call()
    return found


def launches(spec: str, monkeypatch: pytest.MonkeyPatch, n: int = _N) -> dict[str, Launch]:
    """Return the launches of encode, decode and decode_add."""
    codec = parse(spec)

    def all_three() -> None:
        gpu.encode(codec, torch.zeros(n))
        payload = _aligned(codec.encode(torch.zeros(n)))
        gpu.decode(codec, payload, torch.zeros(n))
        gpu.decode_add(codec, payload, torch.zeros(n))

    return recorded(all_three, monkeypatch)


def _aligned(payload: torch.Tensor) -> torch.Tensor:
    assert payload.data_ptr() % 16 == 0
    return payload


def build(launch: Launch, target: GPUTarget, folder: Path) -> Built:
    """Compile it."""
    options = {"enable_fp_fusion": False, "num_warps": launch.warps}
    compiled = triton.compile(launch.source(), target=target, options=options)
    shared = int(compiled.metadata.shared)
    if target.backend == "hip":
        text = cast("str", compiled.asm["amdgcn"])
        vectors = set(re.findall(r"_(load|store)_(?:dwordx4|b128)", text))
        spilled = _number(r"\.vgpr_spill_count:\s*(\d+)", text) + _number(
            r"\.sgpr_spill_count:\s*(\d+)", text
        )
        return Built(text, _number(r"\.vgpr_count:\s*(\d+)", text), spilled, shared, vectors)
    text = cast("str", compiled.asm["ptx"])
    (cubin := folder / "kernel.cubin").write_bytes(cast("bytes", compiled.asm["cubin"]))
    usage = subprocess.run(
        [_CUOBJDUMP, "-res-usage", cubin], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    vectors = {{"ld": "load", "st": "store"}[each] for each in re.findall(r"(ld|st)\.global\.v4\.b32", text)}
    return Built(text, _number(r"REG:(\d+)", usage), _number(r"STACK:(\d+)", usage), shared, vectors)


def _number(pattern: str, text: str) -> int:
    match = re.search(pattern, text)
    assert match is not None, pattern
    return int(match[1])


def codec_of(spec: str) -> Codec:
    """Return the codec, typed."""
    return parse(spec)
