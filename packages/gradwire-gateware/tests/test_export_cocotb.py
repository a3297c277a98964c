import json
from pathlib import Path

import pytest
from cocotb_tools.runner import get_runner

from gradwire.codecs import Bfp, Codec, Inceptionn, parse
from gradwire_gateware.export import export
from gradwire_gateware.formats import GROUP_LANES
from support.hardware_chunks import EXHAUSTIVE, chunks, padded, payload, raw
from support.programs import program
from support.project import TESTS_PATH

FEW = [
    ("inceptionn-compressor", "inceptionn:2^-10", 256),
    ("inceptionn-decompressor", "inceptionn:2^-10,bounded", 256),
    ("bfp-compressor", "bfp:7x16", 512),
    ("bfp-decompressor", "bfp:7x16", 512),
    ("quantize-compressor", "quantize:8,block=16", 256),
]
SPECS = (
    "inceptionn:2^-10", "inceptionn:2^-10,bounded", "bfp:7x16", "bfp:10x64",
    "quantize:8", "quantize:4,block=16", "errbound:2^-10", "errbound:rel=0.05,block=64",
)  # fmt: skip
MORE = [
    (f"{spec.partition(':')[0]}-{way}", spec, width)
    for spec in SPECS
    for way in ("compressor", "decompressor")
    for width in (256, 512)
]
VALUES = 3000 if EXHAUSTIVE else 60


def packets(block: str, codec: Codec) -> dict[str, list[str | int | None]]:
    """Return what goes in and what must come out; a foreign master sends no packet without a byte."""
    is_told = block.endswith("-decompressor") and not isinstance(codec, Bfp | Inceptionn)
    some = [chunk for chunk in chunks(VALUES) if len(chunk)]
    floats, payloads = [raw(chunk) for chunk in some], [payload(codec, chunk) for chunk in some]
    given, wanted = floats, payloads
    if block.endswith("-decompressor"):
        unit = 1 if is_told else codec.block if isinstance(codec, Bfp) else GROUP_LANES
        wanted = [padded(codec, code, len(chunk), unit) for code, chunk in zip(payloads, some, strict=True)]
        given = payloads
    return {
        "given": [each.hex() for each in given],
        "wanted": [each.hex() for each in wanted],
        "values": [len(chunk) if is_told else None for chunk in some],
    }


@pytest.mark.parametrize(("block", "spec", "width"), MORE if EXHAUSTIVE else FEW)
def test_a_foreign_master_gets_the_native_codecs_bytes(
    block: str, spec: str, width: int, tmp_path: Path
) -> None:
    program("iverilog")
    top = block.replace("-", "_")
    (tmp_path / "block.v").write_text(export(block, spec, width).verilog)
    (tmp_path / "packets.json").write_text(json.dumps(packets(block, parse(spec))))
    runner = get_runner("icarus")
    runner.build(
        sources=[tmp_path / "block.v"], hdl_toplevel=top, build_dir=tmp_path, timescale=("1ns", "1ps")
    )
    runner.test(
        hdl_toplevel=top,
        test_module="support.foreign_master",
        build_dir=tmp_path,
        test_dir=tmp_path,
        extra_env={"PACKETS": str(tmp_path / "packets.json"), "PYTHONPATH": TESTS_PATH},
    )
