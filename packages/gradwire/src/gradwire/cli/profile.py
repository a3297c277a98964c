"""``gradwire profile``: what gradwire would give a script that knows nothing of it."""

from __future__ import annotations

from collections.abc import Sequence

from gradwire.cli.parser import Parser, chosen, file_path, split_command
from gradwire.errors import SpecError, shown
from gradwire.files import check_writable
from gradwire.page import check_page
from gradwire.plan import MOST_HOSTS
from gradwire.profile.settings import Settings
from gradwire.units import parse_duration, parse_rate, parse_whole

MOST_STEPS = 10_000


def run(arguments: Sequence[str]) -> int:
    """Check the words, run the script, estimate and print; return the script's exit code."""
    own, command = split_command(arguments)
    words = _parser().parse_args(own)
    if not command:
        raise SpecError(
            "profile runs a script's own command, which stands behind '--': gradwire profile -- torchrun "
            "--nproc-per-node 2 train.py"
        )
    rates, hosts = _listed(words.rates), _hosts(words.hosts)
    for rate in rates:
        parse_rate(rate)
    for name, least, value in (("steps", 3, words.steps), ("warm-up", 2, words.warm_up)):
        if not least <= value <= MOST_STEPS:
            raise SpecError(f"expected {least} to {MOST_STEPS} for --{name}, got {value}")
    if words.tries:
        for name in ("goes_on", "rates", "hosts", "latency", "shared_machine", "json", "out"):
            if getattr(words, name):
                option = {"goes_on": "continue"}.get(name, name.replace("_", "-"))
                raise SpecError(
                    f"--try measures on this network and ends the script; leave out --{option}, or --try"
                )
    for name in ("json", "out"):
        if getattr(words, name) is not None:
            check_writable(f"--{name}", getattr(words, name), words.overwrite)
    if words.json is not None:
        check_page("--json", words.json, words.overwrite)
    latency_s = None if words.latency is None else parse_duration(words.latency)
    from gradwire.profile.run import ProfileOptions, profile  # imports torch, which takes seconds

    return profile(
        chosen(ProfileOptions, words, command=tuple(command), rates=rates, latency_s=latency_s, hosts=hosts)
    )


def _listed(text: str | None) -> tuple[str, ...]:
    return () if text is None else tuple(each.strip() for each in text.split(","))


def _hosts(text: str | None) -> tuple[int, ...]:
    found = []
    for each in _listed(text):
        number = parse_whole(each)
        if number is None or not 2 <= number <= MOST_HOSTS:
            raise SpecError(
                f"--hosts lists numbers from 2 to {MOST_HOSTS}, such as 2,4,8, but has {shown(each)}"
            )
        found.append(number)
    return tuple(dict.fromkeys(found))


def _parser() -> Parser:
    parser = Parser(
        prog="gradwire profile",
        usage="gradwire profile [options] -- COMMAND ...",
        description="Run a script that trains with DDP or FSDP2 for some steps, unchanged, and\n"
        "estimate its steps with gradwire.attach: on this network, and on others. The\n"
        "script is stopped after these steps.",
        epilog="example:\n  gradwire profile --rates 1gbit,10gbit --hosts 2,4,8 -- \\\n"
        "    torchrun --nproc-per-node 2 train.py",
    )
    group = parser.add_argument_group("which steps")
    steps, warm_up = Settings.steps, Settings.warm_up
    group.add_argument("--steps", type=int, metavar="N", default=steps, help=f"steps that count ({steps})")
    group.add_argument(
        "--warm-up", type=int, metavar="N", default=warm_up, help=f"steps before them ({warm_up})"
    )
    group.add_argument(
        "--continue", dest="goes_on", action="store_true", help="let the script go on to its own end"
    )
    group.add_argument(
        "--try",
        dest="tries",
        action="store_true",
        help="then attach gradwire, and measure its steps",
    )
    group = parser.add_argument_group("where else")
    group.add_argument("--rates", metavar="LIST", help="other networks, e.g. 100mbit,1gbit,10gbit")
    group.add_argument("--latency", metavar="T", help="of those (50us)")
    group.add_argument("--hosts", metavar="LIST", help="numbers of hosts (as many as there are ranks)")
    group.add_argument("--shared-machine", action="store_true", help="all hosts are this one (testbed)")
    group = parser.add_argument_group("results")
    group.add_argument("--json", type=file_path, metavar="FILE", help="all estimates, for programs")
    group.add_argument("--out", type=file_path, metavar="FILE", help="the plan for this network")
    group.add_argument("--overwrite", action="store_true", help="replace older files")
    group.add_argument("-h", "--help", action="help", help="show this text")
    return parser
