"""``gradwire experiment``: the list, and what it hands to ``perform``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gradwire.cli import main
from gradwire_lab.cli import experiment
from gradwire_lab.experiments import EXPERIMENTS, scaling


@pytest.fixture(autouse=True)
def performed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    monkeypatch.chdir(tmp_path)
    found: list[tuple[Any, ...]] = []

    def perform(chosen: object, options: object, out: Path, **how: bool) -> None:
        found.append((chosen, options, out, how))

    monkeypatch.setattr(experiment, "perform", perform)
    return found


@pytest.mark.parametrize("words", [[], ["--list"]])
def test_the_list_has_a_line_for_each(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["experiment", *words]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(EXPERIMENTS)
    assert all(line.endswith("?") for line in lines)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_help_fits_a_screen(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["experiment", name, "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[2].lower() == EXPERIMENTS[name].question.lower()


def test_options_become_those_of_the_experiment(
    performed: list[tuple[Any, ...]], capsys: pytest.CaptureFixture[str]
) -> None:
    said = "experiment scaling --hosts 2,4 --rate 1gbit --nbytes 1MB --out here --overwrite"
    assert main(said.split()) == 0
    options = scaling.ScalingOptions((2, 4), "1gbit", 1_000_000)
    assert performed == [
        (
            scaling.EXPERIMENT,
            options,
            Path("here"),
            {"overwrite": True, "across_commits": False, "quiet": False},
        )
    ]
    assert capsys.readouterr().out == "the record is in here\n"
    assert main(["experiment", "scaling"]) == 0
    assert performed[1][1] == scaling.ScalingOptions()
    assert str(performed[1][2]).startswith("runs/scaling-2")
    assert performed[1][3] == {"overwrite": False, "across_commits": False, "quiet": False}


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("speed", "got 'speed'"),
        ("--list all", "got 'all'"),
        ("scaling --host 2", "got --host (did you mean '--hosts'?)"),
        ("scaling --out=", "name a folder"),
        ("scaling --hosts 1", "at least 2 hosts, got 1"),
        ("line-share --hosts two", "expected a whole number, got 'two'"),
        ("prediction --networks 4", "near, distant, or HOSTS:RATE[:DELAY] in --networks"),
        ("training-speed --tasks mnist", "expected --tasks from mnist-mlp, cifar-cnn, wide-mlp, gpt"),
    ],
)
def test_a_mistake_is_one_sentence(
    words: str, reason: str, performed: list[tuple[Any, ...]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["experiment", *words.split()]) == 2
    printed = capsys.readouterr()
    assert reason in printed.err
    assert (printed.err.count("\n"), printed.out, performed) == (1, "", [])
    assert list(Path().iterdir()) == []
