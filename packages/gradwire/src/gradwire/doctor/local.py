"""All checks of one machine, including its cores, memory, and limits."""

from __future__ import annotations

import math
import os
import platform
import re
import resource
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from gradwire import _native, plugins
from gradwire.deferred import torch
from gradwire.doctor import software
from gradwire.doctor.finding import Card, Finding, Result, any_failed
from gradwire.doctor.tcp import check_congestion, find_tcp
from gradwire.errors import SpecError, one_line
from gradwire.machine import cores, machine_id
from gradwire.plan import Plan
from gradwire.units import counted, format_size
from gradwire.version import NEEDED, import_problem, version
from gradwire.wire import VERSION

# Cores, memory and limits of this process, and whether they suffice for the ranks on this machine.

FILES_FOR_ITSELF = 128
FILES_FOR_A_PEER = 8
"""File descriptors per peer: each of a rank's few links and process groups opens a socket for each peer."""
LEAST_MEMORY_NBYTES = 1 << 30
_NODES = Path("/sys/devices/system/node")
_MEMORY = Path("/proc/meminfo")
_QUOTAS = (
    (Path("/sys/fs/cgroup/cpu.max"),),  # version 2 of cgroups: "200000 100000"
    (Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"), Path("/sys/fs/cgroup/cpu/cpu.cfs_period_us")),  # version 1
)


@dataclass(frozen=True)
class Resources:
    """The cores, memory, and limits of this process; inf if unlimited or unknown."""

    cores: int  # in the process's CPU affinity
    quota_cores: float  # the container's CPU quota, in cores
    numa_nodes: int  # of the machine
    open_files: float  # ulimit -n
    address_space_nbytes: float  # ulimit -v
    locked_nbytes: float  # ulimit -l
    memory_nbytes: float  # the machine's free memory


def find_resources() -> Resources:
    """Return the resources of this process."""
    limits = (resource.RLIMIT_NOFILE, resource.RLIMIT_AS, resource.RLIMIT_MEMLOCK)
    files, address_space_nbytes, locked_nbytes = map(_limit, limits)
    nodes = len([*_NODES.glob("node[0-9]*")])
    quota_cores = min(_quota([_read(path) for path in paths]) for paths in _QUOTAS)
    found = re.search(r"^MemAvailable:\s*(\d+)", _read(_MEMORY), re.MULTILINE)
    memory_nbytes = 1024.0 * int(found[1]) if found else math.inf
    return Resources(
        cores(), quota_cores, max(1, nodes), files, address_space_nbytes, locked_nbytes, memory_nbytes
    )


def check_cores(found: Resources, threads: int, neighbours: int) -> Finding:
    """Return a finding on whether the cores suffice for ``neighbours`` ranks of ``threads`` threads each."""
    usable = min(found.cores, math.ceil(found.quota_cores)) if found.quota_cores < math.inf else found.cores
    ranks = f"{counted(neighbours, 'rank')} x {counted(threads, 'thread')}"
    has = counted(found.cores, "core")
    if usable < found.cores:
        has += f", limited to {found.quota_cores:g} by its container's quota"
    if neighbours * threads > max(usable, neighbours):
        share = max(1, usable // neighbours)
        crowd = f"{ranks} oversubscribe the cores: set OMP_NUM_THREADS={share} (or GRADWIRE_THREADS)"
        return Finding("cores", "warn", f"{has}; {crowd}")
    if neighbours > usable:
        crowd = f"{neighbours} ranks share these cores: start fewer ranks here"
        return Finding("cores", "warn", f"{has}; {crowd}")
    return Finding("cores", "ok", f"{has}; {ranks}")


def check_numa(nodes: int, neighbours: int) -> Finding:
    """Return a finding about the machine's NUMA nodes, with advice for binding ranks."""
    if nodes == 1:
        return Finding("NUMA", "ok", "1 memory node")
    ranks = "the rank" if neighbours == 1 else "each rank"
    hint = f"for speed, bind {ranks} to one node, as in 'numactl --cpunodebind=0 --membind=0 ...'"
    return Finding("NUMA", "ok", f"{nodes} memory nodes; {hint}")


def check_limits(found: Resources, world: int) -> Finding:
    """Return a finding on whether the limits of this process allow a job of ``world`` ranks."""
    files = FILES_FOR_ITSELF + FILES_FOR_A_PEER * (world - 1)
    if found.open_files < files:
        needed = f"expected a limit of at least {files} open files for {counted(world, 'rank')}"
        result: Result = "FAIL" if found.open_files < files / 2 else "warn"
        remedy = f"run ulimit -n {max(files, 4096)}"
        return Finding("limits", result, f"{needed}, got {found.open_files:g}; {remedy}")
    if found.address_space_nbytes < math.inf:
        limited = f"the address space is limited to {format_size(found.address_space_nbytes)}"
        remedy = "torch reserves more memory than it uses; run ulimit -v unlimited"
        return Finding("limits", "warn", f"{limited}, and {remedy}")
    locked = "unlimited" if math.isinf(found.locked_nbytes) else format_size(found.locked_nbytes)
    files_and_memory = f"{found.open_files:g} open files; locked memory: {locked} (TCP needs none)"
    return Finding("limits", "ok", files_and_memory)


def check_memory(found: Resources, neighbours: int) -> Finding:
    """Return a finding on whether the free memory suffices for ``neighbours`` ranks on this machine."""
    if math.isinf(found.memory_nbytes):
        return Finding("memory", "ok", "unknown on this system")
    free = f"{format_size(found.memory_nbytes)} free"
    if found.memory_nbytes < neighbours * LEAST_MEMORY_NBYTES:
        scarce = f"{free} for {counted(neighbours, 'rank')}, below {format_size(LEAST_MEMORY_NBYTES)} each"
        return Finding("memory", "warn", f"{scarce}; end other programs, or start fewer ranks")
    return Finding("memory", "ok", free)


def _limit(which: int) -> float:
    soft, _ = resource.getrlimit(which)
    return math.inf if soft == resource.RLIM_INFINITY else soft


def _quota(texts: list[str]) -> float:
    """Return the quota over the period in a cgroup's files, in cores; inf without a quota (``max`` or -1)."""
    words = " ".join(texts).split()
    if len(words) != 2 or not all(word.isdigit() and int(word) > 0 for word in words):
        return math.inf
    return int(words[0]) / int(words[1])


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii") if os.access(path, os.R_OK) else ""
    except (OSError, UnicodeDecodeError):
        return ""


def examine_machine(
    plan_file: Path | None, world: int, neighbours: int, environment: Mapping[str, str] = os.environ
) -> Card:
    """Run all checks of this machine, and of the plan in ``plan_file``, and return the machine's card.

    The planned job has ``world`` ranks (1 if unknown), ``neighbours`` of them on this machine. Gloo's
    transport and interface follow ``environment``. Checks that use a missing package are omitted.
    """
    problems = {name: problem for name in NEEDED if (problem := import_problem(name))}
    torch_version = "" if "torch" in problems else torch.__version__
    found, interfaces = find_resources(), software.find_interfaces(environment)
    tested = None if problems else software.self_test(software.every_codec())
    plan, plan_findings = _read_plan(plan_file)
    network = [
        software.check_interfaces(interfaces),
        check_congestion(environment),
        software.check_tls(environment),
    ]
    if torch_version and not any_failed(network):  # Gloo would report the same failure less clearly
        network.append(software.check_gloo(environment))
    findings = (
        software.check_python(platform.python_version()),
        *([software.check_torch(torch_version)] if torch_version else []),
        *(software.check_package(name, problem) for name, problem in problems.items()),
        Finding("gradwire", "ok", f"{version()}, frames of version {VERSION}"),
        software.check_kernels(tested),
        *([_check_threads(found, neighbours)] if torch_version else []),
        check_numa(found.numa_nodes, neighbours),
        check_memory(found, neighbours),
        check_limits(found, world),
        *network,
        *others_findings(),
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
        plan="" if plan is None else plan.to_json(),
        findings=findings,
        tcp=find_tcp(),
    )


def others_findings() -> list[Finding]:
    """Return the findings of other packages' checks; a check that raises an error becomes a warning."""
    found: list[Finding] = []
    for name in plugins.names(plugins.CHECKS):
        try:
            check = cast("Callable[[], Iterable[Finding]]", plugins.entry(plugins.CHECKS, name))
            found += check()
        except Exception as error:  # another package may raise anything
            why = f"{type(error).__name__}: {one_line(str(error))}"
            failed = f"the check of {plugins.origin(plugins.CHECKS, name)} failed ({why})"
            found.append(Finding(name, "warn", f"{failed}; reinstall that package"))
    return found


def _check_threads(found: Resources, neighbours: int) -> Finding:
    try:
        return check_cores(found, _native.threads(), neighbours)
    except SpecError as error:
        return Finding("cores", "FAIL", f"{error}")


def _read_plan(path: Path | None) -> tuple[Plan | None, list[Finding]]:
    if path is None:
        return None, []
    try:
        plan = Plan.of(path)
    except SpecError as error:
        return None, [Finding("plan", "FAIL", f"{error}, or use 'gradwire plan --save FILE'")]
    how = "sharded" if plan.is_sharded else f"pipeline {plan.pipeline}"
    return plan, [Finding("plan", "ok", f"{plan.codec} over {plan.algorithm}, {how}")]
