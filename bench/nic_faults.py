"""Train over NICs that fail, start late, drop and reorder packets, and over links whose MTU changes.

    GRADWIRE_DATA=FOLDER python bench/nic_faults.py --rate 50mbit --steps 30

Two hosts train an MLP on MNIST, or on scikit-learn's digits, with ``Plan(offload="inceptionn:2^-10")``. In
the middle of a run, a fault occurs. The weights after every step are compared with a run without NICs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gradwire_lab.testbed import Testbed, Topology
from gradwire_lab.testbed.namespaces import inside
from gradwire_lab.testbed.output import Stream

NONE, WORK, TALK, MTU = "no NICs", "NICs", "other traffic", "another MTU"
REPLACED, LATE, KILLED = "a NIC killed and replaced", "a NIC that starts late", "a NIC killed"
NIC_FAULTS = {
    "1 % lost": ["--drop", "0.01"],
    "5 % overtaken": ["--reorder", "0.05"],
    "2 ms late": ["--delay", "2ms"],
    "lost, late, and overtaken": ["--drop", "0.01", "--reorder", "0.02", "--delay", "1ms"],
}
CASES = (NONE, WORK, *NIC_FAULTS, TALK, MTU, REPLACED, LATE, KILLED)
VICTIM = 1
"""The host whose NIC is killed or starts late."""
OTHER_MTU = 1300
PATIENCE_S = 5.0
POLL_S = 0.005
TALK_PORT, TALK_NBYTES = 2222, 4 << 20


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rate", default="50mbit")
    parser.add_argument("--codec", default="inceptionn:2^-10")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--cases", default=";".join(CASES), help="cases, separated by semicolons")
    options = parser.parse_args()
    print(f"2 hosts at {options.rate}, {options.steps} steps, {options.codec}")
    print(f"{'':<28}{'steps':>6}{'ms':>8}{'compressed':>12}  weights")
    wanted: list[str] = []
    for case in options.cases.split(";"):
        reports = train(case, options)
        ranks = sorted((each for each in reports if "rank" in each), key=lambda each: each["rank"])
        wanted = wanted or ranks[0]["hashes"]
        same = all(each["hashes"] == wanted[: len(each["hashes"])] for each in ranks)
        packets = sum(each["to_link"]["compressed"] for each in reports if "to_link" in each)
        steps = "/".join(str(len(each["hashes"])) for each in ranks)
        print(
            f"{case:<28}{steps:>6}{1e3 * statistics.median(ranks[0]['seconds']):>8.1f}{packets:>12}"
            f"  {'as without NICs' if same else 'DIFFERENT'}",
            flush=True,
        )
        for each in ranks:
            if each["error"]:
                print(f"    rank {each['rank']}, after {each['waited_s']:.1f} s: {each['error']}")
            if each["heard"] not in (None, ranks[VICTIM]["said"]):
                print("    the other traffic was ALTERED")


def train(case: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Train once; return the reports of ranks and NICs."""
    reports: list[dict[str, Any]] = []
    rest: dict[tuple[int, Stream], bytes] = {}

    def keep(host: int, stream: Stream, text: bytes) -> None:
        *lines, rest[host, stream] = (rest.get((host, stream), b"") + text).split(b"\n")
        reports.extend(json.loads(line[1:]) for line in lines if line.startswith(b"@"))

    with tempfile.TemporaryDirectory() as folder:
        own = [sys.executable, __file__]
        words = ["--json", "-", "--codec", options.codec, *NIC_FAULTS.get(case, [])]
        nic = [] if case == NONE else [*own, "nic", case, folder, *words]
        with Testbed(Topology.even(2, options.rate), nic=nic) as bed:
            host = [*own, "host", case, folder, options.codec, str(options.steps)]
            done = bed.run(host, sinks=(keep,), timeout_s=300)
    assert done.failure is None, (done.failure, rest)
    return reports


def host(case: str, folder: str, codec: str, steps: str) -> None:
    """Train as a rank, and cause the case's fault before the middle step."""
    os.environ["OMP_NUM_THREADS"] = "1"
    import torch

    from gradwire import DSync, Plan
    from gradwire.errors import ExchangeError
    from gradwire.launch.launched import launched_rank
    from gradwire.launch.rendezvous import join_launched, joined_group
    from gradwire.links import ProcessGroupLink
    from gradwire_lab.experiments.tasks import Files, mnist_mlp

    rank, world = launched_rank()
    data = os.environ.get("GRADWIRE_DATA")
    report: dict[str, Any] = {"rank": rank, "hashes": [], "seconds": [], "error": ""}
    report |= {"said": None, "heard": None}
    with joined_group(join_launched(60.0), rank, world, 60.0) as group:
        plan = Plan(offload=codec)
        link = ProcessGroupLink(group, timeout_s=PATIENCE_S, tos=plan.tos)
        task = mnist_mlp(rank, world, Files(None if data is None else Path(data)))
        method = DSync(task.model, task.optimizer(task.model), plan, group=link)
        talking = threading.Thread(target=talk, args=(rank, report), daemon=True)
        for step in range(int(steps)):
            began = time.monotonic()
            if step == int(steps) // 2:
                if case == MTU:
                    ip(f"link set dev eth0 mtu {OTHER_MTU}")
                if case == TALK:
                    talking.start()
                (Path(folder) / "now").touch()
            batch = next(task.batches)
            try:
                method.step(lambda batch=batch: task.loss(task.model, batch))  # type: ignore[misc]
            except ExchangeError as error:
                report["error"], report["waited_s"] = str(error), time.monotonic() - began
                break
            finally:
                weights = b"".join(each.detach().numpy().tobytes() for each in task.model.parameters())
                report["hashes"].append(hashlib.sha256(weights).hexdigest())
            report["seconds"].append(time.monotonic() - began)
        if report["error"]:  # the weights are unchanged since the last complete step
            assert report["hashes"].pop() == report["hashes"][-1], "a failed step changed the weights"
        if case == TALK:
            talking.join(PATIENCE_S)
        tell(report)
        torch.distributed.barrier() if not report["error"] else os._exit(0)


def talk(rank: int, report: dict[str, Any]) -> None:
    """Send unmarked bytes from the victim to the other host; report their hash at both ends."""
    address = json.loads(os.environ["GRADWIRE_TESTBED"])["addresses"][1 - VICTIM]
    if rank != VICTIM:
        with socket.create_server((address, TALK_PORT)) as server, server.accept()[0] as stream:
            report["heard"] = hashlib.sha256(b"".join(iter(lambda: stream.recv(1 << 16), b""))).hexdigest()
        return
    data = random.Random(1).randbytes(TALK_NBYTES)
    report["said"] = hashlib.sha256(data).hexdigest()
    until(lambda: not sends(address, data))


def sends(address: str, data: bytes) -> bool:
    """Send the data; return whether to retry because the other host isn't ready."""
    try:
        with socket.create_connection((address, TALK_PORT), PATIENCE_S) as stream:
            stream.sendall(data)
    except ConnectionRefusedError:
        return True
    return False


def nic(case: str, folder: str, *words: str) -> None:
    """Run a NIC, and cause the case's fault when the ranks signal it."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    number = int(ip("-o link show dev link").split("link/ether ")[1].split()[0].split(":")[-1], 16) - 1
    is_victim, now = number == VICTIM, Path(folder) / "now"
    late = is_victim and case == LATE
    if late:
        os.write(int(words[-1]), b"+")
        ip("link add name past type bridge")
        ip(*(f"link set dev {side} master past" for side in ("host", "link")))
        ip("link set dev past addrgenmode none up")
    card = None if late else start(words)
    if (is_victim and case in (REPLACED, KILLED, LATE)) or case == MTU:
        until(now.exists)
        if case == MTU:
            ip(*(f"link set dev {side} mtu {OTHER_MTU}" for side in ("host", "link")))
            switch = os.open("/proc/1/ns/net", os.O_RDONLY)
            with inside(switch):
                ip(f"link set dev h{number} mtu {OTHER_MTU}")
        if card is not None and case in (REPLACED, KILLED):
            card.kill()
            card.communicate()
        if late:
            ip("link del dev past")
        if case in (REPLACED, LATE):
            card = start(words[:-2])
    signal.sigwait([signal.SIGTERM])
    if card is not None and card.returncode is None:
        card.terminate()
        tell(json.loads(card.communicate()[0]))


def start(words: tuple[str, ...]) -> subprocess.Popen[str]:
    """Start ``gradwire nic``."""
    ready = [int(words[-1])] if "--ready-fd" in words else []
    command = [sys.executable, "-m", "gradwire", "nic", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, pass_fds=ready)


def until(condition: Callable[[], object]) -> None:
    """Wait for a condition, or until this process is terminated."""
    while not condition():
        time.sleep(POLL_S)


def ip(*lines: str) -> str:
    """Run ``ip`` once for each line of arguments; return the output."""
    output = ""
    for line in lines:
        output += subprocess.run(["ip", *line.split()], check=True, capture_output=True, text=True).stdout
    return output


def tell(what: dict[str, Any]) -> None:
    """Print a JSON object for ``train``."""
    print("@" + json.dumps(what), flush=True)


if __name__ == "__main__":
    modes: dict[str, Callable[..., None]] = {"host": host, "nic": nic}
    modes[sys.argv[1]](*sys.argv[2:]) if sys.argv[1:2] and sys.argv[1] in modes else main()
