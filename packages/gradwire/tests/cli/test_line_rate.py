"""``gradwire line-rate``: its help, and mistakes that start nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradwire.cli import main


def test_its_help_names_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["line-rate", "--help"]) == 0
    assert "gradwire line-rate --json line.json" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("--workers 1", "--workers: expected 2 to 64, got 1"),
        ("--min 4 --max 2", "expected sizes of at least 1 byte for --min and --max"),
        ("--sizes 4x", "expected a size such as '16MB'"),
        ("--repeats 0", "a whole number of at least 1 for repeats in a link's measurement, got 0"),
        ("--rate 3mbps", "expected a rate such as"),
        ("--plot=", "name a file"),
    ],
)
def test_a_mistake_is_one_sentence_and_starts_nothing(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    words: str,
    reason: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("gradwire.line_rate.ranks.run_local", None)
    assert main(["line-rate", *words.split()]) == 2
    printed = capsys.readouterr()
    assert reason in printed.err
    assert (printed.err.count("\n"), printed.out) == (1, "")
    assert list(tmp_path.iterdir()) == []
