"""A program for a network of its own: two ranks all-reduce, and tell which addresses they connect.

``python -m support.tunnel_ranks FOLDER`` prints what the ranks returned, as JSON.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import socket
import sys
from pathlib import Path

import torch

import gradwire
from support.processes import run_rank

ESTABLISHED = "01"


def connected_addresses() -> list[str]:
    """Return the addresses, own and others', of all TCP connections of this process."""
    own = {_target(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")}
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/self/net/{table}").read_text(encoding="ascii").splitlines()[1:]:
            fields = line.split()
            if fields[3] == ESTABLISHED and f"socket:[{fields[9]}]" in own:
                found |= {_readable(fields[1]), _readable(fields[2])}
    return sorted(found)


def _target(link: str) -> str:
    try:
        return os.readlink(link)
    except FileNotFoundError:  # what listed the folder
        return ""


def _readable(address: str) -> str:
    digits = address.partition(":")[0][-8:]  # of one that is mapped into IPv6, too
    return socket.inet_ntop(socket.AF_INET, bytes.fromhex(digits)[::-1])


def reduce_and_look() -> tuple[float, list[str]]:
    tensor = torch.ones(100_000)
    gradwire.all_reduce(tensor, average=False)
    return tensor.max().item(), connected_addresses()


def main(folder: Path) -> None:
    cases = [(rank, 2, str(folder), reduce_and_look, ()) for rank in range(2)]
    with multiprocessing.get_context("fork").Pool(2) as pool:
        sys.stdout.write(json.dumps(pool.starmap_async(run_rank, cases, chunksize=1).get(60)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
