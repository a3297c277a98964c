from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gradwire import errors
from gradwire_lab import testbed
from gradwire_lab.testbed.output import Stream
from support.beds import needs_namespaces, surroundings

pytestmark = [pytest.mark.processes, needs_namespaces]
Topology = testbed.Topology


@pytest.fixture(autouse=True)
def nothing_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Find the machine as it was, and the registry gone, after every test."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = surroundings()
    yield
    assert surroundings() == before
    assert not list(tmp_path.glob("gradwire-testbed-*"))


class Written:
    """What the hosts wrote."""

    def __init__(self) -> None:
        self.text: dict[tuple[int, Stream], str] = {}

    def __call__(self, host: int, stream: Stream, text: bytes) -> None:
        self.text[host, stream] = self.text.get((host, stream), "") + text.decode()


TELL = """
import json, os, socket, sys
links = [name for _, name in socket.if_nameindex()]
json.dump({"environment": dict(os.environ), "links": links, "folder": os.getcwd(), "user": os.getuid(),
    "namespace": os.readlink("/proc/self/ns/net"), "input": sys.stdin.read()}, sys.stdout)
"""


def test_every_host_has_its_own_network_and_the_same_files(tmp_path: Path) -> None:
    written = Written()
    own = {**os.environ, "KEPT": "\udcff", "RANK": "9"}
    with testbed.Testbed(Topology.even(3, "100mbit")) as bed:
        run = bed.run([sys.executable, "-c", TELL], environment=own, folder=tmp_path, sinks=(written,))
    assert (run.exit_code, run.failure, len(run.hosts)) == (0, None, 3)
    told = [json.loads(written.text[host, "out"]) for host in range(3)]
    here = os.readlink("/proc/self/ns/net")
    assert len({here, *(each["namespace"] for each in told)}) == 4
    for host, each in enumerate(told):
        assert each["links"] == ["lo", "eth0"]
        assert each["environment"]["RANK"] == str(host)
        assert each["environment"]["KEPT"] == "\udcff"
        assert each["environment"]["MASTER_ADDR"] == "10.77.0.1"
        assert (each["folder"], each["user"], each["input"]) == (str(tmp_path), os.getuid(), "")


MEET = """
import os, socket
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
where = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
if rank == 0:
    with socket.create_server(where) as server, socket.create_server(("127.0.0.1", where[1])):
        for _ in range(1, world):
            print(server.accept()[1][0])
else:
    import time
    while True:
        try:
            socket.create_connection(where, 20).recv(1)
            break
        except ConnectionRefusedError:
            time.sleep(0.02)
"""


@pytest.mark.parametrize("topology", [Topology.even(3), Topology.even(4, "1gbit", groups=2, core="1gbit")])
def test_hosts_meet_at_the_master_and_two_beds_do_not_meet(topology: testbed.Topology) -> None:
    with testbed.Testbed(topology) as bed, testbed.Testbed(topology) as other:
        for each in (bed, other, bed):
            written = Written()
            run = each.run([sys.executable, "-c", MEET], sinks=(written,), timeout_s=60)
            assert run.failure is None, written.text
            peers = sorted(written.text[0, "out"].split())
            assert peers == [f"10.77.0.{host + 1}" for host in range(1, topology.hosts)]


def test_a_host_that_fails_does_not_hang_the_rest() -> None:
    script = 'test $RANK != 1 || exit 3; test $RANK != 2 || trap "" TERM; while :; do sleep 1; done'
    with testbed.Testbed(Topology.even(3)) as bed:
        run = bed.run(["sh", "-c", script], grace_s=0.1)
        assert run.exit_code == 3
        assert [ended.exit_code for ended in run.hosts] == [143, 3, 137]
        assert run.failure is not None
        assert run.failure.startswith("h1 ended with exit code 3 after ")
        assert run.failure.endswith("; h0 and h2 did not end within 100ms after that and had to be killed")
        again = bed.run(["true"])  # the bed itself is none the worse
        assert (again.exit_code, again.failure) == (0, None)


def test_the_time_of_a_run_is_kept() -> None:
    with testbed.Testbed(Topology.even(2)) as bed:
        run = bed.run(["sh", "-c", "test $RANK = 0 || sleep 60"], timeout_s=2.0)
    assert (run.exit_code, run.failure) == (124, "h1 did not end within 2s and had to be killed")
    assert run.seconds < 30


def test_what_a_command_leaves_running_ends_with_the_run() -> None:
    written = Written()
    script = "setsid sh -c 'sleep 100; echo late' & echo early; test $RANK = 0"
    with testbed.Testbed(Topology.even(2)) as bed:
        run = bed.run(["sh", "-c", script], sinks=(written,))
    assert run.exit_code == 1
    assert run.seconds < 60
    assert written.text == {(0, "out"): "early\n", (1, "out"): "early\n"}


def test_much_output_arrives_whole() -> None:
    written = Written()
    with testbed.Testbed(Topology.even(2)) as bed:
        bed.run(["sh", "-c", "seq 200000; seq 5 >&2"], sinks=(written,))
    numbers = "".join(f"{number}\n" for number in range(1, 200001))
    assert written.text[0, "out"] == written.text[1, "out"] == numbers
    assert written.text[1, "err"] == "1\n2\n3\n4\n5\n"


@pytest.mark.parametrize(
    ("command", "error", "reason"),
    [
        ([], errors.SpecError, "expected a command for every host, got none"),
        ([""], errors.SpecError, "expected a command for every host, got none"),
        (["no-such-program"], errors.TestbedError, "'no-such-program' is not found or not executable"),
        (["./no-such-program"], errors.TestbedError, "is not found or"),
        (["/tmp"], errors.TestbedError, "not found or not executable"),
        (["./broken"], errors.TestbedError, "cannot be started: Exec format error; pass a program for"),
    ],
)
def test_a_command_that_cannot_start(
    tmp_path: Path, command: list[str], error: type[Exception], reason: str
) -> None:
    (tmp_path / "broken").write_bytes(b"\x7fELF nothing")
    (tmp_path / "broken").chmod(0o755)
    with testbed.Testbed(Topology.even(2)) as bed, pytest.raises(error, match=reason):
        bed.run(command, folder=tmp_path)


def test_what_the_kernel_lacks_is_told_before_anything_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    complaint = "Error: Specified qdisc kind is unknown.\nCommand failed -:1"
    (tmp_path / "tc").write_text(f"#!/bin/sh\necho '{complaint}' >&2; exit 1\n", encoding="ascii")
    (tmp_path / "tc").chmod(0o755)
    bed = testbed.Testbed(Topology.even(2, "1gbit"))
    with monkeypatch.context() as patched:
        patched.setenv("PATH", str(tmp_path), prepend=os.pathsep)
        with pytest.raises(errors.TestbedError, match="needs sch_tbf, which this kernel lacks"), bed:
            bed.run(["touch", str(tmp_path / "started")])
    assert not (tmp_path / "started").exists()


def test_a_bed_works_inside_of_its_block_only() -> None:
    bed = testbed.Testbed(Topology.even(1))
    with pytest.raises(errors.TestbedError, match="within the testbed's 'with' block, got a call outside"):
        bed.run(["true"])
    with bed:
        bed.close()
        with pytest.raises(
            errors.TestbedError, match="within the testbed's 'with' block, got a call outside"
        ):
            bed.run(["true"])


def test_an_exception_in_a_sink_ends_everything() -> None:
    class FullError(Exception):
        pass

    def full(_host: int, _stream: Stream, _text: bytes) -> None:
        raise FullError

    with testbed.Testbed(Topology.even(2)) as bed:
        with pytest.raises(FullError):
            bed.run(["sh", "-c", "echo x; sleep 100"], sinks=(full,))
        with pytest.raises(
            errors.TestbedError, match="within the testbed's 'with' block, got a call outside"
        ):
            bed.run(["true"])


def test_an_interrupt_lets_hosts_end_and_is_raised_then() -> None:
    written = Written()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)

    def heard(host: int, stream: Stream, text: bytes) -> None:
        written(host, stream, text)
        if len(written.text) == 2 and text == b"ready\n":
            signal.raise_signal(signal.SIGINT)

    script = 'trap "echo asked; exit 0" INT; echo ready; while :; do sleep 0.05; done'
    try:
        with testbed.Testbed(Topology.even(2)) as bed, pytest.raises(KeyboardInterrupt):
            bed.run(["sh", "-c", script], sinks=(heard,))
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert written.text == {(host, "out"): "ready\nasked\n" for host in range(2)}


def test_it_works_in_a_thread() -> None:
    runs: list[testbed.CommandRun] = []

    def work() -> None:
        with testbed.Testbed(Topology.even(2)) as bed:
            runs.append(bed.run(["true"]))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(60)
    assert [run.exit_code for run in runs] == [0]
