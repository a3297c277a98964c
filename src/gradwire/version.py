"""The version of gradwire, and how to install its extras."""

from __future__ import annotations

import importlib.metadata


def version() -> str:
    """Return gradwire's version, as installed."""
    return installed("gradwire") or "0+source"


def installed(package: str) -> str | None:
    """Return the version of an installed package, None where there is none; the package is not imported."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def how_to_install(extra: str) -> str:
    """Return how to install the packages that only some parts of gradwire need.

    The command installs from the source, because a name on the package index doesn't prove its owner.
    """
    return f"run pip install '.[{extra}]' in gradwire's source folder"
