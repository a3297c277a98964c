"""The thread that computes norms and packs: how many threads it may use, and on which CPUs they run."""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from gradwire.codecs.spec import is_whole
from gradwire.errors import SpecError, shown

_NODES = Path("/sys/devices/system/node")


def packing_thread(threads: int | None = None, numa: int | None = None) -> ThreadPoolExecutor:
    """Return a thread whose kernels use ``threads`` threads, itself included, on the CPUs of a NUMA node.

    None leaves the number to torch, and the CPUs to the system. Raises ``SpecError``.
    """
    if threads is not None and not is_whole(threads, 1, sys.maxsize):
        raise SpecError(f"threads must be a whole number from 1 up, or None, but is {shown(threads)}")
    cpus = None if numa is None else _cpus_of(numa)
    pool = ThreadPoolExecutor(1, thread_name_prefix="gradwire offload")
    if threads is not None:
        before = torch.get_num_threads()
        pool.submit(_use, threads).result()
        torch.set_num_threads(before)  # threads that start later have the number that was set last anywhere
    if cpus is not None:  # the threads that this one starts inherit it
        pool.submit(os.sched_setaffinity, 0, cpus).result()
    return pool


def _use(threads: int) -> None:
    torch.get_num_threads()  # a thread's first call takes the number of the process
    torch.set_num_threads(threads)


def _cpus_of(node: int) -> set[int]:
    """Return the CPUs of a node that this process may use."""
    found = {int(each.name.removeprefix("node")): each for each in _NODES.glob("node[0-9]*")}
    if isinstance(node, bool) or node not in found or not hasattr(os, "sched_setaffinity"):
        nodes = ", ".join(map(str, sorted(found))) or "none"
        raise SpecError(f"numa must be a NUMA node of this machine ({nodes}), or None, but is {shown(node)}")
    cpus = _listed((found[node] / "cpulist").read_text()) & os.sched_getaffinity(0)
    if not cpus:
        raise SpecError(
            f"numa={node} has no CPU that this process may run on; choose another node, or start the process "
            f"with one of that node's CPUs (numactl --cpunodebind={node})"
        )
    return cpus


def _listed(text: str) -> set[int]:
    """Return the numbers of a list such as ``0-3,8``."""
    ranges = [part.partition("-") for part in text.strip().split(",") if part]
    return {cpu for first, _, last in ranges for cpu in range(int(first), int(last or first) + 1)}
