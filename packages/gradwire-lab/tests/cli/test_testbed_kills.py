"""Which processes of a testbed may be killed, and what is left: nothing."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from support.beds import carriers, has_netem, needs_namespaces, start, wait_until

pytestmark = [pytest.mark.processes, needs_namespaces]


def processes_by_role(place: Path, outer: int) -> dict[str, list[int]]:
    """Return a testbed's processes by role, without any in the middle of ``exec``, which have no words."""
    found: dict[str, list[int]] = {"outer": [outer], "unshare": [], "supervisor": [], "relay": [], "host": []}
    for number in carriers(place):
        try:
            words = Path(f"/proc/{number}/cmdline").read_text(encoding="utf-8").split("\0")
        except OSError:
            continue
        if "unshare" in words[0]:
            found["unshare"].append(number)
        elif "gradwire_lab.testbed.supervisor" in words:
            found["supervisor"].append(number)
        elif "gradwire_lab.testbed.relay" in words:
            found["relay"].append(number)
        elif words[0] in ("sh", "sleep"):
            found["host"].append(number)
    return found


def waiting(place: Path, *, delay: bool) -> tuple[subprocess.Popen[str], dict[str, list[int]]]:
    """Return a testbed whose hosts wait, and its processes by role."""
    words = ["--hosts", "2", "--grace", "0.1", *(["--delay", "1ms"] if delay else [])]
    process = start(place, "run", *words, "--", "sh", "-c", "echo ready; exec sleep 100")
    assert process.stdout is not None
    for _ in range(2 + delay):
        assert process.stdout.readline().endswith(("| ready\n", "sch_netem\n", "netem\n"))
    relays = int(delay and not has_netem())
    found: dict[str, list[int]] = {}

    def is_complete() -> bool:
        found.update(processes_by_role(place, process.pid))
        return [len(numbers) for numbers in found.values()] == [1, 1, 1, relays, 2]

    try:
        wait_until(is_complete)
    except AssertionError:
        process.terminate()  # the failure of one test must not fail the tests after it
        process.communicate(timeout=60)
        raise
    return process, found


@pytest.mark.parametrize("delay", [False, True])
@pytest.mark.parametrize(
    ("victim", "code", "sentence"),
    [
        ("outer", -signal.SIGKILL, ""),
        ("unshare", 2, "supervisor has ended"),
        ("supervisor", 2, "supervisor has ended"),
        ("host", 137, "was killed by SIGKILL after "),
        (
            "relay",
            2,
            "the relay that delays frames ended with signal 9, and no host is reachable; start a new",
        ),
    ],
)
def test_whoever_is_killed_the_kernel_takes_the_rest_down(
    place: Path, victim: str, code: int, sentence: str, delay: bool
) -> None:
    if victim == "relay" and (not delay or has_netem()):
        pytest.skip("only a delay on a kernel without netem has a relay")
    process, found = waiting(place, delay=delay)
    os.kill(found[victim][-1], signal.SIGKILL)
    _, err = process.communicate(timeout=60)
    assert process.returncode == code
    assert sentence in err
    assert "Traceback" not in err


@pytest.mark.parametrize("delay", [False, True])
def test_clean_ends_what_a_killed_testbed_left_and_no_living_one(place: Path, delay: bool) -> None:
    process, found = waiting(place, delay=delay)
    os.kill(found["supervisor"][0], signal.SIGSTOP)  # so that it cannot notice
    process.kill()
    process.wait()
    for pipe in (process.stdout, process.stderr):  # the stopped one still has the other ends
        assert pipe is not None
        pipe.close()
    living = start(place, "run", "--hosts", "1", "--", "sh", "-c", "echo ready; sleep 100")
    assert living.stdout is not None
    assert living.stdout.readline() == "h0 | ready\n"
    assert len(carriers(place)) >= 7
    out, err = start(place, "clean").communicate(timeout=60)
    assert f"ended process {found['unshare'][0]}, " in out
    assert f"removed {place}/gradwire-testbed-" in out
    assert out.splitlines()[-1].endswith("whose testbed is running")
    assert err == ""
    wait_until(lambda: not set(carriers(place)) & {each for group in found.values() for each in group})
    assert living.poll() is None
    living.send_signal(signal.SIGTERM)
    living.communicate(timeout=60)
    wait_until(lambda: not carriers(place))
    assert start(place, "clean").communicate(timeout=60)[0] == "no leftovers found\n"
