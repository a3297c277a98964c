"""Which versions are installed, and whether they are among those that gradwire supports."""

from __future__ import annotations

import re

from gradwire.doctor.finding import Finding

LEAST_PYTHON = (3, 11)
LEAST_TORCH = (2, 6)
"""As in pyproject.toml; a test compares them."""


def check_python(version: str) -> Finding:
    """Judge Python's version, such as ``3.12.4``."""
    return _check_least("Python", version, LEAST_PYTHON, "run gradwire with a newer Python")


def check_torch(version: str) -> Finding:
    """Judge torch's version, such as ``2.7.1+cu126``."""
    return _check_least("torch", version, LEAST_TORCH, "pip install --upgrade torch")


def check_package(name: str, problem: str) -> Finding:
    """Judge a package that gradwire needs and that cannot be imported, for the reason ``problem``."""
    return Finding(name, "FAIL", f"it cannot be imported ({problem}); pip install {name}")


def check_gradwire(version: str, wire_version: int) -> Finding:
    """Tell gradwire's version, and that of the frames that it sends."""
    return Finding("gradwire", "ok", f"{version}, frames of version {wire_version}")


def release(version: str) -> tuple[int, int] | None:
    """Return major and minor of a version, None for a text that is no version.

    Examples
    --------
    >>> release("2.13.0+cpu"), release("nightly")
    ((2, 13), None)
    """
    match = re.match(r"(\d+)\.(\d+)", version)
    return None if match is None else (int(match[1]), int(match[2]))


def _check_least(name: str, version: str, least: tuple[int, int], remedy: str) -> Finding:
    wanted = ".".join(map(str, least))
    found = release(version)
    if found is None:
        return Finding(name, "warn", f"{version} is no version that can be compared; {wanted} is the least")
    if found < least:
        return Finding(name, "FAIL", f"{version}, but gradwire needs at least {wanted}; {remedy}")
    return Finding(name, "ok", f"{version}, at least {wanted} is needed")
