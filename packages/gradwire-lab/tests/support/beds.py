"""What the tests of testbeds share: whether there can be one here, and what must be as it was before."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import pytest

from gradwire.errors import TestbedError as _TestbedError  # pytest would take the name for a test's
from gradwire_lab.testbed.namespaces import private_area
from gradwire_lab.testbed.tools import find_tool
from support.project import SOURCES

TRAFFIC = Path(__file__).with_name("traffic.py")


def _reason() -> str:
    try:
        private_area()
    except _TestbedError as error:
        return str(error)
    return ""


REASON = _reason()
needs_namespaces = pytest.mark.skipif(bool(REASON), reason=REASON)


@cache
def has_netem() -> bool:
    """Return whether this kernel has netem, by asking it."""
    words = [*private_area(), find_tool("tc"), "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1us"]
    return subprocess.run(words, capture_output=True, timeout=20, check=False).returncode == 0


def surroundings() -> dict[str, object]:
    """Return the machine's own links, limits, named and mounted namespaces."""
    mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
    return {
        "links": told(find_tool("ip"), "-o", "link"),
        "limits": told(find_tool("tc"), "qdisc", "show"),
        "names": told(find_tool("ip"), "netns", "list"),
        "mounted": [line for line in mounts if "nsfs" in line],
        "held": [link for link in own_descriptors() if link.startswith("net:")],
    }


def told(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout


def own_descriptors() -> list[str]:
    links = []
    for name in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{name}"))
        except FileNotFoundError:  # the one that the listing itself had
            continue
    return links


def carriers(folder: Path) -> list[int]:
    """Return the processes, whoever started them, that have ``folder`` as their TMPDIR, but not this one."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if f"TMPDIR={folder}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:
            continue
    return [process for process in found if process != os.getpid()]


def wait_until(condition: Callable[[], object], timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def start(
    folder: Path,
    *words: str,
    python: str = sys.executable,
    user: int | None = None,
    prefix: Sequence[str] = ("env", "--default-signal=INT"),
) -> subprocess.Popen[str]:
    """Start ``gradwire testbed`` with these words; its registry is in ``folder``, which marks them."""
    return subprocess.Popen(
        [*prefix, python, "-m", "gradwire", "testbed", *words],
        env={
            **os.environ,
            "TMPDIR": str(folder),
            "PYTHONPATH": SOURCES,
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONUNBUFFERED": "1",
        },
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        user=user,
        group=user,
        extra_groups=None if user is None else [],
    )
