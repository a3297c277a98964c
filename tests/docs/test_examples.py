"""Every script in examples/ trains on two processes, and its gradients really went through the codec."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gradwire.run.outcome import RunOutcome
from gradwire.run.settings import RunSettings
from gradwire.sync.ledger.summary import read_summary
from support.forks import torchrun
from support.project import ROOT

EXAMPLES = ROOT / "examples"
APART = {"elastic_restart", "plain_gpt"}
"""They have tests of their own: beside the faults, and below."""
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


@pytest.mark.processes
def test_a_script_without_gradwire_learns_with_gradwire_run(tmp_path: Path) -> None:
    settings = RunSettings(str(tmp_path), "fp8")
    run = torchrun(
        EXAMPLES / "plain_gpt.py",
        *("--max-iters=30", "--layers=1", "--width=64", "--block-size=32", "--eval-interval=30"),
        log=tmp_path / "log",
        cwd=tmp_path,
        variables=settings.entry().variables({}),
    )
    assert run.returncode == 0, run.stderr
    assert "gradwire" not in (EXAMPLES / "plain_gpt.py").read_text(encoding="utf-8").split('"""')[2]
    first, last = (float(each) for each in re.findall(r"held-out loss (\S+)", run.ranks[0]))
    assert first > 5.0, "untrained, a byte costs about ln 256"
    assert last < 0.8 * first
    assert "attached to DistributedDataParallel 'GPT' (" in run.stderr
    (model,) = RunOutcome.load(settings.outcome).models
    summary = read_summary(model.ledger)
    assert summary.steps == 30, "one for each two passes"
    assert summary.total.cost.ratio > 3
    (weights,) = re.findall(r"^rank 0: weights (\w{16})$", run.ranks[0], re.MULTILINE)
    assert f"rank 1: weights {weights}\n" in run.ranks[1]


def test_the_table_of_examples_names_all_and_each_shows_its_one_line() -> None:
    table = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert set(re.findall(r"\]\((\w+)\.py\)", table)) == {*NAMES, *APART}
    assert len(NAMES) >= 6
    for name in NAMES:
        assert (EXAMPLES / f"{name}.py").read_text(encoding="utf-8").count(
            "# the line that adds gradwire"
        ) == 1, name
