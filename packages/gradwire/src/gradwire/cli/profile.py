"""``gradwire profile``: estimate the step time of an unchanged script with gradwire."""

from __future__ import annotations

from collections.abc import Sequence

from gradwire.cli.lists import between_commas
from gradwire.cli.parser import Parser, add_json, add_overwrite, add_save, add_usual, check_range, chosen
from gradwire.errors import SpecError, shown
from gradwire.page import check_results
from gradwire.plan import MOST_HOSTS
from gradwire.profile.settings import Settings
from gradwire.units import parse_duration, parse_rate, parse_whole

MOST_STEPS = 10_000


def run(arguments: Sequence[str]) -> int:
    """Run ``gradwire profile``: check the options, profile the script, and return the script's exit code."""
    words, command = _parser().parse_command(arguments, "torchrun --nproc-per-node 2 train.py")
    rates = () if words.rates is None else between_commas(words.rates)
    hosts = () if words.hosts is None else _hosts(words.hosts)
    for rate in rates:
        parse_rate(rate)
    check_range("--steps", words.steps, 3, MOST_STEPS)
    check_range("--warm-up", words.warm_up, 2, MOST_STEPS)
    if words.tries:
        for name in ("goes_on", "rates", "hosts", "latency", "shared_machine", "json", "save"):
            if getattr(words, name):
                option = {"goes_on": "continue"}.get(name, name.replace("_", "-"))
                why = "--try measures on this network and ends the script"
                raise SpecError(f"expected --try or --{option}, got both; omit one, because {why}")
    check_results(words.json, "--save", words.save, words.overwrite)
    latency_s = None if words.latency is None else parse_duration(words.latency)
    from gradwire.profile.run import ProfileOptions, profile  # imports torch, which takes seconds

    return profile(
        chosen(ProfileOptions, words, command=tuple(command), rates=rates, latency_s=latency_s, hosts=hosts)
    )


def _hosts(text: str) -> tuple[int, ...]:
    found = []
    for each in between_commas(text):
        number = parse_whole(each)
        if number is None or not 2 <= number <= MOST_HOSTS:
            raise SpecError(
                f"expected numbers from 2 to {MOST_HOSTS} for --hosts, such as 2,4,8, got {shown(each)}; "
                "pass numbers in this range, separated by commas"
            )
        found.append(number)
    return tuple(dict.fromkeys(found))


def _parser() -> Parser:
    parser = Parser(
        prog="gradwire profile",
        usage="gradwire profile [options] -- COMMAND ...",
        description="Run some steps of an unchanged script that trains with DDP or FSDP2, and\n"
        "estimate its step time with gradwire.attach, on this and other networks. The\n"
        "script is stopped after these steps.",
        epilog="example:\n  gradwire profile --rates 1gbit,10gbit --hosts 2,4,8 -- \\\n"
        "    torchrun --nproc-per-node 2 train.py",
    )
    group = parser.add_argument_group("steps")
    steps, warm_up = Settings.steps, Settings.warm_up
    group.add_argument(
        "--steps", type=int, metavar="N", default=steps, help=f"measured steps (default: {steps})"
    )
    group.add_argument(
        "--warm-up",
        type=int,
        metavar="N",
        default=warm_up,
        help=f"steps before the measured steps (default: {warm_up})",
    )
    group.add_argument(
        "--continue", dest="goes_on", action="store_true", help="let the script run to its end"
    )
    group.add_argument(
        "--try",
        dest="tries",
        action="store_true",
        help="afterwards, measure steps with gradwire attached",
    )
    group = parser.add_argument_group("other networks")
    group.add_argument("--rates", metavar="LIST", help="link rates to compare: 100mbit,1gbit,10gbit")
    group.add_argument("--latency", metavar="TIME", help="latency of each link (default: 50us)")
    group.add_argument(
        "--hosts", metavar="N", help="number of hosts, or several numbers: 2,4,8 (default: the ranks)"
    )
    group.add_argument("--shared-machine", action="store_true", help="all hosts share this machine (testbed)")
    group = parser.add_argument_group("results")
    add_json(group)
    add_save(group)
    add_overwrite(group)
    add_usual(group)
    return parser
