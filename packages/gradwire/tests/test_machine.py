"""What a record says of the machine, also where the machine says little of itself."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import sys
import threading
from pathlib import Path
from time import thread_time

import pytest

from gradwire import machine
from gradwire.version import version


def test_a_machine_has_one_identity_that_does_not_show_its_name() -> None:
    found = machine.machine_id()
    assert found == machine.machine_id()
    assert len(found) == 16
    assert int(found, 16) >= 0
    assert platform.node() not in found


def test_another_machine_has_another_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    here = machine.machine_id()
    monkeypatch.setattr(Path, "read_text", lambda *_args, **_words: "another\nmodel name : Abacus\n")
    assert machine.machine_id() != here
    assert machine.describe_machine()["processor"] == "Abacus"


def test_without_the_files_of_linux_the_platform_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_args: object, **_words: object) -> str:
        raise FileNotFoundError

    monkeypatch.setattr(Path, "read_text", missing)
    monkeypatch.setattr(platform, "processor", lambda: "told")
    monkeypatch.setattr(platform, "node", lambda: "one")
    one = machine.machine_id()
    monkeypatch.setattr(platform, "node", lambda: "two")
    assert machine.machine_id() != one
    assert machine.describe_machine()["processor"] == "told"


def test_a_source_tree_that_is_not_installed_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    assert version() == "0+source"


def test_stolen_seconds_are_the_eighth_count_of_all_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sysconf", {"SC_CLK_TCK": 100}.__getitem__)
    (tmp_path / "stat").write_text("cpu  1 2 3 4 5 6 7 250 9 10\ncpu0 1 2 3 4 5 6 7 8 9 10\n")
    assert machine.stolen_s(tmp_path) == 2.5


SPIN = """
import os, time
from gradwire.machine import thread_seconds
os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
before = thread_seconds()  # the child must not read its parent's statistics
is_child = os.fork() == 0
began, first = time.perf_counter(), thread_seconds()
while time.perf_counter() < began + 0.5:
    pass
took_s, last = time.perf_counter() - began, thread_seconds()
if is_child:
    os._exit(0 if last.busy_s < took_s else 1)
assert os.wait()[1] == 0, "the child's busy time exceeds its own time"
print(took_s, last.busy_s - first.busy_s, last.delayed_s - first.delayed_s)
"""


@pytest.mark.skipif(
    not Path("/proc/thread-self/schedstat").exists(), reason="this kernel has no scheduler statistics"
)
def test_two_threads_on_one_core_delay_each_other() -> None:
    said = subprocess.run([sys.executable, "-c", SPIN], capture_output=True, text=True, check=True).stdout
    took_s, busy_s, delayed_s = map(float, said.split())
    assert busy_s + delayed_s == pytest.approx(took_s, rel=0.1)
    assert delayed_s > 0.1 * took_s


def test_without_scheduler_statistics_a_thread_is_never_delayed(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_args: object, **_words: object) -> None:
        raise FileNotFoundError

    monkeypatch.setattr(os, "open", missing)
    monkeypatch.setattr(machine, "_of_thread", threading.local())
    before = thread_time()
    found = machine.thread_seconds()
    assert before <= found.busy_s <= thread_time()
    assert found.delayed_s == 0.0
