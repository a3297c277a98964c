"""Report a missing optional package in one sentence instead of a traceback of imports."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gradwire.errors import MissingPackageError
from gradwire.version import how_to_install


@contextmanager
def needed(package: str, extra: str) -> Iterator[None]:
    """Turn a failing import of ``package`` into a ``MissingPackageError`` that names the extra."""
    try:
        yield
    except ImportError as error:
        raise MissingPackageError(
            f"gradwire.integrations.{package} needs the package {package}, which does not load here "
            f"({error}); {how_to_install(extra)}",
            name=package,
        ) from error
