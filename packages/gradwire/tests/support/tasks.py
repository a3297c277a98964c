"""Work for ranks that are processes; apart from the tests, since a process finds it by its module's name."""

from __future__ import annotations

import logging
import os
import time

from faults.outside import listening
from gradwire.errors import LOSSY_LOGGER, LinkError, SpecError
from gradwire.launch.local import RankContext
from gradwire.launch.rendezvous import joined_group
from gradwire.links.rendezvous.addresses import listening_address


def introduce(context: RankContext[str], greeting: str) -> None:
    store = context.join_store()
    store.set(f"rank {context.rank}", greeting)
    others = [store.get(f"rank {rank}").decode() for rank in range(context.world)]
    context.report(f"{context.rank} of {context.world}: {' '.join(others)}")


def fail_with_an_echo(context: RankContext[str], _: str) -> None:
    context.doing = "far along"
    if context.rank == 0:
        raise LinkError("rank 1 is gone")
    time.sleep(0.3)
    raise SpecError("the cause")


def warn(context: RankContext[str], sentence: str) -> None:
    logging.getLogger(LOSSY_LOGGER).warning(f"rank {context.rank}: {sentence}")
    context.report("warned")


def leave_without_a_word(context: RankContext[str], word: str) -> None:
    context.report(word)
    if context.rank == 1:
        time.sleep(0.2)
        os._exit(3)
    time.sleep(60)


def tell_where_it_listens(context: RankContext[str], _: str) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "some interface of the user's"
    with joined_group(context.join_store(), context.rank, context.world, 30.0):
        context.report(
            f"{listening_address(os.environ)} {' '.join(address for address, _ in listening([os.getpid()]))}"
        )
