"""Which gradwire this is, and how more of it is installed."""

from __future__ import annotations

import importlib.metadata


def version() -> str:
    """Return gradwire's version, as installed."""
    try:
        return importlib.metadata.version("gradwire")
    except importlib.metadata.PackageNotFoundError:
        return "0+source"


def how_to_install(extra: str) -> str:
    """Return the words that tell how packages are added which only some parts of gradwire need.

    From the source: a name on the package index says nothing about whose it is.
    """
    return f"run pip install '.[{extra}]' in gradwire's source folder"
