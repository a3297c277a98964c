import struct
import subprocess
from pathlib import Path

import pytest

from gradwire.codecs import Bfp, Codec, Inceptionn, parse
from gradwire_gateware import WIDTHS
from gradwire_gateware.blocks import BLOCKS
from gradwire_gateware.export import export
from gradwire_gateware.formats import GROUP_LANES
from support.axi import STALLS
from support.hardware_chunks import EXHAUSTIVE, bfp_specs, chunks, padded, payload, raw
from support.programs import program

VALUES = 60_000 if EXHAUSTIVE else 5_000
"""Of each of six long chunks, under each of three stall patterns: over a million in all, if exhaustive."""
LONGEST = 4000
"""The values of the chunks of blocks that have memories for them."""
SPECS = {
    "inceptionn": Inceptionn.EXAMPLES,
    "bfp": tuple(dict.fromkeys(bfp_specs())),
    "errbound": ("errbound:2^-10", "errbound:2^-126", "errbound:2^126"),
}
HARNESS = Path(__file__).with_name("packets.cc")


def cells() -> list[tuple[str, str, int]]:
    """Return every codec at every width, both ways; or one, to see that the harness works."""
    if not EXHAUSTIVE:
        return [("bfp-decompressor", "bfp:7x16", 256)]
    return [
        (f"{name}-{way}", spec, width)
        for name, specs in SPECS.items()
        for spec in specs
        for way in ("compressor", "decompressor")
        for width in WIDTHS
        if not (width == 512 and spec.endswith("x8"))
    ]


def compiled(block: str, spec: str, width: int, folder: Path) -> Path:
    """Return the program that simulates a block."""
    made = export(block, spec, width)
    (folder / "block.v").write_text(made.verilog)
    is_told = any(port.name == "values" for port in made.ports)
    subprocess.run(
        [program("verilator"), "--cc", "--exe", "--build", "-O3", "-Wno-WIDTH", "-Wno-CASEINCOMPLETE",
         "-Wno-LITENDIAN",  # a wire of no bits, which nothing reads
         "-fno-expand",  # else a compiler takes ten minutes and 10 GB for a decompressor of 512 bits
         "-CFLAGS", f"-DWIDTH={width} {'-DIS_TOLD_VALUES' if is_told else ''}",
         "-MAKEFLAGS", "OPT_FAST=-O1 OPT_SLOW=-O0 OPT_GLOBAL=-O0",
         "--top-module", block.replace("-", "_"), "--prefix", "Vblock", "--Mdir", "build", "block.v",
         str(HARNESS)],
        cwd=folder, check=True, timeout=600,
    )  # fmt: skip
    return folder / "build" / "Vblock"


def transferred(simulator: Path, packets: list[tuple[int, bytes]], stalls: str) -> list[bytes]:
    """Return the packets that leave a block, given the numbers of values and the packets."""
    given = b"".join(struct.pack("<II", count, len(packet)) + packet for count, packet in packets)
    done = subprocess.run([simulator, stalls], input=given, capture_output=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr.decode()
    found, at = [], 0
    while at < len(done.stdout):
        (nbytes,) = struct.unpack_from("<I", done.stdout, at)
        found.append(done.stdout[at + 4 : at + 4 + nbytes])
        at += 4 + nbytes
    return found


@pytest.mark.parametrize(("block", "spec", "width"), cells())
def test_many_values_are_the_native_codecs(block: str, spec: str, width: int, tmp_path: Path) -> None:
    codec: Codec = parse(spec)
    given = chunks(VALUES)
    if "chunk_words" in BLOCKS[block].parameters:
        given = [chunk[at : at + LONGEST] for chunk in given for at in range(0, len(chunk), LONGEST)]
    payloads = [payload(codec, chunk) for chunk in given]
    packets, wanted = [raw(chunk) for chunk in given], payloads
    if block.endswith("-decompressor"):
        unit = codec.block if isinstance(codec, Bfp) else GROUP_LANES if isinstance(codec, Inceptionn) else 1
        packets = payloads
        wanted = [padded(codec, code, len(chunk), unit) for code, chunk in zip(payloads, given, strict=True)]
    simulator = compiled(block, spec, width, tmp_path)
    counted = [(len(chunk), packet) for chunk, packet in zip(given, packets, strict=True)]
    for stalls in STALLS:
        assert transferred(simulator, counted, stalls) == wanted, stalls
