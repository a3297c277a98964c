"""The reference of the command line, generated from its parsers."""

from __future__ import annotations

import argparse
import contextlib
import io
import re
from collections.abc import Iterator
from unittest.mock import patch

from gradwire.cli import main
from gradwire.cli.parser import Parser


class Asked(BaseException):
    """The result of ``--help``, with the parser; no ``Exception``, which ``main`` would report as a bug."""


def parser_of(words: list[str]) -> Parser:
    """Return the parser of the arguments that follow some words, such as ``["bench", "allreduce"]``."""

    def asked(parser: Parser, _file: object = None) -> None:
        raise Asked(parser)

    with patch.object(Parser, "print_help", asked), contextlib.redirect_stderr(io.StringIO()) as told:
        try:
            main([*words, "--help"])
        except Asked as found:
            parser: Parser = found.args[0]
            return parser
    raise RuntimeError(f"gradwire {' '.join(words)} --help shows no help: {told.getvalue()}")


def parsers(words: list[str]) -> Iterator[tuple[list[str], Parser]]:
    """Yield the parser of some words, and the parsers of every word that can follow, in order."""
    parser = parser_of(words)
    yield words, parser
    for action in parser._actions:
        if not action.option_strings and action.choices:
            for choice in action.choices:
                yield from parsers([*words, choice])


def command_line() -> str:
    """Return a section for every command, with its options."""
    return "\n\n".join(section(words, parser) for words, parser in parsers([]) if words)


def section(words: list[str], parser: Parser) -> str:
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
