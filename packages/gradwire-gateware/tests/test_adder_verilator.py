import subprocess
from pathlib import Path

from gradwire_gateware.export import export
from support.hardware_chunks import EXHAUSTIVE
from support.programs import program

PAIRS = 10_000_000 if EXHAUSTIVE else 300_000
HARNESS = Path(__file__).with_name("adder_pairs.cc")


def test_exported_sums_are_the_cpus(tmp_path: Path) -> None:
    (tmp_path / "adder.v").write_text(export("float-adder", None, 256).verilog)
    subprocess.run(
        [program("verilator"), "--cc", "--exe", "--build", "-O3", "-Wno-WIDTH",
         "-Wno-LITENDIAN",  # a wire of no bits, which nothing reads
         "-MAKEFLAGS", "OPT_FAST=-O1 OPT_SLOW=-O0 OPT_GLOBAL=-O0",
         "--top-module", "float_adder", "--Mdir", "build", "adder.v", str(HARNESS)],
        cwd=tmp_path, check=True, timeout=300,
    )  # fmt: skip
    done = subprocess.run(
        [tmp_path / "build" / "Vfloat_adder", str(PAIRS)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert done.stdout == f"0 of {PAIRS} sums differ\n"
