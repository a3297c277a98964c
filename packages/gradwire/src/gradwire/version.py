"""The version of gradwire, the packages that it requires, and the commands that install its extras."""

from __future__ import annotations

import importlib
import importlib.metadata
import subprocess
from functools import cache
from pathlib import Path
from types import MappingProxyType

from gradwire.errors import one_line

NEEDED = ("torch", "numpy", "zstandard", "jinja2")
"""The packages that almost every command requires. A test compares this list with pyproject.toml."""


def version() -> str:
    """Return gradwire's installed version."""
    return installed("gradwire") or "0+source"


@cache
def commit() -> str | None:
    """Return the commit of the running source tree, with ``+changed`` if files differ from it.

    Without a source tree, for example after installation from a wheel, return None.
    """
    if _git("ls-files", "--error-unmatch", Path(__file__).name) is None:
        return None  # the source tree around this folder is another project's
    head = _git("rev-parse", "HEAD")
    changed = _git("status", "--porcelain", "--untracked-files=no", SOURCES)
    return None if head is None else f"{head.strip()}{'+changed' if changed else ''}"


def _git(*words: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(Path(__file__).parent), *words], capture_output=True, text=True, check=False
        )
    except OSError:
        return None
    return done.stdout if done.returncode == 0 else None


def installed(package: str) -> str | None:
    """Return a package's installed version, or None, without importing the package."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def import_problem(package: str) -> str:
    """Import a package; return the reason for a failure, or an empty string."""
    try:
        importlib.import_module(package)
    except Exception as error:  # a damaged installation may raise any exception
        return f"{type(error).__name__}: {one_line(str(error))[:200]}"
    return ""


SOURCES = ":(top,glob)packages/*/src/**"
"""The git pathspec of the files that may affect a record: the sources of all packages."""
EXTRAS = MappingProxyType(
    {"gateware": "gradwire-gateware", "papers": "gradwire-lab", "train": "gradwire-lab"}
)
"""The package of each extra that ``gradwire`` itself doesn't define."""


def how_to_install(extra: str) -> str:
    """Return the command to install an extra from source, because an index doesn't prove a name's owner."""
    package = EXTRAS.get(extra, "gradwire")
    return f"run pip install './packages/{package}[{extra}]' in gradwire's source folder"
