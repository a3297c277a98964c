"""Which gradwire this is."""

from __future__ import annotations

import importlib.metadata


def version() -> str:
    """Return gradwire's version, as installed."""
    try:
        return importlib.metadata.version("gradwire")
    except importlib.metadata.PackageNotFoundError:
        return "0+source"
