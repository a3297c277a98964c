"""The reference of the command line, generated from its parsers."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator

from gradwire.cli.main import commands
from gradwire.cli.parser import Parser
from gradwire.cli.walk import walk


def parsers() -> Iterator[tuple[tuple[str, ...], Parser]]:
    """Yield the words and the parser of each command and sub-command, in order."""
    for words, parser in walk(commands()):
        if parser is None:
            raise RuntimeError(f"gradwire {' '.join(words)} --help shows no help")
        yield words, parser


def command_line() -> str:
    """Return a section for every command, with its options."""
    return "\n\n".join(section(words, parser) for words, parser in parsers())


def section(words: tuple[str, ...], parser: Parser) -> str:
    """Return one command's section."""
    level = "#" * min(1 + len(words), 4)
    parts = [f"{level} `gradwire {' '.join(words)}`", escaped(" ".join((parser.description or "").split()))]
    parts.append(f"```text\n{parser.format_usage().removeprefix('usage: ').strip()}\n```")
    for group in parser._action_groups:
        rows = [row(action) for action in group._group_actions if action.help is not argparse.SUPPRESS]
        if rows:
            heading = (group.title or "options").replace("positional arguments", "arguments")
            parts.append("\n".join([f"| {heading} | meaning |", "|---|---|", *rows]))
    if parser.epilog:
        parts.append(f"```text\n{parser.epilog.strip()}\n```")
    return "\n\n".join(parts)


def row(action: argparse.Action) -> str:
    """Return the row of an option: its spelling, and its help."""
    value = action.metavar if isinstance(action.metavar, str) else (action.metavar or ("",))[0]
    names = [
        f"`{name}{f' {value}' if value and action.nargs != 0 else ''}`" for name in action.option_strings
    ]
    text = (action.help or "") % {**vars(action), "prog": "gradwire"}
    return f"| {', '.join(names) or f'`{value or action.dest}`'} | {escaped(text)} |"


def escaped(text: str) -> str:
    """Return a text with the characters that are special in Markdown escaped."""
    return re.sub(r"([\\`*_<>\[\]|{}$~#])", r"\\\1", text)
