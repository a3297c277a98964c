"""A program for the ranks of an MPI job: ``python -m support.mpi_ranks FOLDER`` does all tasks in turn.

Every rank leaves in FOLDER what each of its tasks returned, or the traceback of the task that failed.
"""

from __future__ import annotations

import pickle
import re
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

import gradwire.links
from gradwire import codecs, collectives
from gradwire.codecs import parse
from gradwire.errors import ExchangeError, LinkError, LinkTimeoutError
from gradwire.exchange import Exchange
from gradwire.links import Link, MpiLink, mpi
from gradwire.links.mpi import calls, free_communicators
from gradwire.plan import SEGMENT_UNIT_NBYTES, Plan
from gradwire.timing.packet_trains import Direction, answer
from gradwire.version import version
from gradwire.wire import parting_frame
from support.project import DOCS
from support.sums import COMPOSED, SEGMENT_COUNT, shares

IMPORTED_TOO_EARLY = "mpi4py" in sys.modules
WORLD = 4
ALGORITHMS = (*sorted(collectives.TABLE), *COMPOSED)
SPECS = tuple(row.codec.EXAMPLES[0] for row in codecs.TABLE)
LENGTHS = (1, 32, 999, 5000, 3_000_000)  # the last is too long to be sent before it is asked for
MANY_LINKS, UNTAKEN = 20, 7
PIECES = 4
EXAMPLE = re.compile(r"```python\n(.*?)```", re.DOTALL)
PAGE = DOCS / "mpi.md"


def all_sums(link: Link) -> dict[tuple[str, str, int], torch.Tensor]:
    """All-reduce in all ways over one link; the last length has chunks of many segments."""
    found = {}
    for algorithm in ALGORITHMS:
        long = 3 * collectives.get(algorithm).chunks(link.world) * SEGMENT_COUNT + 77
        ways = [(spec, n) for spec in SPECS for n in (link.world - 1, 1000)] + [("errbound:2^-10", long)]
        for spec, n in ways:
            tensor = shares(link.world, n)[link.rank]
            Exchange(link, Plan(parse(spec), algorithm, SEGMENT_UNIT_NBYTES)).all_reduce(
                tensor, average=False
            )
            found[algorithm, spec, n] = tensor
    return found


def frame(number: int, nbytes: int = 100) -> torch.Tensor:
    return torch.full((nbytes,), number, dtype=torch.uint8)


def sums() -> dict[tuple[str, str, int], torch.Tensor]:
    link = MpiLink()
    try:
        return all_sums(link)
    finally:
        link.close()


def frames_beside_the_callers_own() -> dict[str, Any]:
    """Exchange frames of all lengths while the caller waits for any message from anybody."""
    from mpi4py import MPI

    link, world = MpiLink(timeout_s=20.0), MPI.COMM_WORLD
    own = bytearray(3)
    request = world.Irecv([own, MPI.BYTE], MPI.ANY_SOURCE, MPI.ANY_TAG)
    others = [rank for rank in range(link.world) if rank != link.rank]
    buffers = {(rank, i): frame(255, 1 << 22) for rank in others for i in range(len(LENGTHS))}
    receivings = {key: link.irecv(key[0], buffer) for key, buffer in buffers.items()}
    sendings = [link.isend(r, frame(10 * link.rank + i, n)) for r in others for i, n in enumerate(LENGTHS)]
    came = {key: receiving.wait() for key, receiving in receivings.items()}
    for sending in sendings:
        sending.wait()
    early = request.Test()
    world.Barrier()  # from here on ranks send messages of their own
    world.Send([b"own", MPI.BYTE], (link.rank + 1) % link.world, 0)
    while not early and not request.Test():
        time.sleep(0.001)
    link.close()
    return {
        "place": (link.rank, link.world),
        "lengths": {key: tensor.numel() for key, tensor in came.items()},
        "values": {key: [int(tensor.min()), int(tensor.max())] for key, tensor in came.items()},
        "in place": all(tensor.data_ptr() == buffers[key].data_ptr() for key, tensor in came.items()),
        "early": early,
        "own": bytes(own),
    }


def late() -> tuple[str, float]:
    """Rank 0 waits for a frame of rank 1, rank 2 for rank 3 to take one; both wait in vain."""
    link = MpiLink(timeout_s=0.5)
    started = time.monotonic()
    try:
        if link.rank in (0, 2):
            waiting = link.irecv(1, frame(0)) if link.rank == 0 else link.isend(3, frame(0, 1 << 24))
            waiting.wait()
        time.sleep(1.5)
        return "", 0.0
    except LinkTimeoutError as error:
        return str(error), time.monotonic() - started
    finally:
        link.close()


def served_last() -> str:
    """Rank 0 serves the slow rank 1 and then the others, which wait meanwhile; then all stand still."""
    from mpi4py import MPI

    link = MpiLink(timeout_s=20.0)
    MPI.COMM_WORLD.Barrier()
    try:
        if link.rank == 0:
            for _ in range(6):
                link.irecv(1, frame(0)).wait(0.8, keepalive=True)
            for peer in (2, 3):
                link.isend(peer, frame(9)).wait(0.8, keepalive=True)
        elif link.rank == 1:
            for number in range(6):
                time.sleep(0.25)
                link.isend(0, frame(number)).wait(0.8, keepalive=True)
        else:
            assert int(link.irecv(0, frame(0)).wait(0.8, keepalive=True)[0]) == 9
        waiting = link.irecv((link.rank + 1) % WORLD, frame(0))
        said, seconds = failure(lambda: waiting.wait(0.8, keepalive=True))
        MPI.COMM_WORLD.Barrier()
        return said if seconds < 5.0 else f"after {seconds} s: {said}"
    finally:
        link.close()


def closed() -> dict[str, tuple[str, float]]:
    """Rank 1 says something to rank 2 and closes; the others wait for it in both directions."""
    link = MpiLink(timeout_s=20.0)
    if link.rank == 1:
        link.isend(2, frame(7)).wait()
        pending = link.irecv(0, frame(0))
        time.sleep(0.3)
        link.close()
        link.close()
        return {"own wait": failure(pending.wait), "own send": failure(lambda: link.isend(0, frame(0)))}
    if link.rank == 2:
        time.sleep(0.6)
    first = failure(link.irecv(1, frame(0)).wait)
    again = failure(link.irecv(1, frame(0)).wait)
    send = failure(link.isend(1, frame(0, 1 << 24)).wait)
    link.close()
    return {"first": first, "again": again, "send": send}


def failure(act: Callable[[], object]) -> tuple[str, float]:
    """Return the error's text, or the value of the frame that came, and how long it took."""
    started = time.monotonic()
    try:
        came = act()
        said = str(int(came[0])) if isinstance(came, torch.Tensor) else "nothing failed"
    except LinkError as error:
        said = str(error)
    return said, time.monotonic() - started


def trains() -> list[tuple[int, int, float, float]]:
    """Measure both directions of the links to both neighbours in pieces, as a training run does.

    Return the number of trains alone and with others, the rate, and the latency of each.
    """
    link, found = MpiLink(timeout_s=20.0), []
    for shift in (1, 3):
        own, source = Direction((link.rank + shift) % link.world), (link.rank - shift) % link.world
        for turn in range(2 * PIECES):
            if link.rank % 2 == turn % 2:
                own.send(link, 0.01)
            else:
                own.nbytes = max(own.nbytes, answer(link, source))
        for _ in range(PIECES):
            own.send_and_answer(link, source)
        assert own.line is not None
        found.append((len(own.alone), len(own.both), own.line.nbytes_per_s, own.line.latency_s))
    link.close()
    return found


def trains_of_a_rank_that_leaves() -> str:
    """Measure the link to a rank that leaves in the measurement, with messages that are too short for it."""
    link = MpiLink(timeout_s=5.0)
    try:
        if link.rank == 1:
            link.leave(parting_frame([(1, 3)], has_left=True))
        elif link.rank == 0:
            link.step = 3
            return failure(lambda: Direction(1).send(link, 0.01))[0]
        return ""
    finally:
        link.close()


def too_large() -> list[str]:
    link = MpiLink(timeout_s=5.0)
    try:
        if link.rank == 0:
            link.isend(1, frame(1, 1000)).wait()
            return [failure(lambda: link.isend(99, frame(1)))[0]]
        return [failure(link.irecv(0, frame(0)).wait)[0]] if link.rank == 1 else []
    finally:
        link.close()


def one_rank_leaves() -> tuple[str, float]:
    exchange, tensor = Exchange(MpiLink(timeout_s=20.0), Plan()), torch.ones(100_000)
    exchange.all_reduce(tensor)
    started = time.monotonic()
    try:
        if exchange.link.rank != 3:
            exchange.all_reduce(tensor)
        return "", 0.0
    except ExchangeError as error:
        return str(error), time.monotonic() - started
    finally:
        exchange.close()


def two_links_in_two_threads() -> list[set[float]]:
    links: list[Link] = [MpiLink(), MpiLink()]
    found: list[set[float]] = [set(), set()]

    def work(i: int) -> None:
        exchange, tensor = Exchange(links[i], Plan()), torch.empty(50_000)
        for _ in range(20):
            tensor.fill_(float(10 ** links[i].rank * (i + 1)))
            exchange.all_reduce(tensor, average=False)
            found[i] |= {tensor.min().item(), tensor.max().item()}

    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for link in links:
        link.close()
    return found


def communicators_of_closed_links() -> list[bool]:
    """Make and close links; rank 1 does not take a frame of one of them. Return which were given back."""
    from mpi4py import MPI

    comms = []
    for number in range(MANY_LINKS):
        link = MpiLink()
        if number == UNTAKEN and link.rank == 0:
            link.isend(1, frame(1)).wait()
        comms.append(link._comm)
        link.close()
    wanted = MANY_LINKS - (MPI.COMM_WORLD.Get_rank() == 1)
    deadline = time.monotonic() + 10.0
    while sum(comm == MPI.COMM_NULL for comm in comms) < wanted and time.monotonic() < deadline:
        time.sleep(0.01)
        with calls:
            free_communicators()
    return [comm == MPI.COMM_NULL for comm in comms]


def links_of_some_ranks() -> dict[str, str]:
    """Link every second rank; then rank 0 of each pair makes another link, for which its peer is late."""
    from mpi4py import MPI

    half = MPI.COMM_WORLD.Split(MPI.COMM_WORLD.Get_rank() % 2)
    link = MpiLink(half)
    said = {"place": f"{link.rank} of {link.world}", "none": failure(lambda: MpiLink(MPI.COMM_NULL))[0]}
    if link.rank == 0:
        said["alone"] = failure(lambda: MpiLink(half, timeout_s=0.3))[0]
        request = mpi._unfinished[-1][1]
    else:
        time.sleep(0.6)
        _, request = half.Idup()
    while not request.Test():  # nothing may be under way when MPI ends
        time.sleep(0.001)
    link.close()
    return said


def another_version() -> tuple[str, int]:
    """Let rank 1 run another version; then make a link as before. Return what was said, and both sums."""
    from mpi4py import MPI

    own = "9.9" if MPI.COMM_WORLD.Get_rank() == 1 else version()
    with patch.object(mpi, "version", lambda: own):
        said = failure(MpiLink)[0]
    link, total = MpiLink(), torch.ones(WORLD)
    Exchange(link, Plan()).all_reduce(total, average=False)
    link.close()
    return said, int(total.sum())


def example() -> list[str]:
    blocks = EXAMPLE.findall(PAGE.read_text(encoding="utf-8"))
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), {})
    return blocks


TASKS = (
    frames_beside_the_callers_own,
    sums,
    late,
    served_last,
    closed,
    trains,
    trains_of_a_rank_that_leaves,
    too_large,
    one_rank_leaves,
    two_links_in_two_threads,
    communicators_of_closed_links,
    links_of_some_ranks,
    another_version,
    example,
)


def main(folder: Path) -> None:
    results: dict[str, tuple[Any, str | None]] = {"imported too early": (IMPORTED_TOO_EARLY, None)}
    for task in TASKS:
        started = time.monotonic()
        try:
            results[task.__name__] = (task(), None)
        except Exception:
            results[task.__name__] = (None, traceback.format_exc())
        if "-v" in sys.argv:
            sys.stderr.write(f"{task.__name__}: {time.monotonic() - started:.2f} s\n")
    from mpi4py import MPI

    (folder / f"{MPI.COMM_WORLD.Get_rank()}").write_bytes(pickle.dumps(results))


if __name__ == "__main__":
    torch.set_num_threads(1)
    assert gradwire.links
    main(Path(sys.argv[1]))
