"""Records of exhibits in a folder, as ``gradwire reproduce`` leaves them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gradwire.checkpoints import SUM
from gradwire_lab.experiments.papers.exhibit import Exhibit
from gradwire_lab.experiments.papers.reproduce import reproduce
from support.fake_exhibit import squares

TITLES = {"study": "a study of <b>squares</b>", "pipe-sgd": "a pipeline"}
STUDY, PIPE = squares("table I")[0], squares("figure 2", "pipe-sgd")[0]
BOTH = (STUDY, PIPE)


def record(folder: Path, *exhibits: Exhibit[Any]) -> Path:
    """Run exhibits, by default both, and return their folder."""
    reproduce(exhibits or BOTH, folder, lambda _line: None)
    return folder


def alter(folder: Path, exhibit: Exhibit[Any], change: Callable[[dict[str, Any]], object]) -> Path:
    """Change an exhibit's record, which loses its checksum, and return its path."""
    path = folder / exhibit.name / "record.json"
    fields = json.loads(path.read_text())
    fields.pop(SUM, None)
    change(fields)
    path.write_text(json.dumps(fields))
    return path
