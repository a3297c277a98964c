"""Which instruction set runs: the environment's choice, ``use_target``'s, and clear refusals of both."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gradwire import _native
from gradwire.errors import SpecError

PLAN = ["plan", "--model", "5M", "--hosts", "2", "--rate", "1gbit"]


def run(target: str, *words: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"GRADWIRE_TARGET": target}
    return subprocess.run(
        [sys.executable, *words], env=environment, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize("name", _native.available_targets())
def test_the_environment_forces_a_target(name: str) -> None:
    assert run(name, "-c", "from gradwire import _native; print(_native.target())").stdout.split() == [name]


def test_a_target_that_the_machine_lacks_is_one_sentence_and_starts_nothing(tmp_path: Path) -> None:
    done = run("neon", "-m", "gradwire", *PLAN, "--json", str(tmp_path / "plan.json"))
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith("gradwire: GRADWIRE_TARGET: expected a target of this machine (scalar")
    assert not list(tmp_path.iterdir())


def test_use_target_goes_back_and_refuses_what_is_not_there() -> None:
    before = _native.target()
    with _native.use_target("scalar"):
        assert _native.target() == "scalar"
    assert _native.target() == before
    with (
        pytest.raises(SpecError, match=r"expected a target of this machine \(scalar"),
        _native.use_target("vax"),
    ):
        pass
