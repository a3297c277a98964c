"""Every kernel as it is launched, compiled for three GPUs: wide accesses, no spills, few registers."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.gpu_builds import TARGETS, build, launches

MOST_REGISTERS = (
    128  # of 65,536: four programs of four warps on a multiprocessor; on gfx942, four waves a SIMD
)
MOST_SHARED_NBYTES = 16384

WIDE = {
    "bf16": {"bf16_of": {"load", "store"}, "float_of_bf16+": {"load", "store"}},
    "fp16": {"fp16_of": {"load", "store"}, "float_of_fp16+": {"load", "store"}},
    "fp8": {"encode_kernel": {"load"}, "decode_kernel": {"store"}, "decode_kernel+": {"load", "store"}},
    "quantize:8": {
        "encode_kernel": {"load"},
        "decode_kernel": {"store"},
        "decode_kernel+": {"load", "store"},
    },
    "quantize:4": {
        "encode_kernel": {"load"},
        "decode_kernel": {"store"},
        "decode_kernel+": {"load", "store"},
    },
    "truncate:16": {"move_kernel": {"load", "store"}, "move_back_kernel+": {"load", "store"}},
    "bitpack:1": {"move_kernel": {"load"}, "move_back_kernel+": {"load", "store"}},
    "bitpack:3": {"unpack_kernel+": {"load", "store"}},
    "bfp:7x16": {"encode_kernel": {"load"}, "decode_kernel+": {"load", "store"}},
    "errbound:rel=0.05,block=64": {"decode_kernel+": {"load", "store"}},
    "topk:0.01": {"gather_kernel": {"load"}},
    "terngrad": {"encode_kernel": {"load"}, "decode_kernel+": {"load", "store"}},
    "inceptionn:2^-10": {"count_kernel": {"load"}, "decode_kernel+": {"load", "store"}},
}
"""Which accesses are 128 bits wide; others are of single bytes by their layout, or gather."""


@pytest.mark.parametrize("spec", WIDE)
def test_kernels_compile_as_wanted(spec: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    found = launches(spec, monkeypatch)
    assert WIDE[spec].keys() <= found.keys()
    for name, launch in found.items():
        for target in TARGETS:
            built = build(launch, TARGETS[target], tmp_path)
            where = f"{spec} {name} {target}: {built.registers} registers"
            assert built.spilled == 0, where
            assert built.registers <= MOST_REGISTERS, where
            assert built.shared_nbytes <= MOST_SHARED_NBYTES, where
            assert ".ftz" not in built.assembly, where
            assert "fma.rn.f32" not in built.assembly or name == "encode_kernel", where
            assert built.widest >= WIDE[spec].get(name, set()), where
            if target == "gfx942":
                assert ".amdhsa_float_denorm_mode_32 3" in built.assembly, where
