"""All commands' parsers are found without running a command, and those that use no ``Parser`` are named."""

from __future__ import annotations

import argparse

import pytest

from gradwire.cli.main import COMMANDS, commands
from gradwire.cli.parser import Parser, add_usual
from gradwire.cli.walk import choices, walk


def selects(words: list[str]) -> None:
    made = Parser("gradwire other", "Tests.", "gradwire other WHAT", "")
    made.add_argument("what", choices=["one", "two"])
    made.add_argument("-h", "--help", action="help")
    if made.parse_args(words[:1]).what == "one":
        inner = Parser("gradwire other one", "Tests.", "gradwire other one", "")
        add_usual(inner)
        inner.parse_args(words[1:])


def foreign(words: list[str]) -> None:
    argparse.ArgumentParser().parse_args(words)


def broken(_: list[str]) -> None:
    raise ImportError("no such package")


def test_every_command_of_the_core_has_a_parser() -> None:
    found = {words: parser for words, parser in walk(commands()) if words[0] in COMMANDS}
    assert {words[0] for words in found} == {*COMMANDS}
    assert all(
        parser is not None and parser.prog == f"gradwire {' '.join(words)}" for words, parser in found.items()
    )


def test_sub_commands_are_found_and_values_of_arguments_are_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, run in (("selects", selects), ("foreign", foreign), ("broken", broken)):
        monkeypatch.setattr(f"gradwire.cli.codecs.{name}", run, raising=False)
    known = {
        name: ("", f"gradwire.cli.codecs:{run}")
        for name, run in (("other", "selects"), ("f", "foreign"), ("b", "broken"))
    }
    found = dict(walk(known))
    assert [*found] == [("other",), ("other", "one"), ("f",), ("b",)]
    assert found["f",] is found["b",] is None
    parser = found["other",]
    assert parser is not None
    assert choices(parser) == ("one", "two")
    assert capsys.readouterr() == ("", "")
