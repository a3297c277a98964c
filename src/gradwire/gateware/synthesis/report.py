"""What every block takes of every target, measured anew only if the Verilog or the tools have changed."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from gradwire.codecs import TABLE
from gradwire.errors import SpecError, shown
from gradwire.files import cache_folder, write_files
from gradwire.gateware.blocks import BLOCKS
from gradwire.gateware.export import export
from gradwire.gateware.synthesis.targets import TARGETS, synthesise
from gradwire.machine import cores

SCHEMA = "gradwire.gateware-report/1"
Row = dict[str, Any]
"""A block, its codec and width, the target, and what was measured."""


class Cell(NamedTuple):
    """One block for one target."""

    block: str
    codec: str | None
    width: int
    target: str


def cells(blocks: Sequence[str], targets: Sequence[str], width: int) -> list[Cell]:
    """Return what to synthesise. Raises ``SpecError`` for an unknown block or target."""
    for called, names, known in (("blocks", blocks, BLOCKS), ("targets", targets, TARGETS)):
        for name in names:
            if name not in known:
                raise SpecError(f"a report has the {called} {', '.join(known)}, but got {shown(name)}")
    return [
        Cell(block, codec, width, target)
        for target in targets
        for block in blocks
        for codec in _codecs(block)
    ]


def measure(wanted: Sequence[Cell]) -> Iterator[Row]:
    """Yield the row of each cell, in their order. Raises ``MissingPackageError`` before the first one."""
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
    """Return one codec of each format that a block can have."""
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
        write_files({kept: json.dumps(found).encode()})
    return {**cell._asdict(), **found, "tools": versions, "verilog_sha256": _digest(verilog)}


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _read(path: Path) -> Row | None:
    """Return what was measured before; None if nothing was, or the file is damaged."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and "resources" in found else None
