"""The files of a benchmark: its record, and a picture."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gradwire.benchmark.ranks import is_speaker
from gradwire.errors import JobError
from gradwire.files import check_writable, write_files
from gradwire.page import check_page, keep
from gradwire.testbed.current import rates_in_words
from gradwire.version import how_to_install


@dataclass(frozen=True, kw_only=True)
class Outputs:
    """The part of a benchmark's options that each rank has for itself: where its results go."""

    json_file: Path | None = None
    plot_file: Path | None = None
    overwrite: bool = False
    quiet: bool = False

    def check_outputs(self) -> None:
        """Raise ``JobError`` for what could not be written at the end."""
        rates_in_words()
        overwrite = self.overwrite or not is_speaker()
        if self.json_file is not None:
            check_writable("--json", self.json_file, overwrite)
            check_page("--json", self.json_file, overwrite)
        if self.plot_file is not None:
            check_writable("--plot", self.plot_file, overwrite)
            if importlib.util.find_spec("matplotlib") is None:
                raise JobError(f"--plot needs matplotlib, not installed here; {how_to_install('train')}")
            if self.json_file is not None and self.json_file.resolve() == self.plot_file.resolve():
                raise JobError(f"--json and --plot both name {self.json_file}; name two files")

    def write_outputs(
        self,
        describe: Callable[[], dict[str, object]],
        page_of: Callable[[Mapping[str, Any]], str],
        draw: Callable[[], bytes],
    ) -> None:
        """Write what was asked for, all or none, and the record's page; only that is made.

        Raises ``JobError``.
        """
        plot = {} if self.plot_file is None else {self.plot_file: draw()}
        if self.json_file is None:
            write_files(plot)
        else:
            keep(self.json_file, describe(), page_of, plot)

    def shared(self) -> dict[str, object]:
        """Return the other options, which are the same on all ranks."""
        return {key: value for key, value in asdict(self).items() if key not in Outputs.__dataclass_fields__}
