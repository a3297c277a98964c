"""Which machine and which versions a record was measured with."""

from __future__ import annotations

import hashlib
import os
import platform
from pathlib import Path

from gradwire.version import installed, version


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0))


def stolen_s(proc: Path = Path("/proc")) -> float:
    """Return for how long the hypervisor has kept this machine's cores waiting, since it began."""
    cpu = (proc / "stat").read_text(encoding="utf-8").split(maxsplit=9)
    return int(cpu[8]) / os.sysconf("SC_CLK_TCK")


def describe_machine(**more: object) -> dict[str, object]:
    """Return the machine's kind, and what else is known of it: nothing that names it or its user."""
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "kernel": platform.release(),
        "processor": _processor(),
        "cores": cores(),
        **more,
    }


def describe_versions() -> dict[str, str | None]:
    """Return the versions of gradwire, Python, torch and NumPy; None for what is not installed."""
    return {
        "gradwire": version(),
        "python": platform.python_version(),
        "torch": installed("torch"),
        "numpy": installed("numpy"),
    }


def machine_id() -> str:
    """Return 16 hexadecimal digits that identify the machine and reveal nothing else about it."""
    try:
        identity = Path("/etc/machine-id").read_text(encoding="ascii").strip()
    except OSError:
        identity = platform.node()
    told = "/".join(("gradwire", identity, platform.machine(), _processor(), str(os.cpu_count())))
    return hashlib.sha256(told.encode()).hexdigest()[:16]


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
