"""Jobs of several hosts whose own names have loopback addresses, as on Debian, each with its own network."""

from __future__ import annotations

import pytest

from support.beds import needs_namespaces
from support.bridged_hosts import address, debian, run_hosts

pytestmark = [pytest.mark.processes, needs_namespaces]
HOSTS = 2

# As with NCCL, the script's backend opens no connection of its own.
MEET = """
import datetime, importlib, os
import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous
from gradwire.errors import LinkError
from gradwire.exchange import Exchange
from gradwire.links import ProcessGroupLink
from gradwire.plan import Plan

importlib.import_module("torch.testing._internal.distributed.fake_pg")
store, rank, world = next(rendezvous("env://"))
dist.init_process_group("fake", store=store, rank=rank, world_size=world)
try:
    link = ProcessGroupLink(dist.group.WORLD, timeout_s=20.0)
    print(*{each.socket.getsockname()[0] for each in link._channels.values()})
    values = torch.full((1000,), rank + 1.0)
    Exchange(link, Plan.of("identity")).all_reduce(values, average=False)
    link.all_reduce(gloos := torch.full((1000,), rank + 1.0))
    print(values.sum().item() / 1000, gloos.sum().item() / 1000)
    store.set(f"done {rank}", "")
    store.wait([f"done {each}" for each in range(world)], datetime.timedelta(seconds=20))
except LinkError as error:
    print(error)
"""
DOCTOR = "import sys; from gradwire.cli import main; sys.exit(main(['doctor', '--no-line-rate']))"


@pytest.mark.parametrize(
    ("family", "master", "ranks", "variables"),
    [
        (4, "host0", 1, {}),
        (4, address(0), 2, {}),
        (4, "host0", 1, {"NCCL_SOCKET_IFNAME": "^docker0,lo"}),
        (6, "host0", 2, {}),
        (6, address(0, 6), 1, {"GLOO_SOCKET_IFNAME": "eth0"}),
    ],
)
def test_ranks_meet_at_the_addresses_of_the_network(
    family: int, master: str, ranks: int, variables: dict[str, str]
) -> None:
    tables = [debian(host, HOSTS, family) for host in range(HOSTS)]
    done = run_hosts(["-c", MEET], tables, {"MASTER_ADDR": master} | variables, family, ranks)
    total = sum(range(1, HOSTS * ranks + 1))
    for rank, (code, output) in enumerate(done):
        assert (code, output.splitlines()) == (
            0,
            [address(rank // ranks, family), f"{float(total)} {float(total)}"],
        )


@pytest.mark.parametrize("master", ["host0", "localhost"])
def test_ranks_that_share_the_only_host_stay_on_it(master: str) -> None:
    done = run_hosts(["-c", MEET], [debian(0, 1)], {"MASTER_ADDR": master}, ranks=2)
    for _, output in done:
        address, sums = output.splitlines()
        assert address.startswith("127.0.")
        assert sums == "3.0 3.0"


def test_the_loopback_interface_between_hosts_is_an_error_with_the_remedy() -> None:
    tables = [debian(host, HOSTS, family=6) for host in range(HOSTS)]
    program = MEET.replace("try:", "os.environ.update({'GLOO_SOCKET_IFNAME': 'lo'})\ntry:")
    program = "import os\nos.system('ip address delete 127.0.0.1/8 dev lo')\n" + program
    (_, _), (_, output) = run_hosts(["-c", program], tables, {"MASTER_ADDR": address(0, 6)}, family=6)
    assert "cannot reach rank 0 at [::1]:" in output
    assert "set GLOO_SOCKET_IFNAME on each host to the interface" in output


def test_the_doctor_connects_the_ranks_and_warns_of_gloo() -> None:
    tables = [debian(host, HOSTS) for host in range(HOSTS)]
    (code, report), (other_code, _) = run_hosts(["-c", DOCTOR], tables, {"MASTER_ADDR": "host0"})
    assert (code, other_code) == (0, 0), report
    rows = {line.split()[0]: line.split()[1] for line in report.splitlines() if len(line.split()) > 2}
    assert (rows["interface"], rows["connection"], rows["Gloo"]) == ("ok", "ok", "warn")
