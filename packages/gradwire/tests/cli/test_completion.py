"""The scripts of completion, tried in the shells themselves."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gradwire.cli import main
from gradwire.cli.completion import SHELLS
from gradwire.cli.main import COMMANDS
from gradwire.cli.parser import Parser, add_usual, file_path

MAIN = sys.modules["gradwire.cli.main"]


def hello(words: list[str]) -> None:
    """Stand for a command of another package, with an argument, a choice, and a command after ``--``."""
    made = Parser("gradwire hello", "Say hello to 'all': you, me.", "gradwire hello [options] -- COMMAND", "")
    made.add_argument("--tone", metavar="T", choices=["warm", "wry"], help="the tone: 50 %% warm, or 'wry'")
    made.add_argument("--data", metavar="FILE", type=file_path, help="a file")
    made.add_argument("--codec", metavar="SPEC", help="a codec")
    add_usual(made)
    made.parse_args(words)


@pytest.fixture(autouse=True)
def scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    """A folder with the script for each shell, of the core's commands and another package's."""
    monkeypatch.setattr("gradwire.cli.codecs.hello", hello, raising=False)
    known = {name: (text, f"gradwire.cli.{name.replace('-', '_')}:run") for name, text in COMMANDS.items()}
    known["hello"] = ("say hello to 'all': you, me", "gradwire.cli.codecs:hello")
    monkeypatch.setattr(MAIN, "commands", lambda: known)
    for shell in SHELLS:
        assert main(["completion", shell]) == 0
        (tmp_path / f"script.{shell}").write_text(capsys.readouterr().out)
    folder = tmp_path / "here"
    (folder / "inner").mkdir(parents=True)
    (folder / "data.pt").touch()
    return tmp_path


CASES = [
    ("he", ["hello"]),
    ("pr", ["profile"]),
    ("completion ", ["bash", "fish", "zsh"]),
    ("completion bash --qu", ["--quiet"]),
    ("hello --", ["--codec", "--data", "--help", "--quiet", "--tone", "--verbose"]),
    ("hello --tone w", ["warm", "wry"]),
    ("hello --codec fp", ["fp16", "fp8"]),
    ("hello --data d", ["data.pt"]),
    ("codecs ec", ["ecsq"]),
    ("plan --save", ["--save"]),
    ("hello --tone warm -- gradwire-comp", ["gradwire-completed"]),
    ("plan hello", []),
]
"""The words after ``gradwire``, and what completes the last one."""

BASH = """
source "$1"
read -ra COMP_WORDS <<< "gradwire $2"
if [[ "$2" == *" " ]]; then COMP_WORDS+=(""); fi
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
compopt() { :; }
_gradwire
printf '%s\\n' "${COMPREPLY[@]}"
"""


def environment(folder: Path) -> dict[str, str]:
    """Return an environment whose path has a program with a unique name."""
    programs = folder / "programs"
    programs.mkdir(exist_ok=True)
    program = programs / "gradwire-completed"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    home = {
        "HOME": str(folder),
        "XDG_CONFIG_HOME": str(folder),
        "XDG_DATA_HOME": str(folder),
        "ZDOTDIR": str(folder),
    }
    return os.environ | home | {"PATH": f"{programs}:{os.environ['PATH']}", "TERM": "dumb"}


def output(command: list[str], folder: Path) -> list[str]:
    """Return the sorted lines that a shell prints."""
    done = subprocess.run(
        command, cwd=folder / "here", env=environment(folder), stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.stderr == ""
    return sorted({line.partition("\t")[0] for line in done.stdout.splitlines()} - {""})


def needs(shell: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(shell) is None, reason=f"{shell} isn't installed")


def test_every_shell_gets_every_command_and_option(scripts: Path) -> None:
    for shell in SHELLS:
        script = (scripts / f"script.{shell}").read_text()
        for word in (*COMMANDS, "hello", "verbose", "timeout"):
            assert re.search(rf"\b{word}\b", script), (shell, word)


@needs("bash")
@pytest.mark.processes
def test_bash_completes(scripts: Path) -> None:
    for words, expected in CASES:
        found = output(["bash", "--norc", "-c", BASH, "bash", str(scripts / "script.bash"), words], scripts)
        assert found == expected, words


@needs("fish")
@pytest.mark.processes
def test_fish_completes(scripts: Path) -> None:
    for words, expected in CASES:
        said = f"source {scripts / 'script.fish'}; complete -C 'gradwire {words}'"
        assert output(["fish", "--no-config", "-c", said], scripts) == expected, words


@needs("zsh")
@pytest.mark.processes
def test_zsh_completes(scripts: Path) -> None:
    with zsh(scripts) as complete:
        for words, expected in CASES:
            assert complete(words) == expected, words


LISTED = "@@"
SET_UP = f"""\
PROMPT='' RPROMPT=''; autoload -Uz compinit; compinit -u -D; source %s; \
compadd () {{ local -a hits; builtin compadd -O hits "$@"; builtin compadd "$@"; \
print -r -- {LISTED} $hits }}; cd here; print rea''dy
"""
"""Every match that zsh's own ``compadd`` accepts is printed."""


@contextmanager
def zsh(folder: Path) -> Iterator[Callable[[str], list[str]]]:
    """Yield a function that returns what completes the last of some words in an interactive zsh."""
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(folder)
        os.execvpe("zsh", ["zsh", "-f", "-i", "-o", "no_beep"], environment(folder))

    def complete(words: str) -> list[str]:
        os.write(terminal, f"gradwire {words}\t".encode())
        said = read_until(terminal, None, 1.5).decode(errors="replace")
        os.write(terminal, b"\x15")  # clear the line
        read_until(terminal, None, 0.3)
        hits = re.findall(rf"{LISTED} ([^\r\n]*)", said)
        return sorted({hit for line in hits for hit in line.split()})

    try:
        os.write(terminal, (SET_UP % (folder / "script.zsh")).encode())
        read_until(terminal, b"ready\r\n", 60)
        yield complete
    finally:
        os.close(terminal)
        os.waitpid(process, 0)


def read_until(terminal: int, end: bytes | None, seconds: float) -> bytes:
    """Read to a text, or until nothing is written for ``seconds``."""
    found, deadline = b"", time.monotonic() + seconds
    while time.monotonic() < deadline and (end is None or end not in found):
        if select.select([terminal], [], [], 0.05)[0]:
            found += os.read(terminal, 1 << 16)
            deadline = time.monotonic() + seconds
    assert end is None or end in found, found
    return found
