"""Hosts at bridges, each in namespaces with its own name and ``/etc/hosts``, for ranks of a launched job.

``run_hosts`` runs a program on all of them. The hosts have no default route and no name server.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from support.project import TESTS, TESTS_PATH

_OWN = ("unshare", "--net", "--mount", "--uts")
_AREA = ("--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc")
_HOST = """
ip link set lo up
number=0
for place in $1; do
    ip address add "$place" dev "eth$number" nodad
    ip link set "eth$number" up
    number=$((number + 1))
done
hostname "$2"
mount --bind "$3" /etc/hosts
shift 3
exec "$@"
"""
_LOCAL = "127.0.0.1 localhost\n::1 localhost\n"


def address(host: int, family: int = 4, network: int = 0) -> str:
    """Return a host's address at a bridge, on the interface with that number."""
    return (
        f"10.78.{network}.{host + 1}" if family == 4 else str(ip_address(f"fd77:0:0:{network}::{host + 1}"))
    )


def debian(host: int, hosts: int, family: int = 4) -> str:
    """Return ``/etc/hosts`` as Debian's installer writes it: the host's own name has a loopback address."""
    own = "127.0.1.1" if family == 4 else "::1"
    named = {own: host} | {address(each, family): each for each in range(hosts) if each != host}
    return _LOCAL + "".join(f"{place} host{each}\n" for place, each in named.items())


def run_hosts(
    program: Sequence[str],
    tables: Sequence[str],
    variables: Mapping[str, str],
    family: int = 4,
    ranks: int = 1,
    timeout_s: float = 120.0,
    networks: int = 1,
) -> list[tuple[int, str]]:
    """Run ``ranks`` ranks of a Python program on each host; return exit codes and outputs in rank order.

    ``tables`` are the hosts' ``/etc/hosts``, and ``variables`` those of the environment that a launcher sets
    beside the ranks. No variable for interfaces is inherited. Each host has an interface in each network.
    """
    work = {"program": program, "tables": tables, "variables": variables, "family": family, "ranks": ranks}
    work["networks"] = networks
    kept = {name: text for name, text in os.environ.items() if not name.endswith("SOCKET_IFNAME")}
    done = subprocess.run(
        [*_OWN, *_AREA, sys.executable, "-m", __name__, "all", str(timeout_s)],
        input=json.dumps(work),
        env={**kept, "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR", "PYTHONPATH": TESTS_PATH},
        cwd=TESTS,
        capture_output=True,
        text=True,
        timeout=timeout_s + 30,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [(code, output) for host in json.loads(done.stdout) for code, output in host]


def _ip(words: str) -> None:
    subprocess.run(["ip", *words.split()], check=True, timeout=20)


def _started(*command: str) -> subprocess.Popen[str]:
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _run_all(work: Mapping[str, Any], timeout_s: float) -> list[Any]:
    """Make the network, run all hosts, and return what each host's ranks returned."""
    networks = range(work["networks"])
    for network in networks:
        _ip(f"link add bridge{network} type bridge")
        _ip(f"link set bridge{network} up")
    with tempfile.TemporaryDirectory() as folder:
        hosts = []
        for host, table in enumerate(work["tables"]):
            names = Path(folder, str(host))
            names.write_text(table, encoding="ascii")
            length = 24 if work["family"] == 4 else 64
            where = " ".join(f"{address(host, work['family'], network)}/{length}" for network in networks)
            own = [sys.executable, "-m", __spec__.name, "host", str(timeout_s)]
            waits = f"read -r ready\n{_HOST}"
            hosts.append(_started(*_OWN, "sh", "-ec", waits, "sh", where, f"host{host}", str(names), *own))
            _wait_for_namespace(hosts[-1].pid)
            for network in networks:
                port = f"h{host}n{network}"
                _ip(f"link add {port} type veth peer name eth{network} netns {hosts[-1].pid}")
                _ip(f"link set {port} master bridge{network} up")
        for host, each in enumerate(hosts):
            assert each.stdin is not None
            each.stdin.write(f"ready\n{json.dumps({**work, 'host': host})}")
            each.stdin.close()
            each.stdin = None
        return [json.loads(each.communicate(timeout=timeout_s + 20)[0]) for each in hosts]


def _wait_for_namespace(process: int) -> None:
    own, deadline = os.readlink("/proc/self/ns/net"), time.monotonic() + 20
    while os.readlink(f"/proc/{process}/ns/net") == own:
        assert time.monotonic() < deadline, "waited in vain for unshare"
        time.sleep(0.005)


def _run_host(work: Mapping[str, Any], timeout_s: float) -> list[tuple[int, str]]:
    """Run the ranks of one host as a launcher does, and return their exit codes and outputs."""
    host, ranks, world = work["host"], work["ranks"], len(work["tables"]) * work["ranks"]
    programs = []
    for local in range(ranks):
        own = {"RANK": host * ranks + local, "LOCAL_RANK": local, "WORLD_SIZE": world}
        own |= {"LOCAL_WORLD_SIZE": ranks, "MASTER_PORT": 29500}
        environment = os.environ | {name: str(value) for name, value in own.items()} | work["variables"]
        programs.append(
            subprocess.Popen(
                [sys.executable, *work["program"]],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    until, ended = time.monotonic() + timeout_s, []
    for each in programs:
        try:
            output = each.communicate(timeout=max(0.1, until - time.monotonic()))[0]
        except subprocess.TimeoutExpired:
            each.kill()
            output = each.communicate()[0] + "\nkilled after its time"
        ended.append((each.returncode, output))
    return ended


if __name__ == "__main__":
    _MODES = {"all": _run_all, "host": _run_host}
    sys.stdout.write(json.dumps(_MODES[sys.argv[1]](json.loads(sys.stdin.read()), float(sys.argv[2]))))
