"""``gradwire testbed``: a network with real rate limits, and a command that runs on every host."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from types import MappingProxyType

from gradwire.cli.parser import Parser, add_folder, add_timeout, add_usual, add_values, file_path, seconds
from gradwire.errors import SpecError
from gradwire.files import STANDARD_OUTPUT, check_folder_new, read_text, write_files
from gradwire.units import format_duration, parse_rate
from gradwire_lab.testbed.bed import GRACE_S, Testbed, check_command, inherited_environment
from gradwire_lab.testbed.delay_line import RelayReport
from gradwire_lab.testbed.layout import Impairment
from gradwire_lab.testbed.output import CommandRun, Logs, Sink, show
from gradwire_lab.testbed.registry import clean
from gradwire_lab.testbed.topology import NIC_HOST, NIC_LINK, USUAL_MTU_NBYTES, Topology, equal_groups

ACTIONS = MappingProxyType(
    {
        "run": "create a network, run a command on every host, remove it",
        "clean": "remove processes and files of killed testbeds",
    }
)
HOSTS = 4
RATE = "1gbit"
RECORD = "record.json"
LONGEST_S = 7 * 86400.0


def run(arguments: Sequence[str]) -> int:
    """Run ``gradwire testbed``; return its exit code. Raises ``GradwireError``."""
    lines = "\n".join(f"  {name:<8}{summary}" for name, summary in ACTIONS.items())
    parser = Parser(
        prog="gradwire testbed",
        usage="gradwire testbed ACTION [options] [-- COMMAND ...]",
        description="Linux network namespaces with rate limits, isolated from the machine's network.",
        epilog=f"actions:\n{lines}\n\nexample:\n  gradwire testbed run --hosts 4 --rate 1gbit -- ./train.sh",
    )
    parser.add_argument("action", metavar="ACTION", choices=ACTIONS, help="one of the actions below")
    parser.add_argument("-h", "--help", action="help", help="show this text, or the options of ACTION")
    if not arguments:
        parser.error(f"expected an action, got none; pass one of {', '.join(ACTIONS)}")
    action = parser.parse_args(arguments[:1]).action
    return (_run if action == "run" else _clean)(arguments[1:])


def _clean(arguments: Sequence[str]) -> int:
    parser = Parser(
        prog="gradwire testbed clean",
        usage="gradwire testbed clean",
        description="Remove processes and files of this user's killed testbeds; running ones stay.",
        epilog="example:\n  gradwire testbed clean",
    )
    add_usual(parser)
    parser.parse_args(arguments)
    sys.stdout.write("".join(f"{line}\n" for line in clean()))
    return 0


def _run(arguments: Sequence[str]) -> int:
    options, command = _parser().parse_command(arguments, "python train.py")
    topology = _topology(options)
    for option, limit_s in (("--timeout", options.timeout_s), ("--grace", options.grace)):
        if limit_s is not None and not 0 <= limit_s <= LONGEST_S:
            raise SpecError(
                f"expected {option} from 0 to {LONGEST_S:g} seconds, got {limit_s:g}; pass e.g. {option} 60s"
            )
    if options.out is not None:
        check_folder_new("--out", options.out, [RECORD], options.overwrite)
    _check_launcher(command)
    check_command(command, inherited_environment()["PATH"], Path.cwd())
    bed = Testbed(topology, nic=_nic(options.nic))
    done = _perform(bed, command, options.out, options.timeout_s, options.grace)
    if done.failure is not None:
        sys.stderr.write(f"gradwire: {done.failure}\n")
    return done.exit_code


LAUNCHER = "torchrun"
OF_SEVERAL_HOSTS = ("--nnodes", "--rdzv-endpoint", "--rdzv_endpoint", "--master-addr", "--master_addr")
"""The options with which the launcher joins the processes of several hosts to one job."""


def _check_launcher(command: Sequence[str]) -> None:
    """Raise ``SpecError`` if the command starts a launcher that would start a separate job on each host."""
    launcher = next((place for place, word in enumerate(command) if Path(word).name == LAUNCHER), None)
    if launcher is None or any(word.partition("=")[0] in OF_SEVERAL_HOSTS for word in command):
        return
    script = next((place for place, word in enumerate(command) if word.endswith(".py")), len(command))
    right = [*command[:launcher], "python", *(command[script:] or ["train.py"])]
    raise SpecError(
        f"expected a command for one rank on each host, got {LAUNCHER}, which would start a separate job on "
        f"each; omit {LAUNCHER}, because the testbed sets the variables of a rank: {shlex.join(right)}"
    )


def _perform(
    bed: Testbed, command: Sequence[str], out: Path | None, timeout_s: float | None, grace_s: float
) -> CommandRun:
    with ExitStack() as stack:
        stack.enter_context(bed)
        if bed.impairment is not None:
            sys.stdout.write(f"network: {impairment_in_words(bed.topology, bed.impairment)}\n")
        sinks: tuple[Sink, ...] = (show,)
        if out is not None:
            sinks = show, stack.enter_context(closing(Logs(out, bed.topology.hosts)))
        done = bed.run(command, timeout_s=timeout_s, grace_s=grace_s, sinks=sinks)
        if done.relay is not None:
            _show_relay(done.relay)
        if out is not None:
            write_files({out / RECORD: done.to_json().encode()})
            sys.stdout.write(f"record and logs are in {out}\n")
    return done


def impairment_in_words(topology: Topology, impairment: Impairment) -> str:
    """Return the delay, jitter, and loss of frames, and the mechanism behind them, as text."""
    words = f"{format_duration(topology.delay_s)} of delay, one way"
    if topology.jitter_s > 0:
        words += f", +-{format_duration(topology.jitter_s)} of jitter"
    if topology.loss > 0:
        words += f", {100 * topology.loss:g} % of packets lost"
    by = "the kernel's netem" if impairment == "netem" else "a relay, because this kernel lacks sch_netem"
    return f"{words}, by {by}"


def _show_relay(report: RelayReport) -> None:
    sys.stdout.write(f"relay: {report}\n")
    if report.overruns or report.refused:
        sys.stdout.flush()
        sys.stderr.write(
            f"gradwire: {report.overruns} frames were lost because they arrived faster than the relay read, "
            f"and hosts' links refused {report.refused} frames; lower --rate, or run the testbed as root, "
            "which allows larger buffers\n"
        )


def _parser() -> Parser:
    parser = Parser(
        prog="gradwire testbed run",
        usage="gradwire testbed run [options] -- COMMAND ...",
        description="Run COMMAND on every host of a new network, with torchrun's variables.",
        epilog="exit code: 0, or the first failed host's; 124 after --timeout\n\n"
        "example:\n  gradwire testbed run --hosts 4 --rate 1gbit -- python train.py",
    )
    group = parser.add_argument_group("network")
    add_values(
        group,
        ("--hosts", "N", int, None, f"number of hosts, 1 to 64 (default: {HOSTS})"),
        ("--rate", "RATE", None, None, f"rate of each host's link, each way (default: {RATE})"),
        ("--host-rates", "LIST", None, None, "rates by host, such as 1gbit,1gbit,100mbit"),
        ("--delay", "TIME", seconds, None, "one-way delay of every frame, such as 1ms (default: 0)"),
        ("--jitter", "TIME", seconds, None, "largest deviation of the delay (default: 0)"),
        ("--loss", "P", float, None, "lose this share of packets, such as 0.001 (default: 0)"),
        ("--groups", "N", int, None, "switches with equal numbers of hosts (default: 1)"),
        ("--core", "RATE", None, None, "rate of each uplink, each way (default: unlimited)"),
        ("--mtu", "NBYTES", int, None, f"MTU of every link (default: {USUAL_MTU_NBYTES})"),
        ("--topology", "FILE", file_path, None, "JSON file with the whole network"),
        ("--nic", "SPEC", None, None, "NICs with this codec, and options of gradwire nic (default: none)"),
    )
    group = parser.add_argument_group("run")
    add_timeout(group, None, "after which all hosts are killed")
    grace = "time for other hosts to end after a failure (default: 5s)"
    add_values(group, ("--grace", "TIME", seconds, GRACE_S, grace))
    add_folder(group, "none")
    add_usual(group)
    return parser


def _nic(words: str | None) -> list[str]:
    """Check a codec and options, and return their ``gradwire nic`` command. Raises ``SpecError``."""
    if words is None:
        return []
    try:
        codec, *others = shlex.split(words)
    except ValueError as error:
        raise SpecError(
            f"expected a codec and options for --nic, such as 'inceptionn:2^-10 --json -', got {words!r}; "
            "begin with a codec, and close all quotation marks"
        ) from error
    from gradwire_gateware.cli import nic  # imported here, because it needs the compiled kernels

    given = nic.parser().parse_args(["--host", NIC_HOST, "--link", NIC_LINK, "--codec", codec, *others])
    nic.settings_of(given)
    if given.json not in (None, STANDARD_OUTPUT):
        raise SpecError(
            f"expected --json - in --nic, got --json {given.json}, which all NICs would write; pass --json - "
            "to write each NIC's counters to its host's standard error"
        )
    return [sys.executable, "-m", "gradwire", "nic", "--codec", codec, *others]


def _topology(options: argparse.Namespace) -> Topology:
    if options.topology is not None:
        named = ("hosts", "rate", "host_rates", "delay", "jitter", "loss", "groups", "core", "mtu")
        given = [name for name in named if getattr(options, name) is not None]
        if given:
            raise SpecError(
                f"expected --topology without --{given[0].replace('_', '-')}, got both; omit "
                f"--{given[0].replace('_', '-')}"
            )
        return _read(options.topology)
    rates = _rates(options)
    return Topology(
        rates,
        equal_groups(len(rates), 1 if options.groups is None else options.groups),
        parse_rate(options.core),
        0.0 if options.delay is None else options.delay,
        USUAL_MTU_NBYTES if options.mtu is None else options.mtu,
        0.0 if options.jitter is None else options.jitter,
        0.0 if options.loss is None else options.loss,
    )


def _rates(options: argparse.Namespace) -> tuple[float | None, ...]:
    if options.host_rates is None:
        hosts = HOSTS if options.hosts is None else options.hosts
        return Topology.even(hosts, RATE if options.rate is None else options.rate).rates_nbytes_per_s
    if options.rate is not None:
        raise SpecError("expected --rate or --host-rates, got both; omit one")
    rates = tuple(parse_rate(rate) for rate in options.host_rates.split(","))
    if options.hosts not in (None, len(rates)):
        raise SpecError(f"expected {options.hosts} rates for --host-rates, got {len(rates)}; omit --hosts")
    return Topology(rates).rates_nbytes_per_s


def _read(path: Path) -> Topology:
    try:
        text = read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it isn't UTF-8 text"
        raise SpecError(f"--topology {path} cannot be read: {reason}; pass another file") from error
    try:
        return Topology.from_json(text)
    except SpecError as error:
        raise SpecError(f"--topology {path}: {error}") from error
