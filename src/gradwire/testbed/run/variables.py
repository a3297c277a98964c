"""The environment of a host's command: ``torchrun``'s variables for one process on each of N machines."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping

from gradwire.testbed.network.topology import INTERFACE, Topology, address
from gradwire.testbed.registry import MARK

MASTER_PORT = 29500
"""The port is always free, because the testbed has its own network."""
TOPOLOGY = "GRADWIRE_TESTBED"
KEPT_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(1 << 32), "MALLOC_TRIM_THRESHOLD_": str(1 << 34)}
"""Let glibc keep large blocks. Otherwise each step gets its gradients anew from the kernel, page by page,
which takes half of the computation, with every method."""
INTERFACE_VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME")


def variables(topology: Topology, host: int, mark: str, inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a host's command: the inherited one, and the variables of a rank.

    Unless ``OMP_NUM_THREADS`` is inherited, OpenMP's threads are limited to the host's share of the machine's
    cores, because each host would otherwise start a thread per core. PyTorch's warning that addresses have no
    names is turned off.
    """
    cores = len(os.sched_getaffinity(0))
    described = {
        "topology": topology.to_dict(),
        "addresses": [address(each) for each in range(topology.hosts)],
        "interface": INTERFACE,
        "shared_cores": cores,
    }
    own, all_of_them = str(host), str(topology.hosts)
    return {
        "OMP_NUM_THREADS": str(max(1, cores // topology.hosts)),
        "TORCH_CPP_LOG_LEVEL": "ERROR",
        **inherited,
        "RANK": own,
        "WORLD_SIZE": all_of_them,
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "GROUP_RANK": own,
        "GROUP_WORLD_SIZE": all_of_them,
        "ROLE_NAME": "default",
        "ROLE_RANK": own,
        "ROLE_WORLD_SIZE": all_of_them,
        "MASTER_ADDR": address(0),
        "MASTER_PORT": str(MASTER_PORT),
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCHELASTIC_RUN_ID": mark,
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        **dict.fromkeys(INTERFACE_VARIABLES, INTERFACE),
        MARK: mark,
        TOPOLOGY: json.dumps(described),
    }
