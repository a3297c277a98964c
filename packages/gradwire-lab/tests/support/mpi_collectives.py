"""A program for the ranks of an MPI job: MPI's collectives over marked connections.

``python -m support.mpi_collectives FOLDER`` leaves in FOLDER what every rank found.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from gradwire.errors import GradwireError
from gradwire.exchange import Exchange
from gradwire.links import MpiLink
from gradwire.plan import Plan
from gradwire_lab.collective_comm_comp import CollectiveCommComp

WORLD = 3
SPEC = "inceptionn:2^-8,bounded"


def share(rank: int, n: int = 5000) -> Any:
    return np.random.default_rng(rank).laplace(0, 0.02, n).astype(np.float32)


def main(folder: Path) -> None:
    from mpi4py import MPI

    rank = MPI.COMM_WORLD.Get_rank()
    with CollectiveCommComp(offload=SPEC, timeout_s=20.0) as comp:
        summed, in_place = np.empty(5000, np.float32), share(rank).reshape(50, 100)
        comp.Allreduce(share(rank), summed, MPI.SUM)
        comp.Allreduce(MPI.IN_PLACE, in_place)
        reduced = np.zeros(5000, np.float32)
        comp.Reduce(share(rank), reduced if rank == 0 else None)
        told = share(7) if rank == 0 else np.zeros(5000, np.float32)
        comp.Bcast(told)
        errors = [
            said(lambda: comp.Allreduce(share(rank), summed, MPI.MAX)),
            said(lambda: comp.Allreduce(share(rank), np.empty(5000))),
            said(lambda: comp.Allreduce(share(rank, 5), summed)),
            said(lambda: comp.Reduce(share(rank), reduced, root=1)),
            said(lambda: comp.Bcast(told[::2])),
        ]
    link = MpiLink(timeout_s=20.0)
    errors.append(said(lambda: Exchange(link, Plan(offload=SPEC))))
    link.close()
    found = {"sum": summed, "in place": in_place, "reduced": reduced, "told": told, "errors": errors}
    (folder / f"{rank}").write_bytes(pickle.dumps(found))


def said(act: Callable[[], object]) -> str:
    try:
        act()
    except GradwireError as error:
        return str(error)
    return ""


if __name__ == "__main__":
    main(Path(sys.argv[1]))
