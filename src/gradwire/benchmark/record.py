"""The files of a benchmark: its record, and a picture."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

from gradwire.errors import JobError
from gradwire.files import check_writable, write_files
from gradwire.records import to_json
from gradwire.testbed.current import rates_in_words
from gradwire.version import how_to_install


def check_outputs(json_file: Path | None, plot_file: Path | None, overwrite: bool) -> None:
    """Raise ``JobError`` for what could not be written at the end."""
    rates_in_words()
    if json_file is not None:
        check_writable("--json", json_file, overwrite)
    if plot_file is not None:
        check_writable("--plot", plot_file, overwrite)
        if importlib.util.find_spec("matplotlib") is None:
            raise JobError(f"--plot needs matplotlib, not installed here; {how_to_install('train')}")
    if json_file is not None and plot_file is not None and json_file.resolve() == plot_file.resolve():
        raise JobError(f"--json and --plot both name {json_file}; name two files")


def write_outputs(
    json_file: Path | None,
    describe: Callable[[], dict[str, object]],
    plot_file: Path | None,
    draw: Callable[[], bytes],
) -> None:
    """Write what was asked for, all or none; only that is made. Raises ``JobError``."""
    files: dict[Path, bytes] = {}
    if json_file is not None:
        files[json_file] = to_json(describe()).encode()
    if plot_file is not None:
        files[plot_file] = draw()
    write_files(files)
