"""Descriptions for records: the machine, the versions of packages, and the testbed."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import threading
from contextlib import suppress
from pathlib import Path
from time import thread_time
from typing import Any, NamedTuple

from gradwire.errors import JobError, SpecError
from gradwire.units import format_duration, format_rate, parse_duration, parse_rate
from gradwire.version import installed, version


def cores() -> int:
    """Return the number of cores in this process's CPU affinity."""
    return len(os.sched_getaffinity(0))


def stolen_s(proc: Path = Path("/proc")) -> float:
    """Return the steal time: the seconds since boot that the hypervisor took from this machine's cores."""
    cpu = (proc / "stat").read_text(encoding="utf-8").split(maxsplit=9)
    return int(cpu[8]) / os.sysconf("SC_CLK_TCK")


class ThreadSeconds(NamedTuple):
    """A thread's seconds since its start: on a core, and waiting for a core while ready to run."""

    busy_s: float
    delayed_s: float


class _SchedulerStatistics:
    """The scheduler statistics of the thread that makes this object. Raises ``OSError`` if there are none."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self._descriptor = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)

    def __del__(self) -> None:
        with suppress(AttributeError, OSError):
            os.close(self._descriptor)

    def read(self) -> ThreadSeconds:
        busy_ns, delayed_ns, _ = os.pread(self._descriptor, 64, 0).split()
        return ThreadSeconds(int(busy_ns) / 1e9, int(delayed_ns) / 1e9)


_of_thread = threading.local()


def thread_seconds() -> ThreadSeconds:
    """Return the calling thread's seconds. ``delayed_s`` is 0 if the system has no scheduler statistics."""
    own: _SchedulerStatistics | None = getattr(_of_thread, "statistics", None)
    try:
        if own is None or own.process != os.getpid():  # a child process inherits its parent's descriptor
            own = _of_thread.statistics = _SchedulerStatistics()
        return own.read()
    except OSError:
        return ThreadSeconds(thread_time(), 0.0)


def describe_machine(**more: object) -> dict[str, object]:
    """Return a description of the machine, with ``more`` facts, without the names of machine or user."""
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "kernel": platform.release(),
        "processor": processor(),
        "cores": cores(),
        **more,
    }


def describe_versions() -> dict[str, str | None]:
    """Return the versions of gradwire, Python, torch and NumPy, or None for a missing package."""
    return {
        "gradwire": version(),
        "python": platform.python_version(),
        "torch": installed("torch"),
        "numpy": installed("numpy"),
    }


def machine_id() -> str:
    """Return 16 hexadecimal digits that identify the machine, but reveal nothing about it."""
    try:
        identity = Path("/etc/machine-id").read_text(encoding="ascii").strip()
    except OSError:
        identity = platform.node()
    facts = "/".join(("gradwire", identity, platform.machine(), processor(), str(os.cpu_count())))
    return hashlib.sha256(facts.encode()).hexdigest()[:16]


def processor() -> str:
    """Return the model name of this machine's processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


# The network of the testbed in which this process runs, for records and titles.


def is_inside() -> bool:
    """Return whether this process runs on a host of a testbed. All hosts of a testbed share this machine."""
    return bool(os.environ.get(TOPOLOGY))


def described() -> Any:
    """Return the testbed's description, or None outside of a testbed. Raises ``JobError``."""
    if not is_inside():
        return None
    text = os.environ[TOPOLOGY]
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise JobError(
            f"expected JSON in {TOPOLOGY}, got {text[:40]!r} ({error}); unset {TOPOLOGY}"
        ) from error


def rates_in_words() -> str | None:
    """Return the testbed's link rates and delay, such as ``1gbit``, or None outside. Raises ``JobError``."""
    try:
        return described_in_words(described(), f"unset {TOPOLOGY}")
    except SpecError as error:
        raise JobError(f"{TOPOLOGY} holds no valid network: {error}") from error


def described_in_words(found: Any, remedy: str = "run the command that wrote it again") -> str | None:
    """Return the link rates and the delay in a testbed's description, in words. Raises ``SpecError``."""
    if found is None:
        return None
    try:
        topology = found["topology"]
        found_rates = [parse_rate(each) for each in topology["rates"]]
        slowest, *others = sorted({float("inf") if each is None else each for each in found_rates})
        core = parse_rate(topology.get("core", "unlimited"))
        delay_s, by = parse_duration(topology.get("delay", "0")), found.get("impairment")
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise SpecError(f"expected a testbed's rates, got {found!r:.80}; {remedy}") from error
    rates = format_rate(slowest) + (f" to {format_rate(others[-1])}" if others else "")
    if core is not None:
        rates += f", {format_rate(core)} between groups"
    if delay_s > 0:
        rates += f", {format_duration(delay_s)} one way" + (f" by {by}" if by else "")
    return rates


TOPOLOGY = "GRADWIRE_TESTBED"
