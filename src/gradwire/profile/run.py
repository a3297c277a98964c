"""What ``gradwire profile`` does once its words are read: watch, measure, estimate, print, write."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gradwire.auto.estimates.estimate import Estimate, Place, places
from gradwire.auto.estimates.measure import estimator
from gradwire.auto.estimates.observed import Observed
from gradwire.auto.estimates.report import report
from gradwire.files import write_files
from gradwire.launch.signals import ending_on_signals
from gradwire.page import keep
from gradwire.planner.inputs.cluster import ASSUMED_LATENCY_S
from gradwire.profile.lifeline import private_folder
from gradwire.profile.page import SCHEMA, page_of
from gradwire.profile.script import read_observed, read_tried, run_script
from gradwire.profile.settings import Settings
from gradwire.records import make_record
from gradwire.tables import show
from gradwire.testbed.current import is_inside
from gradwire.timing.replay.line import Line
from gradwire.units import parse_rate


@dataclass(frozen=True)
class Wanted:
    """What a user wants to know.

    Attributes
    ----------
    command
        What starts the script.
    rates, latency_s
        Networks besides the present one, as in ``10gbit``.
    hosts
        How many of them; as many as there are ranks, if none are named.
    shared_machine
        Whether all of them are this machine.
    steps, warm_up, goes_on, tries
        As in ``Settings``.
    json, out
        Files for all estimates, and for the plan on the present network.
    """

    command: tuple[str, ...]
    rates: tuple[str, ...] = ()
    latency_s: float = ASSUMED_LATENCY_S
    hosts: tuple[int, ...] = ()
    shared_machine: bool = False
    steps: int = Settings.steps
    warm_up: int = Settings.warm_up
    goes_on: bool = False
    tries: bool = False
    json: Path | None = None
    out: Path | None = None

    @property
    def networks(self) -> list[tuple[str, Line]]:
        """The lines that the rates name."""
        found = []
        for rate in self.rates:
            nbytes_per_s = parse_rate(rate)
            found.append((rate, Line(self.latency_s, float("inf") if nbytes_per_s is None else nbytes_per_s)))
        return found


def profile(wanted: Wanted) -> int:
    """Do it; return the script's exit code. Raises ``GradwireError``."""
    with ending_on_signals(), private_folder() as folder:
        settings = Settings(str(folder), wanted.steps, wanted.warm_up, wanted.goes_on, wanted.tries)
        code = run_script(wanted.command, settings)
        tried = read_tried(settings, code) if wanted.tries else None
        observed = None if wanted.tries else read_observed(settings, code)
    if tried is not None:
        show(*tried.report())
        return code
    if observed is None:
        show("This machine has watched its ranks; the result is printed where rank 0 runs.")
        return code
    found, predicted_s = estimates(observed, wanted)
    show(*report(observed, found, predicted_s))
    _write(wanted, observed, found)
    return code


def estimates(observed: Observed, wanted: Wanted) -> tuple[list[Estimate], float | None]:
    """Return an estimate for each network and number of hosts, after some seconds of measuring.

    Besides, what the model says of the step that was observed, which is known.
    """
    where: Sequence[Place] = places(
        observed,
        wanted.networks,
        wanted.hosts,
        shared_machine=wanted.shared_machine or is_inside(),
    )
    measured = estimator(observed, [each.line for each in where], max(each.hosts for each in where))
    here = [measured.plain_s(each) for each in where if each.is_here]
    return [measured.at(each) for each in where], here[0] if here else None


def _write(wanted: Wanted, observed: Observed, found: Sequence[Estimate]) -> None:
    plan: dict[Path, bytes] = {}
    if wanted.out is not None:
        fields = json.loads(found[0].plan.to_text())
        plan[wanted.out] = (json.dumps(fields, indent=2) + "\n").encode()
    if wanted.json is None:
        write_files(plan)
    else:
        values = {"observed": observed.values(), "estimates": [each.values() for each in found]}
        keep(wanted.json, make_record(SCHEMA, values), page_of, plan)
    for path in filter(None, (wanted.json, wanted.out)):
        sys.stdout.write(f"wrote {path}\n")
