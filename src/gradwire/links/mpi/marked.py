"""Marked connections between the processes of an MPI job, which MPI itself cannot have.

INCEPTIONN's authors changed Open MPI, so that it marks its TCP connections. No MPI offers that as it is: a
library opens its connections by itself, often over no TCP at all, and MPI's headers would be among the
floats, where a NIC would destroy them. So gradwire opens its own, and MPI only tells the ranks where.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from torch._C._distributed_c10d import PrefixStore, Store, TCPStore  # torch.distributed: at run time only

from gradwire.errors import LinkError, LinkTimeoutError
from gradwire.links.mpi.calls import calls, intracommunicator, load_mpi, poll, reason
from gradwire.links.process_group import check_tos
from gradwire.links.rendezvous.addresses import listening_address
from gradwire.links.rendezvous.connect import connect_ranks
from gradwire.links.rendezvous.same_encryption import refuse_marks
from gradwire.links.rendezvous.tls import encryption
from gradwire.links.sockets import SocketLink
from gradwire.wire import TOS

if TYPE_CHECKING:
    from mpi4py import MPI

_PLACE_NBYTES = 64


def marked_link(comm: MPI.Comm | None = None, timeout_s: float = 30.0, tos: int = TOS) -> SocketLink:
    """Return a link of all processes of a communicator, over connections of its own, half of them marked.

    All processes call it together. Values that NICs may compress travel on the marked connections.

    Parameters
    ----------
    comm
        An intracommunicator of mpi4py; ``MPI.COMM_WORLD`` where it is None.
    timeout_s
        How long a wait lasts at most while nothing happens, in seconds.
    tos
        The type of service of the marked connections.

    Raises
    ------
    LinkError
        Where mpi4py or MPI is missing, the variables for TLS are set, or the ranks can't reach each other.
        ``LinkTimeoutError`` when they do not come in time.
    """
    check_tos(tos)
    mpi = load_mpi()
    parent = intracommunicator(mpi, comm)
    rank, world = parent.Get_rank(), parent.Get_size()
    if encryption(os.environ) is not None:
        refuse_marks(tos, rank, world)
    names = [f"rank {each}" for each in range(world)]
    if world == 1:
        return SocketLink(rank, {}, timeout_s, names, {}, tos)
    what = f"rank {rank} joining the {world} ranks of its communicator"
    store = _store(mpi, parent, what, timeout_s)
    connections = connect_ranks(PrefixStore("link", store), rank, names, timeout_s)
    try:
        marked = connect_ranks(PrefixStore("marked", store), rank, names, timeout_s, tos=tos)
        link = SocketLink(rank, connections, timeout_s, names, marked, tos)
    except BaseException:
        for each in connections.values():
            each.close()
        raise
    try:
        _done(parent.Ibarrier, what, timeout_s)  # nobody asks the store any more
    except BaseException:
        link.close()
        raise
    return link


def _store(mpi: Any, parent: Any, what: str, timeout_s: float) -> Store:
    """Return a store that rank 0 opens, and whose place MPI tells the others."""
    place, patience = bytearray(_PLACE_NBYTES), timedelta(seconds=timeout_s)
    opened: Store | None = None
    try:
        if parent.Get_rank() == 0:
            address = listening_address(os.environ)
            opened = TCPStore(address, 0, None, True, patience, False)
            said = f"{address} {opened.port}".encode()
            place[: len(said)] = said
        _done(lambda: parent.Ibcast([place, mpi.BYTE], 0), what, timeout_s)
        if opened is None:
            address, port = bytes(place).rstrip(b"\0").decode().split()
            opened = TCPStore(address, int(port), None, False, patience)
    except RuntimeError as error:  # torch's and mpi4py's exceptions are some
        raise LinkError(f"{what}: {reason(error)}") from error
    return opened


def _done(begin: Callable[[], Any], what: str, timeout_s: float) -> None:
    """Begin something that all ranks do, and return when it is done. Raises ``LinkTimeoutError``."""
    with calls:
        request = begin()

    def is_done() -> bool:
        with calls:
            return bool(request.Test())

    if not poll(is_done, timeout_s):
        raise LinkTimeoutError(f"{what}: nothing happened within {timeout_s:g} s")
