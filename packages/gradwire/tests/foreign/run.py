"""Run PyTorch's own DDP tests plainly and with gradwire attached in DDP's constructor, and compare.

make foreign, or: .venv/bin/python packages/gradwire/tests/foreign/run.py [part of a test's name ...]

Whatever passes plainly must pass attached, or differ as ``differences.json`` says, in words of docs/ddp.md.
"""

from __future__ import annotations

import json
import logging
import shutil
import sys
from pathlib import Path
from typing import Any

import suite

HERE = Path(__file__).parent
PAGE = HERE.parents[3] / "docs" / "ddp.md"


def known() -> dict[str, str]:
    """Return what each test says that is known to differ; end where the page does not say so."""
    rows: list[dict[str, Any]] = json.loads((HERE / "differences.json").read_text(encoding="utf-8"))
    page = " ".join(PAGE.read_text(encoding="utf-8").split())
    for row in rows:
        if row["page"] not in page:
            sys.exit(f"docs/ddp.md does not say: {row['page']}")
    return {test: row["says"] for row in rows for test in row["tests"]}


def compare(name: str, says: str | None) -> tuple[str, str]:
    """Run a test both ways; return a word for it, and what was said where that is bad."""
    plain = suite.run(suite.Foreign, name)
    if plain.ending != "passed":
        return f"{plain.ending} plainly", ""
    attached = suite.run(suite.ForeignAttached, name)
    if attached.ending == "passed":
        if says is not None:
            return "BAD", f"it was to differ ({says}), but passes"
        return f"passed, {attached.exchanges} exchanges", ""
    if says is not None and says in attached.text:
        return f"known: {says}", ""
    return "BAD", attached.text


def say(*lines: str) -> None:
    """Print, at once."""
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()


def main(wanted: list[str]) -> int:
    """Compare all tests, or those with one of these words in their names."""
    logging.disable(logging.INFO)
    differences = known()
    names = [name for name in suite.names() if not wanted or any(word in name for word in wanted)]
    verdicts: dict[str, str] = {}
    for name in names:
        verdicts[name], text = compare(name, differences.get(name))
        say(f"{name}: {verdicts[name]}", *filter(None, [text]))
    counts = {
        word: sum(each.startswith(word) for each in verdicts.values()) for word in ("passed,", "known", "BAD")
    }
    say(
        f"{len(names)} of PyTorch's tests: {counts['passed,']} pass attached as they do plainly, "
        f"{counts['known']} differ as docs/ddp.md says, {counts['BAD']} are bad; the others do not run here"
    )
    shutil.rmtree(suite.Foreign.notes, ignore_errors=True)
    return 1 if counts["BAD"] or not names else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
