"""``gradwire profile``: run a script with observers, and print and write estimates with gradwire."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from gradwire.autotune.estimate import Deployment, Estimate, gain, legend, table
from gradwire.autotune.recorder import estimator
from gradwire.autotune.steps import Observed
from gradwire.errors import JobError
from gradwire.files import write_files
from gradwire.launch.launched import ending_on_signals
from gradwire.machine import is_inside
from gradwire.page import Picture, Report, Section, keep, render
from gradwire.page.picture import CURVES, bar_height, legend_above, name_bars, without_frame
from gradwire.planner.by_hosts import by_hosts, gains_by_hosts
from gradwire.planner.choice import ScalePoint, hosts_that_pay, worlds_around
from gradwire.planner.request import ASSUMED_LATENCY_S, FARTHEST
from gradwire.profile.settings import Notes, Settings
from gradwire.profile.tried import COUNTED, Tried
from gradwire.records import make_record
from gradwire.script.command import run_script
from gradwire.script.lifeline import private_folder
from gradwire.tables import Table, show
from gradwire.timing.line import Line
from gradwire.units import counted, format_duration, parse_rate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Read the results of the observers in a script's processes.


def find_result(settings: Settings, code: int) -> Observed | Tried | None:
    """Return rank 0's result, or None on another machine. Raises ``JobError`` if rank 0 has left none."""
    if settings.tries and settings.tried.exists():
        return Tried.load(settings.tried)
    if not settings.tries and settings.observed.exists():
        return Observed.load(settings.observed)
    wanted = settings.warm_up + settings.steps
    ending = "ended" if code == 0 else f"ended with exit code {code}, see above,"
    if not settings.notes.exists():
        raise JobError(
            f"the script {ending} without a DistributedDataParallel or an FSDP2 module that gradwire could "
            "observe; profile a script that trains with one of these modules, in an environment with "
            "gradwire"
        )
    notes = Notes.load(settings.notes)
    if notes.problem:
        raise JobError(notes.problem)
    if notes.done and notes.rank:
        return None
    if settings.tries and notes.steps >= wanted:
        raise JobError(
            f"the script {ending} after {counted(notes.steps, 'step')}, {notes.steps - wanted} of them "
            f"attached, before {COUNTED} steps with gradwire's chosen plan; run a few hundred steps"
        )
    raise JobError(
        f"the script {ending} after {counted(notes.steps, 'step')}, expected {wanted} "
        f"({settings.warm_up} to warm up, {settings.steps} to measure); run more steps, or lower "
        "--steps and --warm-up"
    )


# The page of a profile: the observed script, and estimates with gradwire on this network and other networks.

SCHEMA = "gradwire.profile/1"


def page_of(record: Mapping[str, Any]) -> str:
    """Return the page of a profile's record."""
    observed = _observed(record["observed"])
    estimates = [Estimate.from_json(json.dumps(each)) for each in record["estimates"]]
    scaling = record.get("scaling", [])  # absent from older records
    sections = [
        Section("With gradwire", [("Steps on each network", table(estimates)), legend(estimates)]),
        Section("More or fewer hosts", by_hosts(scaling, observed.kind)),
        Section("The script without gradwire", [str(observed)]),
    ]
    title = f"gradwire profile: {observed.kind} on {counted(observed.world, 'rank')}"
    hero = gains_by_hosts(scaling, estimates[0].hosts, observed.kind) if scaling else _steps(estimates)
    return render(Report(title, verdict(estimates[0]), sections, hero), record)


def _steps(estimates: Sequence[Estimate]) -> Picture:
    """Return the picture of step times without and with gradwire, by network and number of hosts."""

    def paint(figure: Figure) -> None:
        axes = figure.subplots()
        height = bar_height(axes) / 2
        ways = ((estimates[0].kind, CURVES[7], "plain_s"), ("with gradwire", CURVES[0], "step_s"))
        for number, (label, colour, name) in enumerate(ways):
            places = [place + height * (number - 0.5) for place in range(len(estimates))]
            times_ms = [1e3 * getattr(each, name) for each in estimates]
            axes.barh(places, times_ms, height=0.95 * height, color=colour, label=label)
        name_bars(axes, [f"{each.hosts} hosts, {each.network}" for each in estimates])
        axes.set_xlabel("predicted time of a step [ms]")
        legend_above(axes, 2)
        without_frame(axes)

    caption = "Predicted steps without and with gradwire."
    return Picture("steps", caption, paint, 1.1 + 0.45 * len(estimates))


def verdict(first: Estimate) -> str:
    """Return a sentence on the estimated step time with gradwire on the first network."""
    where = f"On {'this network' if first.network == 'this one' else first.network}"
    times = f"{format_duration(first.step_s)} instead of {format_duration(first.plain_s)}"
    if first.is_noisy:
        return f"{where}, steps are too noisy to estimate the gain: {times}."
    if first.speedup * (1 + first.spread) <= 1:
        return f"{where}, gradwire would not shorten a step: {times}."
    if first.speedup <= 1 + first.spread:
        return f"{where}, a step would take about the same time with gradwire: {times}."
    return f"{where}, a step would be {gain(first, first.speedup)} as fast: {times}."


def report(
    observed: Observed, estimates: Sequence[Estimate], predicted_s: float | None = None
) -> list[str | Table]:
    """Return the observation, with the time that the cost model predicts for it, and the estimates."""
    said = str(observed)
    if predicted_s is not None:
        off = 100 * (predicted_s / observed.step_s - 1)
        predicted = f"{format_duration(predicted_s)} ({off:+.0f} %)"
        said += f" gradwire's cost model, which predicts the steps below, predicts {predicted} for this step."
    return [said, "", table(estimates), legend(estimates)]


def _observed(values: Mapping[str, Any]) -> Observed:
    """Return the observation in a record, which contains no gradients."""
    fields: dict[str, Any] = {name: values[name] for name in Observed.__dataclass_fields__ if name in values}
    line = fields["line"]
    lists = {name: tuple(value) for name, value in fields.items() if isinstance(value, list)}
    return Observed(**{**fields, **lists, "line": None if line is None else Line(**line), "gradients": ()})


PAGES = MappingProxyType({SCHEMA: page_of})
"""The function that renders the page of a record, by the record's schema."""


@dataclass(frozen=True)
class ProfileOptions:
    """Options for a profile: the script to run, and the networks and hosts to estimate for."""

    command: tuple[str, ...]  # the script's command line
    rates: tuple[str, ...] = ()  # of other networks, as in "10gbit"
    latency_s: float = ASSUMED_LATENCY_S
    hosts: tuple[int, ...] = ()  # the numbers of hosts; empty for the number of ranks
    shared_machine: bool = False  # whether all hosts are this machine
    steps: int = Settings.steps
    warm_up: int = Settings.warm_up
    goes_on: bool = False
    tries: bool = False
    json: Path | None = None  # the file of all estimates
    save: Path | None = None  # the file of the plan on this network

    @property
    def networks(self) -> list[tuple[str, Line]]:
        """The names and links of the networks in ``rates``."""
        return [(rate, Line(self.latency_s, parse_rate(rate) or float("inf"))) for rate in self.rates]


def profile(options: ProfileOptions) -> int:
    """Run the script with observers, report, and return its exit code. Raises ``GradwireError``."""
    with ending_on_signals(), private_folder() as folder:
        settings = Settings(str(folder), options.steps, options.warm_up, options.goes_on, options.tries)
        code = run_script(options.command, settings.entry())
        result = find_result(settings, code)
    if result is None:
        show("The ranks on this machine were observed; rank 0's machine prints the result.")
    elif isinstance(result, Tried):
        show(*result.report())
    else:
        found = estimates(result, options)
        show(verdict(found.estimates[0]), "", *report(result, found.estimates, found.predicted_s))
        _write(options, result, found)
    return code


def deployments(
    observed: Observed, networks: Sequence[tuple[str, Line]], hosts: Sequence[int], *, shared_machine: bool
) -> list[Deployment]:
    """Return the deployments to estimate: the observed deployment, then each network with each host count.

    Except in the observed deployment, each rank has its own machine and computes as fast as observed, unless
    all ranks share this machine (``shared_machine``). If ``hosts`` is empty, the observed number of ranks is
    used.
    """
    here = [] if observed.line is None else [("this one", observed.line)]
    found: list[Deployment] = []
    for name, line in (*here, *networks):
        for number in hosts or [observed.world]:
            is_here = line is observed.line and number == observed.world
            sharing = observed.ranks_per_machine if is_here else number if shared_machine else 1
            found.append(Deployment(name, line, number, sharing, is_here))
    if observed.line is not None and not any(each.is_here for each in found):
        ranks = observed.world, observed.ranks_per_machine
        found.append(Deployment("this one", observed.line, *ranks, is_here=True))
    return sorted(found, key=lambda each: not each.is_here)


@dataclass(frozen=True)
class Estimates:
    """The estimates for each network and number of hosts, and the scaling on the first network."""

    estimates: Sequence[Estimate]
    scaling: Sequence[ScalePoint]
    predicted_s: float | None  # of the observed step; None if its deployment isn't among the estimates


def estimates(observed: Observed, options: ProfileOptions) -> Estimates:
    """Return the estimates for a profile's networks. Measuring takes several seconds."""
    shared = options.shared_machine or is_inside()
    where = deployments(observed, options.networks, options.hosts, shared_machine=shared)
    measured = estimator(observed, [each.line for each in where], max(each.hosts for each in where))
    here = [measured.plain_s(each) for each in where if each.is_here]
    found, scaling = [measured.at(each) for each in where], list[ScalePoint]()
    if options.json is not None:  # only the page shows the scaling
        networks = [] if observed.line is not None else [(where[0].network, where[0].line)]
        hosts = [each for each in worlds_around(where[0].hosts, FARTHEST) if each > 1]
        places = deployments(observed, networks, hosts, shared_machine=shared)
        scaling = measured.scaling(places, found[0])
    return Estimates(found, scaling, here[0] if here else None)


def _write(options: ProfileOptions, observed: Observed, measured: Estimates) -> None:
    plan: dict[Path, bytes] = {}
    if options.save is not None:
        fields = json.loads(measured.estimates[0].plan.to_text())
        plan[options.save] = (json.dumps(fields, indent=2) + "\n").encode()
    if options.json is None:
        write_files(plan)
    else:
        values = {
            "observed": observed.values(),
            "estimates": [each.values() for each in measured.estimates],
            "scaling": [each.values() for each in measured.scaling],
            "hosts_that_pay": hosts_that_pay(measured.scaling) if measured.scaling else None,
        }
        keep(options.json, make_record(SCHEMA, values), page_of, plan)
    for path in filter(None, (options.json, options.save)):
        sys.stdout.write(f"wrote {path}\n")
