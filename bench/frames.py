"""Measure the cost of a frame between two processes: over a link's sockets, and with Gloo's send and receive.

    python bench/frames.py            # half a minute

Both ends send and receive simultaneously over the loopback interface, as neighbours in a ring do. The table
shows processor time and wall time for one frame sent and one frame received, as medians over repetitions.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

from gradwire.links import ProcessGroupLink

SIZES = [64, 16 << 10, 128 << 10, 1 << 20]
ROUNDS = 9


def main() -> None:
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    print(f"{'':18s} {'sockets':>22s} {'Gloo':>22s}\nbytes a frame      {'us of a core   us ' * 2}")
    with TemporaryDirectory() as folder:
        ranks = [
            multiprocessing.get_context("spawn").Process(target=measure, args=(rank, folder))
            for rank in range(2)
        ]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join()


def measure(rank: int, folder: str) -> None:
    """Time frames as one of the two ranks; rank 0 prints the table."""
    torch.set_num_threads(1)
    store = FileStore(str(Path(folder, "store")), 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    assert dist.group.WORLD is not None
    link = ProcessGroupLink(dist.group.WORLD, timeout_s=30.0)
    peer = 1 - rank
    for nbytes in SIZES:
        out, into = (torch.zeros(nbytes, dtype=torch.uint8) for _ in range(2))

        def over_sockets(out: torch.Tensor = out, into: torch.Tensor = into) -> None:
            receiving, sending = link.irecv(peer, into), link.isend(peer, out)
            receiving.wait()
            sending.wait()

        def over_gloo(out: torch.Tensor = out, into: torch.Tensor = into) -> None:
            receiving, sending = dist.irecv(into, peer), dist.isend(out, peer)
            assert receiving is not None
            assert sending is not None
            receiving.wait()
            sending.wait()

        frames = max(50, (64 << 20) // max(nbytes, 32 << 10) // ROUNDS)
        found = [cost(each, frames) for each in (over_sockets, over_gloo)]
        if rank == 0:
            print(
                f"{nbytes:13d}      " + " ".join(f"{cpu:13.1f} {wall:8.1f}" for cpu, wall in found),
                flush=True,
            )
    link.close()
    dist.destroy_process_group()


def cost(exchange: Callable[[], None], frames: int) -> tuple[float, float]:
    """Return the processor and wall time, in microseconds, for one frame sent and one frame received."""
    spent = []
    for _ in range(ROUNDS):
        dist.barrier()
        cpu, wall = time.process_time(), time.perf_counter()
        for _ in range(frames):
            exchange()
        spent.append(
            (1e6 * (time.process_time() - cpu) / frames, 1e6 * (time.perf_counter() - wall) / frames)
        )
    cpus, walls = zip(*spent[1:], strict=True)
    return statistics.median(cpus), statistics.median(walls)


if __name__ == "__main__":
    main()
