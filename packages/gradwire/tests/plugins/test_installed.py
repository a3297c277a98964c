"""A package that brings a codec, an algorithm and a command: installed, used by two ranks, and missing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.project import TESTS

PACKAGE = Path(__file__).parent / "package"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder that the package is installed into; the environment stays as it is."""
    folder = tmp_path_factory.mktemp("plugins")
    shutil.copytree(PACKAGE, folder / "source")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    where = ["--disable-pip-version-check", "--target", str(folder / "target"), str(folder / "source")]
    subprocess.run([*command, *where], check=True, timeout=110)
    return folder / "target"


def run(words: list[str], path: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, timeout=100, check=False,
        env=os.environ | {"PYTHONPATH": str(path or "")},
    )  # fmt: skip


@pytest.mark.processes
def test_two_ranks_train_with_its_codec_and_its_algorithm(installed: Path) -> None:
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = run([*launch, str(TESTS / "support" / "plugin_ranks.py")], installed)
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert len(said) == 2
    assert said[0] == said[1]
    assert said[0].startswith("top16 mirrored ")


@pytest.mark.processes
def test_its_command_runs_and_is_listed(installed: Path) -> None:
    done = run(["-m", "gradwire", "hello", "you"], installed)
    assert (done.returncode, done.stdout, done.stderr) == (0, "hello you\n", "")
    helped = run(["-m", "gradwire", "--help"], installed)
    assert ["hello", "say", "hello"] in [line.split() for line in helped.stdout.splitlines()]
    listed = run(["-m", "gradwire", "codecs", "--no-measure"], installed).stdout.splitlines()
    assert listed[-1].split() == ["top16", "16.00", "gradwire-example==1.5"]


@pytest.mark.processes
def test_without_it_an_error_says_what_is_missing() -> None:
    for spec in ("gradwire.parse('top16')", "gradwire.collectives.get('mirrored')"):
        done = run(["-c", f"import gradwire, gradwire.collectives; {spec}"])
        assert done.returncode == 1
        assert "install the package that provides" in done.stderr.splitlines()[-1]
