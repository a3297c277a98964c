"""What scripts/setup installs for the demo and for all, and what it says meanwhile; pip is a stub."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from support.project import ROOT

STUB = """#!/bin/bash
case "$*" in
*"-m venv"*) mkdir -p .venv/bin .venv/lib/python3/site-packages && cp "$0" .venv/bin/python ;;
*"-m pip install"*)
    echo "$*" >>pip.calls
    echo "Collecting torch>=2.6 (from gradwire==0.1.0)"
    sleep "$PIP_TAKES_S"
    echo "Installing collected packages: numpy, torch, gradwire"
    mkdir -p .venv/lib/python3/site-packages/numpy-2.dist-info
    sleep "$PIP_TAKES_S"
    [ -z "$PIP_FAILS" ] || { echo "ERROR: no space left on device"; exit 1; } ;;
*version*torch*) [ -n "$INSTALLED" ] && echo "$INSTALLED" ;;
*torch.__version__*) echo 2.13.0+cpu ;;
esac
"""


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts" / "setup", tmp_path / "scripts")
    shutil.copy(ROOT / "constraints.txt", tmp_path)
    (tmp_path / "python").write_text(STUB)
    (tmp_path / "python").chmod(0o755)
    return tmp_path


def setup(clone: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    stub = {
        "PYTHON": str(clone / "python"),
        "CXX": "true",
        "PIP_TAKES_S": "0",
        "PIP_FAILS": "",
        "INSTALLED": "",
    }
    command = ["bash", str(clone / "scripts" / "setup"), *words]
    environment = {**os.environ, **stub, **variables}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


def calls(clone: Path) -> list[str]:
    return (clone / "pip.calls").read_text().splitlines()


@pytest.mark.processes
def test_the_demo_needs_the_packages_and_no_tool_of_the_tests(clone: Path) -> None:
    done = setup(clone, "demo")
    assert (done.returncode, done.stderr) == (0, "")
    *together, last = calls(clone)
    torch, core = sorted(together)
    assert core.endswith("--no-deps --editable packages/gradwire")
    assert torch.endswith("--constraint constraints.txt --no-compile torch")
    assert re.findall(r"--editable (\S+)", last) == [
        "packages/gradwire-gateware",
        "packages/gradwire-lab[train]",
    ]
    assert "--group" not in last
    assert "--constraint constraints.txt --no-compile" in last
    assert re.search(r"setup: done in \d+ s, .venv holds gradwire with torch 2.13.0\+cpu\n$", done.stdout)


@pytest.mark.processes
def test_all_upgrades_what_the_demo_installed(clone: Path) -> None:
    setup(clone, "demo")
    done = setup(clone, INSTALLED="2.14.0+cu130")  # without a word it installs all
    assert (done.returncode, done.stderr) == (0, "")
    upgrade, *together, call = calls(clone)[3:]
    assert upgrade.endswith("--upgrade pip>=25.1")
    assert sorted(each.split()[-1] for each in together) == ["packages/gradwire", "torch"]
    assert "packages/gradwire-lab[train,papers] --group dev --group docs" in call
    assert "--constraint .venv/constraints.txt" in call
    assert "\ntorch==2.14.0+cu130\n" in (clone / ".venv" / "constraints.txt").read_text()


@pytest.mark.processes
def test_it_says_at_each_interval_what_it_does(clone: Path) -> None:
    done = setup(clone, "demo", PIP_TAKES_S="2.5", SETUP_EVERY_S="1")
    said = re.findall(r"^setup: (\d+) s, (.*)$", done.stdout, re.MULTILINE)
    texts = [text for _, text in said]
    assert "collecting torch>=2.6" in texts
    assert "installing packages: 1 of 3" in texts
    times = [0, *(int(second) for second, _ in said)]
    assert max(later - before for before, later in itertools.pairwise(times)) <= 2


@pytest.mark.processes
def test_a_failure_shows_pips_last_lines(clone: Path) -> None:
    done = setup(clone, "demo", PIP_FAILS="yes")
    assert done.returncode == 2
    assert "ERROR: no space left on device\n" in done.stderr
    said = "setup: compiling the kernels and installing torch failed, see above and .venv/setup.log.\n"
    assert done.stderr.endswith(said)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("words", "variables", "said"),
    [
        (["docs"], {}, "setup: expected demo or all, got 'docs'; use 'make setup' for all.\n"),
        (
            ["demo"],
            {"PYTHON": "false"},
            "setup: Python 3.11 or newer is needed, but 'false' is ; select another",
        ),
        (
            ["demo"],
            {"CXX": "no-compiler"},
            "setup: expected a C++ compiler, 'no-compiler', got none; install",
        ),
    ],
)
def test_a_mistake_is_one_sentence(
    clone: Path, words: list[str], variables: dict[str, str], said: str
) -> None:
    done = setup(clone, *words, **variables)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(said)
    assert not (clone / ".venv").exists()


@pytest.mark.processes
def test_make_sets_up_a_part_for_the_demo_and_all_for_the_tests(tmp_path: Path) -> None:
    def would_run(target: str, *ready: str) -> str:
        for stamp in ready:
            (tmp_path / stamp).touch()
        command = ["make", "--dry-run", "-f", str(ROOT / "Makefile"), "SOURCES=", target]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout

    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "setup").touch()
    (tmp_path / ".venv").mkdir()
    assert re.findall(r"scripts/setup \w+", would_run("demo")) == ["scripts/setup demo"]
    assert re.findall(r"scripts/setup \w+", would_run("test", ".venv/demo-ready")) == ["scripts/setup all"]
    assert "touch .venv/demo-ready .venv/ready" in would_run("test")
    assert "scripts/setup" not in would_run("demo")
