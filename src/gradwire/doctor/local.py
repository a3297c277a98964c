"""One machine: all facts are collected, all checks are made."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from pathlib import Path

from gradwire import _native
from gradwire.deferred import torch
from gradwire.doctor.checks.interface import check_gloo, check_interfaces, find_interfaces
from gradwire.doctor.checks.kernels import check_kernels, every_codec, self_test
from gradwire.doctor.checks.resources import (
    Resources,
    check_cores,
    check_limits,
    check_memory,
    check_numa,
    find_resources,
)
from gradwire.doctor.checks.software import check_gradwire, check_package, check_python, check_torch
from gradwire.doctor.checks.tls import check_tls
from gradwire.doctor.facts import Card, plan_text
from gradwire.doctor.finding import Finding
from gradwire.errors import SpecError, TestbedError
from gradwire.machine import machine_id
from gradwire.plan import Plan
from gradwire.testbed.network.tools import find_tool
from gradwire.version import NEEDED, import_problem, version
from gradwire.wire import VERSION

_TOOLS = ("ip", "tc", "unshare")


def examine_machine(
    plan_file: Path | None, world: int, neighbours: int, environment: Mapping[str, str] = os.environ
) -> Card:
    """Make every check of this machine, and of a plan if there is one; return the machine's card.

    The job that is to come has ``world`` ranks, 1 where that is not known, of which so many ``neighbours``
    are on this machine. Gloo's transport and interface follow the variables of ``environment``. Without the
    packages that gradwire needs, the checks that use them are left out.
    """
    problems = {name: problem for name in NEEDED if (problem := import_problem(name))}
    torch_version = "" if "torch" in problems else torch.__version__
    found, interfaces = find_resources(), find_interfaces(environment)
    tested = None if problems else self_test(every_codec())
    plan, plan_findings = _read_plan(plan_file)
    network = [check_interfaces(interfaces), check_tls(environment)]
    if torch_version and all(
        each.result != "FAIL" for each in network
    ):  # else Gloo would only say the same, less clearly
        network.append(check_gloo(interfaces.named))
    findings = (
        check_python(platform.python_version()),
        *([check_torch(torch_version)] if torch_version else []),
        *(check_package(name, problem) for name, problem in problems.items()),
        check_gradwire(version(), VERSION),
        check_kernels(tested),
        *([_check_threads(found, neighbours)] if torch_version else []),
        check_numa(found.numa_nodes, neighbours),
        check_memory(found, neighbours),
        check_limits(found, world),
        *network,
        check_testbeds(missing_tools()),
        *plan_findings,
    )
    return Card(
        gradwire=version(),
        python=platform.python_version(),
        torch=torch_version,
        wire_version=VERSION,
        target=tested.target if tested else "",
        kernels_digest=tested.digest if tested else "",
        machine_id=machine_id(),
        addresses=interfaces.addresses,
        loopback=interfaces.is_loopback,
        plan=plan_text(plan),
        findings=findings,
    )


def check_testbeds(missing: list[str]) -> Finding:
    """Return whether ``gradwire testbed`` finds its programs; training needs none of them."""
    if missing:
        return Finding("testbeds", "ok", f"not here ({'; '.join(missing)}); training does not need them")
    return Finding("testbeds", "ok", f"{', '.join(_TOOLS)} are here")


def missing_tools() -> list[str]:
    """Return a sentence for every program of a testbed that is not here."""
    sentences = []
    for tool in _TOOLS:
        try:
            find_tool(tool)
        except TestbedError as error:
            sentences.append(str(error))
    return sentences


def _check_threads(found: Resources, neighbours: int) -> Finding:
    try:
        return check_cores(found, _native.threads(), neighbours)
    except SpecError as error:
        return Finding("cores", "FAIL", f"{error}; unset it or mend it")


def _read_plan(path: Path | None) -> tuple[Plan | None, list[Finding]]:
    if path is None:
        return None, []
    try:
        plan = Plan.of(path)
    except SpecError as error:
        return None, [Finding("plan", "FAIL", f"{error}; 'gradwire plan --out FILE' writes one")]
    how = "sharded" if plan.is_sharded else f"pipeline {plan.pipeline}"
    return plan, [Finding("plan", "ok", f"{plan.codec} over {plan.algorithm}, {how}")]
