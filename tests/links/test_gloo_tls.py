"""What ``docs/tls.md`` says about encrypted transport holds for the PyTorch that is installed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.beds import needs_namespaces

pytestmark = pytest.mark.processes
TESTS = Path(__file__).parent.parent
PAGE = (TESTS.parent / "docs" / "tls.md").read_text(encoding="utf-8")
ADDRESS = "10.88.0.1"
TUNNEL = f"""
ip link set lo up
ip link add wg0 type bridge
ip address add {ADDRESS}/24 dev wg0
ip link set wg0 up
exec "$@"
"""
LINKS_BESIDE_ANOTHER_BACKEND = """
import os
import torch.distributed as dist
from torch.testing._internal.distributed import fake_pg
import gradwire
dist.init_process_group("fake", store=dist.HashStore(), rank=0, world_size=1)
try:
    gradwire.ProcessGroupLink(dist.group.WORLD, timeout_s=5.0)
    print("connected")
    os.environ["GLOO_DEVICE_TRANSPORT"] = "TCP_TLS"
    gradwire.ProcessGroupLink(dist.group.WORLD, timeout_s=5.0)
    print("connected again")
except gradwire.errors.LinkError as error:
    print(error)
"""


def run(command: list[str], **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(TESTS), **variables}
    return subprocess.run(
        command, env=environment, cwd=TESTS, capture_output=True, text=True, timeout=100, check=False
    )


def printed(command: list[str], **variables: str) -> str:
    done = run(command, **variables)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def build_answer() -> str:
    """Return the error with which the build answers the page's question."""
    (question,) = re.findall(r'^ +GLOO_DEVICE_TRANSPORT=TCP_TLS python -c "(.*)"$', PAGE, re.MULTILINE)
    return run([sys.executable, "-c", question], GLOO_DEVICE_TRANSPORT="TCP_TLS").stderr


def test_the_page_knows_what_the_build_answers(build_answer: str) -> None:
    answers = re.findall(r"^\| `([^`]+)` \|", PAGE, re.MULTILINE)
    assert len(answers) == 2
    assert sum(answer in build_answer for answer in answers) == 1, build_answer


def test_a_build_without_tls_makes_no_plain_connection_instead(build_answer: str) -> None:
    if "unsupported gloo device" not in build_answer:
        pytest.skip("this build of PyTorch has Gloo's TLS, which nobody has tried with gradwire")
    said = printed([sys.executable, "-c", LINKS_BESIDE_ANOTHER_BACKEND], GLOO_DEVICE_TRANSPORT="TCP_TLS")
    assert said.startswith("rank 0 connecting with the 1 ranks of its group: ")
    assert "unsupported gloo device" in said


def test_the_transport_is_chosen_once_by_the_first_link() -> None:
    said = printed([sys.executable, "-c", LINKS_BESIDE_ANOTHER_BACKEND], GLOO_DEVICE_TRANSPORT="TCP")
    assert said.splitlines() == ["connected", "connected again"]


@needs_namespaces
@pytest.mark.parametrize(("interface", "addresses"), [("wg0", [ADDRESS]), ("lo", ["127.0.0.1"])])
def test_all_connections_stay_on_the_interface_of_the_tunnel(
    tmp_path: Path, interface: str, addresses: list[str]
) -> None:
    program = [sys.executable, "-m", "support.tunnel_ranks", str(tmp_path)]
    command = ["unshare", "--map-root-user", "--net", "sh", "-ec", TUNNEL, "sh", *program]
    said = json.loads(printed(command, GLOO_SOCKET_IFNAME=interface))
    assert said == [[2.0, addresses]] * 2
