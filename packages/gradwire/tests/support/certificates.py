"""Authorities and certificates, made as ``docs/tls.md`` says, for ranks of tests."""

from __future__ import annotations

import atexit
import re
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import pytest

from support.project import DOCS

PAGE = (DOCS / "tls.md").read_text(encoding="utf-8")
needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="makes keys with openssl")


def page_commands() -> str:
    """Return the page's lines that make an authority in ``ca.pem`` and a certificate in ``host1.pem``."""
    return "\n".join(re.findall(r"^    (openssl .*)$", PAGE, re.MULTILINE))


def make(folder: Path, authority: str = "our ranks") -> dict[str, str]:
    """Return variables that name a new key, its certificate, and a new authority that has signed it."""
    folder.mkdir(parents=True, exist_ok=True)
    commands = page_commands().replace("our ranks", authority)
    subprocess.run(["sh", "-ec", commands], cwd=folder, check=True, capture_output=True, timeout=60)
    names = {"KEY": "host1.key", "CERT": "host1.pem", "CA": "ca.pem"}
    return {f"GRADWIRE_TLS_{word}": str(folder / name) for word, name in names.items()}


@cache
def variables(authority: str = "ours") -> dict[str, str]:
    """Return what ``make`` does, once for each ``authority``."""
    keep = tempfile.TemporaryDirectory(prefix=f"gradwire-{authority}-")
    atexit.register(keep.cleanup)
    return make(Path(keep.name), authority)


@cache
def of_host(name: str) -> dict[str, str]:
    """Return what ``variables()`` does, for another host of that authority."""
    first = variables()
    folder = Path(first["GRADWIRE_TLS_CA"]).parent
    commands = "\n".join(line for line in page_commands().replace("host1", name).splitlines() if name in line)
    subprocess.run(["sh", "-ec", commands], cwd=folder, check=True, capture_output=True, timeout=60)
    key, certificate = str(folder / f"{name}.key"), str(folder / f"{name}.pem")
    return {**first, "GRADWIRE_TLS_KEY": key, "GRADWIRE_TLS_CERT": certificate}
