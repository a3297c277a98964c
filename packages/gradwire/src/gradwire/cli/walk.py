"""The parsers of all installed commands, found without running a command."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator

from gradwire import plugins
from gradwire.cli.parser import Inspected, Parser, inspecting
from gradwire.errors import GradwireError


def walk(known: dict[str, tuple[str, str]]) -> Iterator[tuple[tuple[str, ...], Parser | None]]:
    """Yield each command's and sub-command's words and parser, with None instead of an unusable parser."""
    for name, (_, where) in known.items():
        yield from _below((name,), where)


def choices(parser: Parser) -> tuple[str, ...]:
    """Return the names of a parser's sub-commands, or else the values of its positional argument."""
    return tuple(
        str(each) for action in parser._actions if not action.option_strings for each in action.choices or ()
    )


def _below(words: tuple[str, ...], where: str) -> Iterator[tuple[tuple[str, ...], Parser | None]]:
    parser = _parser_of(words, where)
    own = parser is not None and parser.prog.split()[1:] == [*words]
    if len(words) > 1 and not own:
        return  # a value of an argument, not a sub-command with its own parser
    yield words, parser
    for name in () if parser is None else choices(parser):
        yield from _below((*words, name), where)


def _parser_of(words: tuple[str, ...], where: str) -> Parser | None:
    token = inspecting.set(True)
    quiet = io.StringIO()
    try:
        with contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet):
            plugins.resolve(where)([*words[1:], "--help"])
    except Inspected as found:
        return found.parser
    except (SystemExit, GradwireError, ImportError):
        return None
    finally:
        inspecting.reset(token)
    return None
