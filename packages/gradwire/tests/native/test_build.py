"""How the kernels are compiled, whatever the compiler's own settings are."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.project import ROOT

HARDENED = ["-O2 -D_FORTIFY_SOURCE=2", "-O2 -Wp,-U_FORTIFY_SOURCE,-D_FORTIFY_SOURCE=3"]
"""What distributions add to the flags of all programs, or build into their compilers."""
CMAKE = shutil.which("cmake", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}")


@pytest.mark.parametrize("hardened", HARDENED)
@pytest.mark.skipif(CMAKE is None, reason="needs cmake")
def test_hardening_makes_no_calls_of_the_kernels_loads_and_stores(tmp_path: Path, hardened: str) -> None:
    ways = [f"-DCMAKE_CXX_FLAGS={hardened}", "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON", "-DGRADWIRE_BUILD_FUZZ=ON"]
    assert CMAKE is not None
    subprocess.run(
        [CMAKE, "-S", ROOT / "packages" / "gradwire", "-B", tmp_path, *ways], check=True, capture_output=True
    )
    commands = json.loads((tmp_path / "compile_commands.json").read_text(encoding="utf-8"))
    core = [each for each in commands if "gradwire_core" in each["command"]]
    assert {"rans_scalar.cc", "ecsq.cc", "pack.cc"} <= {Path(each["file"]).name for each in core}
    # What the macro is depends on the flags alone, of which there are as many as there are targets.
    flags = {tuple(shlex.split(each["command"].partition(" -o ")[0])) for each in core}
    for each in flags:
        macros = subprocess.run(
            [*each, "-dM", "-E", "-x", "c++", "/dev/null"], check=True, capture_output=True, text=True
        )
        assert "_FORTIFY_SOURCE" not in macros.stdout
