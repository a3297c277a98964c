"""The version of gradwire, which packages it needs, and how to install its extras."""

from __future__ import annotations

import importlib
import importlib.metadata
import subprocess
from functools import cache
from pathlib import Path
from types import MappingProxyType

from gradwire.errors import one_line

NEEDED = ("torch", "numpy", "zstandard", "jinja2")
"""The packages that almost every command needs; a test compares them with pyproject.toml."""


def version() -> str:
    """Return gradwire's version, as installed."""
    return installed("gradwire") or "0+source"


@cache
def commit() -> str | None:
    """Return the commit of the source tree that runs, with ``+changed`` if files differ from it.

    The commit is None without such a tree, as from a wheel.
    """
    if _git("ls-files", "--error-unmatch", Path(__file__).name) is None:
        return None  # installed in another project's tree
    head = _git("rev-parse", "HEAD")
    changed = _git("status", "--porcelain", "--untracked-files=no", SOURCES)
    return None if head is None else f"{head.strip()}{'+changed' if changed else ''}"


def _git(*words: str) -> str | None:
    """Return the output of git for this folder, or None if git fails or is missing."""
    try:
        done = subprocess.run(
            ["git", "-C", str(Path(__file__).parent), *words], capture_output=True, text=True, check=False
        )
    except OSError:
        return None
    return done.stdout if done.returncode == 0 else None


def installed(package: str) -> str | None:
    """Return the version of an installed package, or None; the package is not imported."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def import_problem(package: str) -> str:
    """Import a package; return the reason if it fails, otherwise ""."""
    try:
        importlib.import_module(package)
    except Exception as error:  # a damaged installation raises anything
        return f"{type(error).__name__}: {one_line(str(error))[:200]}"
    return ""


SOURCES = ":(top,glob)packages/*/src/**"
"""The sources of all packages, as git names them: a record was measured with them."""
EXTRAS = MappingProxyType(
    {"gateware": "gradwire-gateware", "papers": "gradwire-lab", "train": "gradwire-lab"}
)
"""The package of each extra that is not one of ``gradwire``."""


def how_to_install(extra: str) -> str:
    """Return the advice that installs the packages of an extra.

    The command installs from the source, because a name on the package index doesn't prove its owner.
    """
    package = EXTRAS.get(extra, "gradwire")
    return f"run pip install './packages/{package}[{extra}]' in gradwire's source folder"
