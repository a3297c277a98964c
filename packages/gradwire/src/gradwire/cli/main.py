"""``main``: run a command, and turn its errors into one sentence and an exit code."""

from __future__ import annotations

import os
import re
import signal
import sys
import traceback
from collections.abc import Container, Mapping, Sequence
from io import TextIOWrapper
from pathlib import Path
from types import MappingProxyType
from typing import TextIO

from gradwire import plugins
from gradwire.cli.call import Call, serving
from gradwire.cli.parser import EXIT_MISTAKE, Parser
from gradwire.cli.settings import find_settings
from gradwire.errors import GradwireError, SpecError, one_line, shown
from gradwire.version import NEEDED, import_problem, version

EXIT_BUG = 1
EXIT_INTERRUPTED = 130
EXIT_CLOSED = 128 + signal.SIGPIPE
EXITS_BY_SIGNAL = MappingProxyType({128 + number: number for number in (signal.SIGTERM, signal.SIGHUP)})

COMMANDS = MappingProxyType(
    {
        "plan": "predict the step time of every plan on a network, and choose one",
        "profile": "run a DDP or FSDP2 script, and estimate its steps with gradwire",
        "run": "run an unchanged script with gradwire, and measure the gain",
        "doctor": "check this machine, or the ranks of a cluster, before training",
        "codecs": "list the codecs with their size, error, and speed here",
        "line-rate": "measure latency and bandwidth between ranks",
        "completion": "print a script that completes gradwire's commands in a shell",
    }
)
"""The commands of this package and their lines of help. Each command's module in this folder has
``run(arguments)``, which may return an exit code. It is imported on use, because torch takes seconds."""
_LAB = ("demo", "train", "bench", "testbed", "reproduce", "report", "experiment")
ELSEWHERE = MappingProxyType(
    dict.fromkeys(_LAB, "gradwire-lab") | dict.fromkeys(("nic", "gateware"), "gradwire-gateware")
)
"""The commands of packages that may not be installed, each with the package to install."""


def commands() -> dict[str, tuple[str, str]]:
    """Return all installed commands: name -> (line of help, ``module:function``). Raises ``SpecError``."""
    found = {name: (text, f"gradwire.cli.{name.replace('-', '_')}:run") for name, text in COMMANDS.items()}
    for name in plugins.names(plugins.COMMANDS):
        others = plugins.entry(plugins.COMMANDS, name)
        if not isinstance(others, Mapping):
            raise SpecError(
                f"expected a mapping of commands for {name!r} of {plugins.origin(plugins.COMMANDS, name)}, "
                f"got {shown(others)}; fix the entry point, or uninstall the package"
            )
        for command, told in others.items():
            found.setdefault(command, told)
    return found


START = """\
gradwire makes data-parallel PyTorch training over ordinary networks faster.

First check whether this machine is ready:
  gradwire doctor

See the gain on four emulated hosts at 1 Gbit/s:
  gradwire demo

Then measure your network between ranks that torchrun starts on your hosts, and
choose a plan, which may be "no compression":
  torchrun --nnodes 2 --rdzv-backend c10d --rdzv-endpoint HOST:29500 \\
      -m gradwire line-rate --json line.json
  gradwire plan --model 25.6M --hosts 2 --measured line.json

Or estimate the gain for your own script, without changing it:
  gradwire profile -- torchrun --nproc-per-node 2 train.py

Or attach gradwire to your script, without changing it, and measure the gain:
  gradwire run --compare -- torchrun --nproc-per-node 2 train.py

In the script, add one line after DistributedDataParallel(...):
  attached = gradwire.attach(model)

Each run writes a record, and the record as an HTML page. All commands:
  gradwire --help
"""
"""First steps, printed by ``gradwire`` without arguments. Paragraphs of missing commands are omitted."""
_NAMED = re.compile(r"^ .*\bgradwire ([a-z][a-z-]*)", re.MULTILINE)


def start(known: Container[str]) -> str:
    """Return the paragraphs of ``START`` whose commands are installed."""
    paragraphs = START.split("\n\n")
    return "\n\n".join(each for each in paragraphs if all(name in known for name in _NAMED.findall(each)))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line ``gradwire``, and return the exit code.

    0: done. 1: a bug in gradwire, with its traceback. 2: the user's mistake, with one sentence on standard
    error. 130: interrupted. 128 + n: ended by signal n; 141 if standard output is closed. A command that runs
    another program may return the program's exit code.
    """
    words = sys.argv[1:] if arguments is None else list(arguments)
    sys.stdout, sys.stderr = sys.stdout or _nowhere(), sys.stderr or _nowhere()  # None if closed
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as stderr: file names may be invalid UTF-8
    return _run(words)


def _call(words: Sequence[str]) -> Call:
    """Return the ``Call`` for a command line, with the current folder's settings. Raises ``SpecError``."""
    if not words or words[0].startswith("-"):
        return Call()
    try:
        folder = Path.cwd()
    except FileNotFoundError as error:
        raise SpecError("the current folder has been deleted; change to an existing folder") from error
    settings = find_settings(folder)
    if settings is not None:
        settings.check_commands({*commands(), *ELSEWHERE})
    return Call(words[0], settings)


def _run(words: Sequence[str]) -> int:
    call = Call()
    try:
        call = _call(words)
        with serving(call):
            code = _dispatch(words)
            sys.stdout.flush()
        return code
    except GradwireError as error:
        if call.is_verbose:
            traceback.print_exception(error)
        return _mistake(f"{error}{call.note()}")
    except KeyboardInterrupt:
        sys.stderr.write("gradwire: interrupted\n")
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        return _closed()
    except OSError as error:
        return _mistake(f"the operating system reported: {error}")
    except SystemExit as leaving:
        if isinstance(leaving.__context__, BrokenPipeError):  # the package rich raises this exit
            return _closed()
        if isinstance(leaving.code, str):  # as Python does
            sys.stderr.write(f"{leaving.code}\n")
            return EXIT_BUG
        code = leaving.code or 0
        if code in EXITS_BY_SIGNAL:
            sys.stderr.write(f"gradwire: ended by {EXITS_BY_SIGNAL[code].name}\n")
        return code
    except Exception as error:
        missing = [
            f"this command needs {package}, which cannot be imported here ({import_problem(package)}); run "
            f"pip install {package}, and see 'gradwire doctor'"
            for package in filter(import_problem, NEEDED)
        ]
        if missing:
            return _mistake("; ".join(missing))
        traceback.print_exception(error)
        sys.stderr.write("gradwire: this is a bug; please report it with the lines above\n")
        return EXIT_BUG


def _mistake(sentence: str) -> int:
    sys.stderr.write(f"gradwire: {one_line(sentence)}\n")
    return EXIT_MISTAKE


def _nowhere() -> TextIO:
    return open(os.devnull, "w", encoding="utf-8")


def _closed() -> int:
    """Discard further output, which Python would flush at exit, and return the exit code of SIGPIPE."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return EXIT_CLOSED


def _dispatch(words: Sequence[str]) -> int:
    known = commands()
    if words and words[0] in ELSEWHERE and words[0] not in known:
        package = ELSEWHERE[words[0]]
        raise SpecError(
            f"gradwire {words[0]} is a command of {package}, which is not installed; run pip install "
            f"./packages/{package} in gradwire's source folder"
        )
    lines = "\n".join(f"  {name:<12}{summary}" for name, (summary, _) in known.items())
    parser = Parser(
        prog="gradwire",
        usage="gradwire COMMAND [options]",
        description="Make data-parallel PyTorch training over ordinary networks faster: compress the\n"
        "gradients, overlap their exchange, and predict the gain.",
        epilog=f"commands:\n{lines}\n\nexample:\n  gradwire doctor",
    )
    parser.add_argument("command", metavar="COMMAND", choices=known, help="one of the commands below")
    parser.add_argument("-h", "--help", action="help", help="show this text, or the options of COMMAND")
    number = f"gradwire {version()}"
    parser.add_argument("--version", action="version", version=number, help="show the version")
    if not words:
        sys.stdout.write(start(known))
        return 0
    command = parser.parse_args(words[:1]).command
    code: int | None = plugins.resolve(known[command][1])(words[1:])
    return code or 0
