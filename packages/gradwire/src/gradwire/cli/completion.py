"""``gradwire completion``: a script that completes commands, options, and values in bash, zsh, or fish.

The script contains the names of all commands that are installed when it is printed, so completing a word
starts no process.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from gradwire.cli.parser import Parser, add_usual
from gradwire.cli.walk import choices, walk

FILES, FOLDERS = "<files>", "<folders>"
"""Placeholders for option values that the shell itself completes: paths of files, and paths of folders."""


def run(arguments: Sequence[str]) -> None:
    """Run ``gradwire completion``: print the script for a shell."""
    parser = Parser(
        prog="gradwire completion",
        usage="gradwire completion SHELL [options]",
        description="Print a script that completes gradwire's commands and options. Print it again\n"
        "after installing a package with commands.",
        epilog="example:\n  gradwire completion bash > ~/.local/share/bash-completion/completions/gradwire\n"
        "  gradwire completion zsh > ~/.zfunc/_gradwire  # a folder of $fpath\n"
        "  gradwire completion fish > ~/.config/fish/completions/gradwire.fish",
    )
    parser.add_argument("shell", metavar="SHELL", choices=SHELLS, help=f"{', '.join(SHELLS)}")
    add_usual(parser)
    words = parser.parse_args(arguments)
    sys.stdout.write(SHELLS[words.shell](tuple(nodes())))


@dataclass(frozen=True)
class Option:
    """One option: its names, its help, and the values that the shell offers, or None without a value."""

    names: tuple[str, ...]
    text: str
    values: tuple[str, ...] | None


@dataclass(frozen=True)
class Node:
    """A command or sub-command."""

    words: tuple[str, ...]
    inner: Mapping[str, str]  # its sub-commands, with their help
    values: tuple[str, ...]  # of its argument
    options: tuple[Option, ...]
    runs: bool = False  # whether it runs another program, whose command line follows ``--``

    @property
    def path(self) -> str:
        """The words of the command, separated by spaces."""
        return " ".join(self.words)


def nodes() -> Iterator[Node]:
    """Yield ``gradwire`` itself, and all commands and sub-commands."""
    from gradwire.cli.main import commands  # also imports this module's command

    known = commands()
    usual = (Option(("-h", "--help"), "show help", None), Option(("--version",), "show the version", None))
    yield Node((), {name: text for name, (text, _) in known.items()}, (), usual)
    parsers = dict(walk(known))
    for words, parser in parsers.items():
        if parser is None:
            yield Node(words, {}, (FILES,), ())
            continue
        inner = [name for name in choices(parser) if (*words, name) in parsers]
        values, options = list[str](), list[Option]()
        for action in parser._actions:
            if action.option_strings:
                text = " ".join((action.help or "").split()).replace("%%", "%")
                offered = None if action.nargs == 0 else _values(action)
                options.append(Option(tuple(action.option_strings), text, offered))
            elif not inner:
                values += _values(action)
        runs = "-- COMMAND" in (parser.usage or "") and not inner
        yield Node(words, dict.fromkeys(inner, ""), tuple(values), tuple(options), runs)


def _values(action: argparse.Action) -> tuple[str, ...]:
    if action.choices is not None:
        return tuple(map(str, action.choices))
    if action.metavar == "SPEC":
        from gradwire.codecs import known_names

        return tuple(sorted(known_names()))
    return _BY_METAVAR.get(str(action.metavar), ())


_BY_METAVAR = MappingProxyType({"FILE": (FILES,), "PATH": (FILES,), "DIR": (FOLDERS,)})


# bash and zsh: one function, whose ``case`` statements contain the names of commands, options, and values.


def _script(
    found: Sequence[Node],
    template: str,
    listed: Callable[[Iterable[tuple[str, str]]], str],
    offer: Callable[[Sequence[str]], str],
) -> str:
    """Return ``template`` with the patterns and statements of its ``case`` statements.

    ``listed`` writes names with their help as a value, and ``offer`` writes a statement that offers values.
    """
    names = ((node, [(name, each.text) for each in node.options for name in each.names]) for node in found)
    takers = ((node, option) for node in found for option in node.options if option.values is not None)
    cases = {
        "inner": [(node.path, f"inner={listed(node.inner.items())}") for node in found if node.inner],
        "options": [(node.path, f"options={listed(each)}") for node, each in names],
        "values": [
            (f"{node.path} {name}", f"{offer(option.values or ())}; return")
            for node, option in takers
            for name in option.names
        ],
        "arguments": [(node.path, offer(node.values)) for node in found if node.values and node.words],
    }
    lines = {
        name: "\n".join(f"    {shlex.quote(pattern)}) {statement} ;;" for pattern, statement in each)
        for name, each in cases.items()
    }
    return template.format(**lines, runs="|".join(shlex.quote(node.path) for node in found if node.runs))


def bash(found: Sequence[Node]) -> str:
    """Return the script for bash, which doesn't need the package bash-completion."""

    def listed(pairs: Iterable[tuple[str, str]]) -> str:
        return shlex.quote(" ".join(name for name, _ in pairs))

    return _script(found, _BASH, listed, _bash_offer)


def _bash_offer(values: Sequence[str]) -> str:
    if values in ((FILES,), (FOLDERS,)):
        kind = "f" if values == (FILES,) else "d"
        return f'compopt -o filenames; mapfile -t COMPREPLY < <(compgen -{kind} -- "$current")'
    return f"_gradwire_offer {shlex.quote(' '.join(values))}" if values else ":"


_BASH = """\
# Completion of gradwire in bash, by "gradwire completion bash".
_gradwire_offer() {{
  mapfile -t COMPREPLY < <(compgen -W "$1" -- "$current")
}}

_gradwire() {{
  local current="${{COMP_WORDS[COMP_CWORD]}}" previous="${{COMP_WORDS[COMP_CWORD-1]}}"
  local path="" inner="" options="" place word
  COMPREPLY=()
  for ((place = 1; place < COMP_CWORD; place++)); do
    word="${{COMP_WORDS[place]}}"
    if [[ "$word" == -- ]]; then
      case "$path" in
        {runs}) _gradwire_command $((place + 1)) ;;
      esac
      return
    fi
    inner=""
    case "$path" in
{inner}
    esac
    if [[ " $inner " == *" $word "* ]]; then path="${{path:+$path }}$word"; fi
  done
  inner=""
  case "$path" in
{inner}
  esac
  case "$path" in
{options}
  esac
  case "$path $previous" in
{values}
  esac
  if [[ "$current" == -* ]]; then
    _gradwire_offer "$options"
  elif [[ -n "$inner" ]]; then
    _gradwire_offer "$inner"
  else
    case "$path" in
{arguments}
    esac
  fi
}}

_gradwire_command() {{
  if declare -F _command_offset > /dev/null; then
    _command_offset "$1"
  elif ((COMP_CWORD == $1)); then
    mapfile -t COMPREPLY < <(compgen -c -- "$current")
  else
    compopt -o filenames
    mapfile -t COMPREPLY < <(compgen -f -- "$current")
  fi
}}

complete -F _gradwire gradwire
"""


def zsh(found: Sequence[Node]) -> str:
    """Return the script for zsh, to be placed on ``$fpath`` or sourced."""

    def listed(pairs: Iterable[tuple[str, str]]) -> str:
        described = (shlex.quote(f"{name}:{text}" if text else name) for name, text in pairs)
        return f"({' '.join(described)})"

    return _script(found, _ZSH, listed, _zsh_offer)


def _zsh_offer(values: Sequence[str]) -> str:
    if values in ((FILES,), (FOLDERS,)):
        return "_files" if values == (FILES,) else "_files -/"
    return f"compadd -- {shlex.join(values)}" if values else "_message value"


_ZSH = """\
#compdef gradwire
# Completion of gradwire in zsh, by "gradwire completion zsh".
_gradwire() {{
  local current="${{words[CURRENT]}}" previous="${{words[CURRENT-1]}}" found_path="" word
  local -a inner options
  local -i place
  for ((place = 2; place < CURRENT; place++)); do
    word="${{words[place]}}"
    if [[ "$word" == -- ]]; then
      case "$found_path" in
        {runs}) shift place words; ((CURRENT -= place)); _normal ;;
      esac
      return
    fi
    inner=()
    case "$found_path" in
{inner}
    esac
    if (( ${{inner[(I)$word:*]}} || ${{inner[(Ie)$word]}} )); then
      found_path="${{found_path:+$found_path }}$word"
    fi
  done
  inner=()
  case "$found_path" in
{inner}
  esac
  case "$found_path" in
{options}
  esac
  case "$found_path $previous" in
{values}
  esac
  if [[ "$current" == -* ]]; then
    _describe -o option options
  elif (( ${{#inner}} )); then
    _describe command inner
  else
    case "$found_path" in
{arguments}
    esac
  fi
}}

if [[ "${{funcstack[1]}}" == _gradwire ]]; then _gradwire "$@"; else compdef _gradwire gradwire; fi
"""


# fish: a line for each name, with a condition on the words before it.


def fish(found: Sequence[Node]) -> str:
    """Return the script for fish, to be placed in its folder of completions."""
    inner = "\n".join(
        f"            case {_fish_quoted(node.path)}\n                set inner {' '.join(node.inner)}"
        for node in found
        if node.inner
    )
    lines = [line for node in found for line in _fish_lines(node)]
    return "\n".join([_FISH.format(inner=inner), *lines, ""])


def _fish_lines(node: Node) -> Iterator[str]:
    start = f"complete -c gradwire -n {_fish_quoted(f'__gradwire_at {node.path}'.strip())}"
    for name, text in node.inner.items():
        yield f"{start} -a {shlex.quote(name)}{_fish_text(text)}"
    if node.values:
        yield f"{start}{_fish_offer(node.values)}"
    for option in node.options:
        names = " ".join(
            f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in option.names
        )
        takes = "" if option.values is None else f" -r{_fish_offer(option.values)}"
        yield f"{start} {names}{takes}{_fish_text(option.text)}"
    if node.runs:
        after = _fish_quoted(f"__gradwire_at {node.path} --")
        yield f"complete -c gradwire -n {after} -a '(__gradwire_command)'"


def _fish_text(text: str) -> str:
    return f" -d {_fish_quoted(text)}" if text else ""


def _fish_quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _fish_offer(values: Sequence[str]) -> str:
    if values == (FILES,):
        return " -F"
    if values == (FOLDERS,):
        return " -x -a '(__fish_complete_directories)'"
    return f" -x -a {_fish_quoted(' '.join(values))}" if values else " -x"


_FISH = """\
# Completion of gradwire in fish, by "gradwire completion fish".
function __gradwire_path
    set -l words (commandline -opc)
    set -e words[1]
    set -l path
    for word in $words
        if test "$word" = --
            echo "$path --"
            return
        end
        set -l inner
        switch "$path"
{inner}
        end
        if contains -- "$word" $inner
            set path (string trim -- "$path $word")
        end
    end
    echo "$path"
end

function __gradwire_at
    set -l path (__gradwire_path)
    test "$path" = "$argv"
end

function __gradwire_command
    set -l words (commandline -opc)
    set -l skipped (contains -i -- -- $words)
    __fish_complete_subcommand --fcs-skip=$skipped
end

complete -c gradwire -f
"""


SHELLS: Mapping[str, Callable[[Sequence[Node]], str]] = MappingProxyType(
    {"bash": bash, "zsh": zsh, "fish": fish}
)
"""The shells, and the functions that generate their scripts."""
