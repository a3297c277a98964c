"""Every script in examples/ trains on two processes, and its gradients really went through the codec."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.forks import torchrun
from support.project import ROOT

EXAMPLES = ROOT / "examples"
APART = {"elastic_restart"}
"""It needs a folder, and has a test of its own beside the faults."""
EPOCHS = 9
"""Enough for all to learn, of the 12 that they train by themselves."""
NAMES = sorted({path.stem for path in EXAMPLES.glob("*.py")} - APART)


@pytest.mark.processes
@pytest.mark.parametrize("name", NAMES)
def test_it_learns_compressed_and_its_ranks_agree(name: str, tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.mkdir()
    run = torchrun(
        EXAMPLES / f"{name}.py",
        f"--epochs={EPOCHS}",
        log=tmp_path / "log",
        cwd=here,
        variables={"HF_HUB_OFFLINE": "1"},
    )
    assert run.returncode == 0, run.stderr
    assert list(here.iterdir()) == [], "it leaves nothing behind"
    first_rank, second_rank = run.ranks

    first, last, accuracy = _numbers(r"^loss (\S+) -> (\S+), accuracy (\S+)$", first_rank)
    assert first > 2.0, "untrained, ten digits cost about ln 10"
    assert last < 0.5 * first
    assert accuracy > 0.7

    (fewer,) = _numbers(r"; (\S+) times fewer bytes on the wire$", first_rank)
    assert fewer > 1.2, first_rank
    assert "no gradient bypassed the codec" in first_rank
    (steps,) = _numbers(r"^gradwire, rank 0: (\d+) steps", first_rank)
    assert steps >= EPOCHS * 12  # of 1536 digits, 64 a step on each rank

    (weights,) = re.findall(r"^rank 0: weights (\w{16})$", first_rank, re.MULTILINE)
    assert f"rank 1: weights {weights}\n" in second_rank
    assert "accuracy" not in second_rank, "one rank reports for all"


def _numbers(pattern: str, text: str) -> tuple[float, ...]:
    (found,) = re.findall(pattern, text, re.MULTILINE)
    return tuple(float(part) for part in ((found,) if isinstance(found, str) else found))


def test_the_table_of_examples_names_all_and_each_shows_its_one_line() -> None:
    table = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert set(re.findall(r"\]\((\w+)\.py\)", table)) == {*NAMES, *APART}
    assert len(NAMES) >= 6
    for name in NAMES:
        assert (EXAMPLES / f"{name}.py").read_text(encoding="utf-8").count("# the one line") == 1, name
