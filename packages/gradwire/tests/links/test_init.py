"""The names of the room are loaded when they are used, and not before."""

from __future__ import annotations

import subprocess
import sys

import pytest

import gradwire.links


def test_every_name_is_there_and_no_other() -> None:
    for name in gradwire.links.__all__:
        assert getattr(gradwire.links, name).__name__ == name
    assert {*gradwire.links.__all__} == {name for names in gradwire.links._HOMES.values() for name in names}
    with pytest.raises(AttributeError, match=r"'gradwire\.links' has no attribute 'Rope'"):
        gradwire.links.Rope  # noqa: B018


@pytest.mark.processes
def test_addresses_are_looked_at_without_torch() -> None:
    script = "import sys, gradwire.launch.addresses, gradwire.links.rendezvous.tls as tls\n"
    script += "assert tls.encryption({}) is None\nassert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
