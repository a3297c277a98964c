"""What ``docs/tls.md`` says holds: its commands, its tunnel, and what the installed PyTorch answers."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gradwire.links.rendezvous.tls import encryption
from gradwire.links.rendezvous.tls_names import NAMES, Names
from support.beds import needs_namespaces
from support.certificates import PAGE, make
from support.project import TESTS

pytestmark = pytest.mark.processes
ADDRESS = "10.88.0.1"
TUNNEL = f"""
ip link set lo up
ip link add wg0 type bridge
ip address add {ADDRESS}/24 dev wg0
ip link set wg0 up
exec "$@"
"""
GLOO_GROUP = """
import torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
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


def test_the_pages_commands_make_what_gradwire_takes(tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("the page makes keys with the program openssl")
    made = make(tmp_path)
    assert encryption(made) is not None
    exported = dict(re.findall(r"^    export (GRADWIRE_TLS_\w+)=(.*)$", PAGE, re.MULTILINE))
    names = Names(exported.pop(NAMES).strip('"'))
    assert [names.of(rank) for rank in (0, 7, 8)] == [{"host1"}, {"host1"}, {"host2"}]
    assert sorted(exported) == sorted(made)
    assert all(f"/{Path(name).name}\n" in PAGE for name in made.values())


def test_gloos_tls_alone_is_refused_and_one_link_does_not_decide_for_the_next() -> None:
    said = printed([sys.executable, "-c", LINKS_BESIDE_ANOTHER_BACKEND]).splitlines()
    assert said[0] == "connected"
    assert said[1].startswith(
        "rank 0 connecting with the 1 ranks of its group: GLOO_DEVICE_TRANSPORT is TCP_TLS, which does not "
        "reach gradwire's frames; set GRADWIRE_TLS_KEY, GRADWIRE_TLS_CERT and GRADWIRE_TLS_CA to encrypt"
    )
    assert len(said) == 2


def test_the_page_knows_what_gloo_answers() -> None:
    answer = run([sys.executable, "-c", GLOO_GROUP], GLOO_DEVICE_TRANSPORT="TCP_TLS").stderr
    if "Private key and certificate location must be specified" in answer:
        pytest.skip("this build of PyTorch has Gloo's TLS, which the page says today's wheels have not")
    (said,) = re.findall(r"answers `([^`]+)` when a Gloo group is made", PAGE)
    assert said in answer


@needs_namespaces
@pytest.mark.parametrize(("interface", "addresses"), [("wg0", [ADDRESS]), ("lo", ["127.0.0.1"])])
def test_all_connections_stay_on_the_interface_of_the_tunnel(
    tmp_path: Path, interface: str, addresses: list[str]
) -> None:
    program = [sys.executable, "-m", "support.tunnel_ranks", str(tmp_path)]
    command = ["unshare", "--map-root-user", "--net", "sh", "-ec", TUNNEL, "sh", *program]
    said = json.loads(printed(command, GLOO_SOCKET_IFNAME=interface))
    assert said == [[2.0, addresses]] * 2
