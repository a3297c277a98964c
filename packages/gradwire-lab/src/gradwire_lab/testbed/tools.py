"""The programs that a testbed runs, and the doctor's check for them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from types import MappingProxyType
from typing import TYPE_CHECKING

from gradwire.errors import TestbedError

if TYPE_CHECKING:  # a testbed needs no compiled kernels, but the doctor does
    from gradwire.doctor.finding import Finding

PACKAGES = MappingProxyType(
    {"bridge": "iproute2", "ip": "iproute2", "tc": "iproute2", "unshare": "util-linux"}
)
"""The Linux package of each program."""
_SYSTEM_FOLDERS = "/usr/sbin:/sbin"  # an ordinary user's PATH may lack them


def find_tool(name: str) -> str:
    """Return the path of one of ``PACKAGES``. Raises ``TestbedError`` if it is missing."""
    path = shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:{_SYSTEM_FOLDERS}")
    if path is None:
        raise TestbedError(f"a testbed needs the program {name!r}; install {PACKAGES[name]}")
    return path


def check() -> Iterator[Finding]:
    """Yield a finding about the programs that ``gradwire testbed`` needs; training needs none of them."""
    from gradwire.doctor.finding import Finding

    missing = []
    for tool in PACKAGES:
        try:
            find_tool(tool)
        except TestbedError as error:
            missing.append(str(error))
    if missing:
        yield Finding("testbeds", "ok", f"not available ({'; '.join(missing)}); training does not need them")
    else:
        yield Finding("testbeds", "ok", f"{', '.join(PACKAGES)} are installed")
