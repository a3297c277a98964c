"""What ``docs/tls.md`` says holds: its commands, its tunnel, and what the installed PyTorch answers."""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from gradwire.errors import LinkError
from gradwire.links import ProcessGroupLink
from gradwire.links.rendezvous.tls import NAMES, Names, encryption
from support.beds import needs_namespaces
from support.certificates import PAGE, make
from support.forks import Program
from support.project import TESTS, TESTS_PATH

pytestmark = pytest.mark.processes
ADDRESS = "10.88.0.1"
TUNNEL = f"""
ip link set lo up
ip link add wg0 type bridge
ip address add {ADDRESS}/24 dev wg0
ip link set wg0 up
exec "$@"
"""


def group_of(backend: str) -> dist.ProcessGroup:
    dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1)
    assert dist.group.WORLD is not None
    return dist.group.WORLD


def links_beside_another_backend() -> None:
    importlib.import_module("torch.testing._internal.distributed.fake_pg")
    group = group_of("fake")
    try:
        ProcessGroupLink(group, timeout_s=5.0)
        print("connected")  # noqa: T201
        os.environ["GLOO_DEVICE_TRANSPORT"] = "TCP_TLS"
        ProcessGroupLink(group, timeout_s=5.0)
        print("connected again")  # noqa: T201
    except LinkError as error:
        print(error)  # noqa: T201


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


def test_gloos_tls_alone_is_refused_and_one_link_does_not_decide_for_the_next(tmp_path: Path) -> None:
    done = Program(tmp_path / "log", tmp_path, {}, links_beside_another_backend).ended()
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert said[0] == "connected"
    assert said[1].startswith(
        "rank 0 connecting with the 1 ranks of its group: GLOO_DEVICE_TRANSPORT is TCP_TLS, which does not "
        "encrypt gradwire's frames; set GRADWIRE_TLS_KEY, GRADWIRE_TLS_CERT and GRADWIRE_TLS_CA"
    )
    assert len(said) == 2


def test_the_page_knows_what_gloo_answers(tmp_path: Path) -> None:
    variables = {"GLOO_DEVICE_TRANSPORT": "TCP_TLS"}
    answer = Program(tmp_path / "log", tmp_path, variables, group_of, "gloo").ended().stderr
    if "Private key and certificate location must be specified" in answer:
        pytest.skip("this build of PyTorch has Gloo's TLS, which the page says today's wheels have not")
    (said,) = re.findall(r"raises `([^`]+)` when a Gloo group is created", PAGE)
    assert said in answer


@needs_namespaces
@pytest.mark.parametrize(("interface", "addresses"), [("wg0", [ADDRESS]), ("lo", ["127.0.0.1"])])
def test_all_connections_stay_on_the_interface_of_the_tunnel(
    tmp_path: Path, interface: str, addresses: list[str]
) -> None:
    program = [sys.executable, "-m", "support.tunnel_ranks", str(tmp_path)]
    command = ["unshare", "--map-root-user", "--net", "sh", "-ec", TUNNEL, "sh", *program]
    variables = {**os.environ, "PYTHONPATH": TESTS_PATH, "GLOO_SOCKET_IFNAME": interface}
    done = subprocess.run(command, env=variables, cwd=TESTS, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [[2.0, addresses]] * 2
