"""What ``gradwire plan`` does once its words are read: ask the planner, print, write."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from shutil import get_terminal_size

import torch

from gradwire.files import write_files
from gradwire.machine import cores
from gradwire.page import beside, keep
from gradwire.planner.calibration import Show
from gradwire.planner.candidates import Workload
from gradwire.planner.cluster import Cluster, Input
from gradwire.planner.front import answer, as_workload, pose
from gradwire.planner.model import load_factory, load_gradients, measure_model
from gradwire.planner.report import page_of, report
from gradwire.planner.result import Choice, narrowed, scaling, worlds_around
from gradwire.tables import show
from gradwire.units import format_duration, format_size


def plan(words: argparse.Namespace) -> None:
    """Measure, choose, print and write. Raises ``GradwireError``."""
    cluster = _cluster(words)
    cluster.find_line()
    gradients = None if words.gradients is None else load_gradients(words.gradients)
    model = _model(words, cluster)
    if gradients is None and model.gradients:
        gradients = list(model.gradients)
    with _progress() as progress:
        query, inputs = pose(
            cluster,
            model.workload,
            codecs=words.codecs,
            algorithms=words.algorithms,
            pipelines=(1,) if words.pipeline == 1 else (1, words.pipeline),
            largest_error=words.largest_error,
            objective=words.objective or ("step" if words.gradients is None else "loss"),
            scale=words.scale,
            nic=words.nic,
            sharded=words.sharded,
            gradients=gradients,
            most_hosts=words.scale_to,
            show=progress,
        )
    known = {each.name for each in model.inputs}
    others = (each for each in inputs if each.name not in known)
    choice = answer(query, cluster.hosts, (*model.inputs, *others))
    if words.scale_to:
        worlds = worlds_around(cluster.hosts, words.scale_to)
        points = scaling(narrowed(query, choice.prediction), worlds, {cluster.hosts: choice.prediction})
        choice = replace(choice, scaling=tuple(points))
    show(*report(choice, words.top))
    _write(words, choice)


def _cluster(words: argparse.Namespace) -> Cluster:
    return Cluster(
        words.hosts,
        line=words.measured,
        elsewhere=words.elsewhere,
        rate=words.rate,
        latency=words.latency,
        group_size=words.group_size,
        core_rate=words.core,
        shared_machine=True if words.shared_machine else None,
    )


@dataclass(frozen=True)
class _Model:
    workload: Workload
    inputs: tuple[Input, ...]
    gradients: tuple[torch.Tensor, ...] = ()


def _model(words: argparse.Namespace, cluster: Cluster) -> _Model:
    """Return what is trained; a factory with example inputs is measured here."""
    told, update_s = (words.forward, words.backward), words.update
    if words.count is not None:
        workload = as_workload(words.count, told[0] or 0.0, told[1] or 0.0, update_s)
        return _Model(workload, (_sizes(workload, "told"),))
    model, example = load_factory(words.model)
    if example is None:
        workload = as_workload(model, told[0] or 0.0, told[1] or 0.0, update_s)
        return _Model(workload, (_sizes(workload, words.model),))
    measured = measure_model(model, example, cluster.threads)
    slower = max(1.0, cluster.hosts * cluster.threads / cores()) if cluster.is_shared else 1.0
    forward_s, backward_s = (
        slower * seconds if given is None else given
        for given, seconds in zip(told, (measured.forward_s, measured.backward_s), strict=True)
    )
    workload = as_workload(model, forward_s, backward_s, update_s)
    names = [name for name, given in zip(("forward", "backward"), told, strict=True) if given is None]
    source = f"{' and '.join(names)} measured here" if names else "told"
    return _Model(
        workload,
        (_sizes(workload, words.model), Input("computation", _passes(workload), source)),
        measured.gradients,
    )


def _passes(workload: Workload) -> str:
    seconds = {
        "forward": workload.forward_s,
        "backward": workload.backward_s,
        "update": workload.update_s,
    }
    return ", ".join(f"{name} {format_duration(each)}" for name, each in seconds.items())


def _sizes(workload: Workload, source: str) -> Input:
    return Input("model", f"{workload.count:,} parameters, {format_size(workload.nbytes)}", source)


@contextmanager
def _progress() -> Iterator[Show]:
    """Give a function that draws a bar on a terminal's standard error; elsewhere nothing is shown."""
    if not sys.stderr.isatty():
        yield lambda _done, _total, _what: None
        return

    def show(done: int, total: int, what: str) -> None:
        bar = "#" * (24 * done // max(1, total))
        text = f"measuring codecs [{bar:<24}] {done}/{total} {what}"
        sys.stderr.write(f"\r\x1b[K{text[: get_terminal_size().columns - 1]}")  # a second line would stay
        sys.stderr.flush()

    try:
        yield show
    finally:
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()


def _write(words: argparse.Namespace, choice: Choice) -> None:
    plan = {} if words.out is None else {words.out: choice.plan.to_text().encode()}
    if words.json is None:
        write_files(plan)
    elif keep(words.json, choice.record(), page_of, plan, quiet=True):
        plan[beside(words.json)] = b""
    for path in filter(None, (words.json, *plan)):
        sys.stdout.write(f"wrote {path}\n")
