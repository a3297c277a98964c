"""NICs between the hosts of a testbed and their links."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from gradwire.errors import TestbedError as _TestbedError  # pytest would take the name for a test's
from gradwire_lab.testbed import Testbed as _Testbed
from gradwire_lab.testbed import Topology
from gradwire_lab.testbed.output import Stream
from support.beds import needs_namespaces

pytestmark = [pytest.mark.processes, needs_namespaces]
NIC = (sys.executable, "-m", "gradwire", "nic", "--codec", "inceptionn:2^-10", "--json", "-")

EXCHANGE = """
import os, socket
rank, nothing = int(os.environ["RANK"]), bytes(400_000)
where = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
if rank == 0:
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, 0x28)
    server.bind(where)
    server.listen()
    stream = server.accept()[0]
    stream.sendall(nothing)
else:
    while True:
        stream = socket.socket()
        stream.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, 0x28)
        if stream.connect_ex(where) == 0:
            break
    assert stream.recv(len(nothing), socket.MSG_WAITALL) == nothing
print("done", [name for _, name in socket.if_nameindex()])
"""


class Written:
    """What the hosts and their NICs wrote."""

    def __init__(self) -> None:
        self.text: dict[tuple[int, Stream], str] = {}

    def __call__(self, host: int, stream: Stream, text: bytes) -> None:
        self.text[host, stream] = self.text.get((host, stream), "") + text.decode()


@pytest.fixture(autouse=True)
def own_registry(folder: Path) -> Path:
    return folder


def test_each_host_has_a_nic_in_every_run() -> None:
    with _Testbed(Topology.even(2, "100mbit"), nic=NIC) as bed:
        for _ in range(2):
            written = Written()
            run = bed.run([sys.executable, "-c", EXCHANGE], sinks=(written,), timeout_s=60)
            assert (run.exit_code, run.nic) == (0, NIC), written.text
            assert written.text[0, "out"] == written.text[1, "out"] == "done ['lo', 'eth0']\n"
            sent, came = (json.loads(written.text[host, "err"]) for host in range(2))
            assert sent["to_link"]["compressed"] == came["to_host"]["restored"] > 0
            assert sent["to_link"]["payload_bytes"] > 0.98 * 400_000  # TCP may cut a value or two off
            assert json.loads(run.to_json())["nic"] == list(NIC)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("sh", "-c", "echo no such card >&2; exit 3"), "no such card"),
        ((*NIC, "--drop", "2"), "gradwire: expected a share of frames to drop"),
    ],
)
def test_a_nic_that_does_not_start_is_an_error(words: tuple[str, ...], reason: str) -> None:
    written = Written()
    with (
        _Testbed(Topology.even(2), nic=words) as bed,
        pytest.raises(_TestbedError, match="the NIC of h0 failed to start; see the output of h0"),
    ):
        bed.run(["true"], sinks=(written,))
    assert reason in written.text[0, "err"]


def test_a_nic_that_ends_during_a_run_ends_the_run() -> None:
    short = "import os, sys\nos.write(int(sys.argv[-1]), b'+')\nsys.exit(3)"
    reason = "the NIC of h0 ended with exit code 3, and the host isn't reachable; start a new run"
    with (
        _Testbed(Topology.even(1), nic=(sys.executable, "-c", short)) as bed,
        pytest.raises(_TestbedError, match=reason),
    ):
        bed.run(["sleep", "60"], timeout_s=50)
