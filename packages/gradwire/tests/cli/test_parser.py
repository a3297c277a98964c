"""A mistake is one line, help fits a terminal, and an unset variable is no path."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from gradwire.cli.parser import EXIT_MISTAKE, Parser, chosen, file_path, folder_path


def parser() -> Parser:
    made = Parser("gradwire test", "Tests.", "gradwire test [--rate RATE]", "An example:\n  gradwire test")
    made.add_argument("--rate", type=int, help=" ".join(["words"] * 40))
    made.add_argument("--out", type=file_path)
    return made


@pytest.mark.parametrize(
    ("words", "mistake"),
    [
        (["--rate", "x"], "argument --rate: expected a whole number, got 'x'"),
        (["--ra", "1"], "expected an option of gradwire test, got --ra (did you mean '--rate'?)"),
        (["--out", ""], "argument --out: expected a path, got an empty string; name a file"),
        (["--out", "-"], "argument --out: expected a file, got '-', which only --json accepts; name one"),
        (["--out", "./-"], "argument --out: expected a file, got './-', which only --json accepts; name one"),
        (["-h"], "expected an option of gradwire test, got -h"),
    ],
)
def test_a_mistake_is_one_line_that_names_the_help(
    words: list[str], mistake: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        parser().parse_args(words)
    assert caught.value.code == EXIT_MISTAKE == 2
    assert capsys.readouterr() == ("", f"gradwire test: {mistake}; see gradwire test --help\n")


def test_help_fits_80_columns_and_keeps_the_lines_of_its_end() -> None:
    text = parser().format_help()
    assert max(map(len, text.splitlines())) < 80
    assert "An example:\n  gradwire test" in text


@pytest.mark.parametrize("read", [file_path, folder_path])
def test_a_path_has_a_name(read: Callable[[str], Path]) -> None:
    assert read("a/b") == Path("a/b")
    with pytest.raises(
        argparse.ArgumentTypeError, match=r"^expected a path, got an empty string; name a (file$|folder)"
    ):
        read("")


@dataclass(frozen=True)
class Options:
    """What a command takes."""

    rate: int = 5
    out: Path | None = None
    world: int = 2


def test_options_come_from_words_of_their_names_and_keep_their_defaults() -> None:
    words = parser().parse_args(["--out", "a"])
    assert chosen(Options, words) == Options(out=Path("a"))
    words.world, words.strange = 3, "no option"
    assert chosen(Options, words, rate=7) == Options(7, Path("a"), 3)
    assert chosen(Options, words, world=4).world == 4, "what is said here counts"


def test_a_value_of_dashes_alone_is_a_mistake_or_the_value_itself(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        assert parser().parse_args(["--out=--"]).out == Path("--")  # from Python 3.13 on
    except SystemExit:
        assert "argument --out: expected one argument" in capsys.readouterr().err


def test_a_mistake_has_no_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parser().parse_args(["a\nb\x1b[2J\udcff"])
    assert "got 'a\\nb\\x1b[2J\\udcff';" in capsys.readouterr().err
