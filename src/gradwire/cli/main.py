"""``main``: choose the command, run it, turn errors into a sentence and an exit code."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Sequence
from types import MappingProxyType

from gradwire.cli import codecs, train
from gradwire.cli.parser import EXIT_MISTAKE, Parser
from gradwire.errors import GradwireError
from gradwire.job.machine import version

EXIT_BUG = 1
EXIT_INTERRUPTED = 130

COMMANDS: MappingProxyType[str, tuple[str, Callable[[Sequence[str]], None]]] = MappingProxyType(
    {
        "train": (train.SUMMARY, train.run),
        "codecs": (codecs.SUMMARY, codecs.run),
    }
)
"""Name -> one line of help, and what takes the rest of the command line."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``gradwire`` and return its exit code.

    0: done. 2: the user can mend it, one sentence on standard error says how. 130: interrupted. 1: a bug of
    gradwire, with its traceback.
    """
    words = sys.argv[1:] if arguments is None else list(arguments)
    try:
        _dispatch(words)
    except GradwireError as error:
        sys.stderr.write(f"gradwire: {error}\n")
        return EXIT_MISTAKE
    except KeyboardInterrupt:
        sys.stderr.write("gradwire: interrupted\n")
        return EXIT_INTERRUPTED
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else EXIT_BUG
    except Exception:
        traceback.print_exc()
        sys.stderr.write("gradwire: this is a bug; please report it with the lines above\n")
        return EXIT_BUG
    return 0


def _dispatch(words: Sequence[str]) -> None:
    lines = "\n".join(f"  {name:<10}{summary}" for name, (summary, _) in COMMANDS.items())
    parser = Parser(
        prog="gradwire",
        usage="gradwire COMMAND [options]",
        description="Train in parallel over ordinary networks, with gradients that fit through them.",
        epilog=f"commands:\n{lines}\n\nexample:\n  gradwire train --compare --workers 4 --link 100mbit",
    )
    parser.add_argument("command", metavar="COMMAND", choices=COMMANDS, help="what to do, see below")
    parser.add_argument("-h", "--help", action="help", help="show this text, or a command's after its name")
    parser.add_argument("--version", action="version", version=f"gradwire {version()}")
    if not words:
        parser.error(f"name a command: {', '.join(COMMANDS)}")
    command = parser.parse_args(words[:1]).command
    COMMANDS[command][1](words[1:])
