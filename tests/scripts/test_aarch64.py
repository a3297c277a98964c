from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from support.project import ROOT


def test_without_the_tools_it_says_which_and_how_to_get_them(tmp_path: Path) -> None:
    dirname = shutil.which("dirname")
    assert dirname is not None
    (tmp_path / "dirname").symlink_to(dirname)
    command = ["/bin/bash", str(ROOT / "scripts" / "aarch64")]
    done = subprocess.run(command, env={"PATH": str(tmp_path)}, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "aarch64: expected 'aarch64-linux-gnu-g++', which builds and runs the kernels of aarch64, got none; "
        "on Debian, run apt-get install g++-aarch64-linux-gnu qemu-user\n"
    )
