"""An option means the same in every command, of every package: its value, and what it is."""

from __future__ import annotations

import argparse
import re
from collections import defaultdict
from collections.abc import Iterator

import pytest

from gradwire.cli.main import commands
from gradwire.cli.parser import Parser
from gradwire.cli.walk import choices, walk

KINDS = {
    "TIME": "30s",
    "RATE": "1gbit",
    "FILE": "x.json",
    "DIR": "x",
    "N": "4",
    "SIZE": "16MB",
    "BYTES": "16MB",
    "SPEC": "fp8",
    "LIST": "2,4",
}
"""The names of values that say their kind, with a value that every option of the kind accepts."""
DURATIONS = ("--timeout", "--grace", "--max-time", "--pause", "--time", "--delay")
"""The options for which a number without unit is in seconds."""
PARSERS = {" ".join(words): parser for words, parser in walk(commands()) if parser is not None}
RUN = {words: parser for words, parser in PARSERS.items() if not (choices(parser) and words != "completion")}
"""The parsers of what runs, without those that only select a sub-command."""


def options() -> Iterator[tuple[str, str, argparse.Action]]:
    for words, parser in PARSERS.items():
        for action in parser._actions:
            for name in action.option_strings:
                yield name, words, action


def meaning(action: argparse.Action) -> str:
    """Return what a help says before its details and default."""
    return re.split(r"[,;:(]", (action.help or "").replace("%%", "%"))[0].strip()


def test_all_commands_have_a_parser() -> None:
    assert {words.split()[0] for words in PARSERS} == {*commands()}
    assert {"testbed run", "bench allreduce", "gateware export", "experiment scaling"} <= {*RUN}


def test_a_name_has_one_kind_of_value_and_one_meaning() -> None:
    found: dict[str, dict[tuple[object, str], list[str]]] = defaultdict(lambda: defaultdict(list))
    for name, words, action in options():
        value = None if action.nargs in (0, "?") and action.option_strings else action.metavar
        found[name][value, meaning(action)].append(words)
    several = {name: dict(meanings) for name, meanings in found.items() if len(meanings) > 1}
    assert several == {}


def test_a_kind_of_value_is_read_alike() -> None:
    for name, words, action in options():
        if action.nargs != 0 and action.metavar in KINDS and action.choices is None:
            value = KINDS[str(action.metavar)]
            assert PARSERS[words]._get_value(action, value) is not None, (words, name)


@pytest.mark.parametrize("words", RUN)
def test_every_command_can_be_quiet_or_verbose(words: str) -> None:
    names = {name for action in RUN[words]._actions for name in action.option_strings}
    assert {"--quiet", "--verbose", "--help", "-h"} <= names
    assert ("--overwrite" in names) == bool({"--out", "--json", "--save", "--html", "--verilog"} & names)


def test_times_have_units_or_are_seconds() -> None:
    tried = [
        (words, name)
        for name, words, action in options()
        if name in DURATIONS
        and [PARSERS[words]._get_value(action, text) for text in ("30s", "30", "500ms")] != [30, 30, 0.5]
    ]
    assert tried == []
    assert {words for name, words, _ in options() if name == "--timeout"} == {
        "doctor", "line-rate", "run", "train", "bench allreduce", "testbed run",
    }  # fmt: skip


def test_the_walk_finds_a_parser_that_a_test_can_read() -> None:
    parser = PARSERS["testbed run"]
    assert isinstance(parser, Parser)
    assert parser.parse_args(["--hosts", "3", "--timeout", "1"]).timeout_s == 1.0
