from __future__ import annotations

import json
import os

import pytest

from gradwire_lab.testbed.registry import variables
from gradwire_lab.testbed.topology import Topology


@pytest.mark.parametrize("host", [0, 2])
def test_a_host_has_what_torchrun_sets(host: int) -> None:
    topology = Topology.even(3, "1gbit")
    inherited = {"HOME": "/home/x", "RANK": "7", "WORLD_SIZE": "8", "MASTER_ADDR": "example.org"}
    inherited |= {"GLOO_SOCKET_IFNAME": "lo", "TORCHELASTIC_USE_AGENT_STORE": "True"}
    made = variables(topology, host, "mark", inherited)
    assert {name: made[name] for name in made if "RANK" in name} == {
        "RANK": str(host),
        "LOCAL_RANK": "0",
        "GROUP_RANK": str(host),
        "ROLE_RANK": str(host),
    }
    sizes = {"WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "1", "GROUP_WORLD_SIZE": "3", "ROLE_WORLD_SIZE": "3"}
    assert {name: made[name] for name in made if "WORLD_SIZE" in name} == sizes
    assert (made["MASTER_ADDR"], made["MASTER_PORT"]) == ("10.77.0.1", "29500")
    assert {made[name] for name in made if "IFNAME" in name} == {"eth0"}
    assert made["TORCHELASTIC_USE_AGENT_STORE"] == "False"
    assert made["HOME"] == "/home/x"
    told = json.loads(made["GRADWIRE_TESTBED"])
    assert Topology.from_dict(told["topology"]) == topology
    assert told["addresses"] == ["10.77.0.1", "10.77.0.2", "10.77.0.3"]
    assert (told["interface"], told["shared_cores"]) == ("eth0", len(os.sched_getaffinity(0)))


def test_hosts_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: set(range(16)))
    assert variables(Topology.even(3), 0, "mark", {})["OMP_NUM_THREADS"] == "5"
    assert variables(Topology.even(32), 0, "mark", {})["OMP_NUM_THREADS"] == "1"
    assert variables(Topology.even(3), 0, "mark", {"OMP_NUM_THREADS": "9"})["OMP_NUM_THREADS"] == "9"


def test_pytorch_does_not_warn_unless_it_is_asked_to() -> None:
    quiet, asked = "TORCH_CPP_LOG_LEVEL", {"TORCH_CPP_LOG_LEVEL": "INFO"}
    assert variables(Topology.even(2), 0, "mark", {})[quiet] == "ERROR"
    assert variables(Topology.even(2), 0, "mark", asked)[quiet] == "INFO"
