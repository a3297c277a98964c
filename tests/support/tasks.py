"""Work for ranks that are processes; apart from the tests, since a process finds it by its module's name."""

from __future__ import annotations

import os
import time

from faults.outside import listening
from gradwire.errors import LinkError, SpecError
from gradwire.launch.group import joined_group
from gradwire.launch.seat import Seat
from gradwire.links.rendezvous.addresses import listening_address


def introduce(seat: Seat[str], greeting: str) -> None:
    store = seat.meet()
    store.set(f"rank {seat.rank}", greeting)
    others = [store.get(f"rank {rank}").decode() for rank in range(seat.world)]
    seat.tell(f"{seat.rank} of {seat.world}: {' '.join(others)}")


def fail_with_an_echo(seat: Seat[str], _: str) -> None:
    seat.doing = "far along"
    if seat.rank == 0:
        raise LinkError("rank 1 is gone")
    time.sleep(0.3)
    raise SpecError("the cause")


def leave_without_a_word(seat: Seat[str], word: str) -> None:
    seat.tell(word)
    if seat.rank == 1:
        time.sleep(0.2)
        os._exit(3)
    time.sleep(60)


def tell_where_it_listens(seat: Seat[str], _: str) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "some interface of the user's"
    with joined_group(seat.meet(), seat.rank, seat.world, 30.0):
        seat.tell(
            f"{listening_address(os.environ)} {' '.join(address for address, _ in listening([os.getpid()]))}"
        )
