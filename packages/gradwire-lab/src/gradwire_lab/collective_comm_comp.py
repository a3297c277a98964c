"""MPI's collectives over connections that NICs compress: INCEPTIONN's set ``collective_comm_comp``."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from gradwire.codecs import Codec
from gradwire.errors import LinkError, LinkTimeoutError, TensorError, shown
from gradwire.exchange import Exchange
from gradwire.launch.addresses import outward_address
from gradwire.links.mpi import calls, intracommunicator, load_mpi, poll, reason
from gradwire.links.process_group import check_tos
from gradwire.links.rendezvous.attempt import refuse_marks
from gradwire.links.rendezvous.connect import connect_ranks
from gradwire.links.rendezvous.tls import encryption
from gradwire.links.sockets import SocketLink
from gradwire.plan import Plan
from gradwire.wire import TOS

if TYPE_CHECKING:
    from mpi4py import MPI
    from typing_extensions import Self


# Marked TCP connections between the processes of an MPI job, which MPI itself cannot provide.
#
# INCEPTIONN's authors changed Open MPI so that it marks its TCP connections. No unmodified MPI library offers
# this: it often doesn't use TCP, and its headers would be among the floats, where a NIC would destroy them.
# So gradwire opens its own connections, and MPI only distributes the store's address.

_PLACE_NBYTES = 64


def marked_link(comm: MPI.Comm | None = None, timeout_s: float = 30.0, tos: int = TOS) -> SocketLink:
    """Return a link between a communicator's processes, with a second, marked connection to each process."""
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
        _done(parent.Ibarrier, what, timeout_s)  # no rank needs the store now
    except BaseException:
        link.close()
        raise
    return link


def _store(mpi: Any, parent: Any, what: str, timeout_s: float) -> Store:
    """Return a store that rank 0 hosts. MPI broadcasts its address."""
    place, patience = bytearray(_PLACE_NBYTES), timedelta(seconds=timeout_s)
    opened: Store | None = None
    try:
        if parent.Get_rank() == 0:
            address = outward_address(os.environ)
            opened = TCPStore(address, 0, None, True, patience, False)
            said = f"{address} {opened.port}".encode()
            place[: len(said)] = said
        _done(lambda: parent.Ibcast([place, mpi.BYTE], 0), what, timeout_s)
        if opened is None:
            address, port = bytes(place).rstrip(b"\0").decode().split()
            opened = TCPStore(address, int(port), None, False, patience)
    except RuntimeError as error:  # the base class of torch's and mpi4py's exceptions
        raise LinkError(f"{what}: {reason(error)}") from error
    return opened


def _done(begin: Callable[[], Any], what: str, timeout_s: float) -> None:
    """Start a non-blocking MPI collective, and wait for its end. Raises ``LinkTimeoutError``."""
    with calls:
        request = begin()

    def is_done() -> bool:
        with calls:
            return bool(request.Test())

    if not poll(is_done, timeout_s):
        raise LinkTimeoutError(
            f"{what}: the collective is incomplete after {timeout_s:g} s; "
            "look for an error of another process, or raise timeout_s"
        )


class CollectiveCommComp:
    """Collectives with mpi4py's names and arguments, for float32 values that NICs may compress.

    All processes of the communicator create an instance, call its methods in the same order, and ``Free`` it.
    Buffers are contiguous float32 arrays that NumPy can share. Values use gradwire's own connections, marked
    with a type of service; all ranks get identical bits, within the error bound of the codec.

    Parameters
    ----------
    comm
        An intracommunicator of mpi4py; None is ``MPI.COMM_WORLD``.
    offload
        The codec that NICs may apply on the path, or its spec.
    algorithm
        The algorithm of ``Allreduce``; the other collectives use a star.
    scale
        See ``Plan``.
    timeout_s
        The longest wait for a peer, in seconds, before an error.
    tos
        The type of service of the marked connections.

    Raises
    ------
    SpecError
        For an invalid codec, algorithm, or scale.
    LinkError
        If MPI is missing or the ranks can't be connected.
    """

    def __init__(
        self,
        comm: MPI.Comm | None = None,
        offload: Codec | str = "inceptionn:2^-10",
        *,
        algorithm: str = "ring",
        scale: str | None = None,
        timeout_s: float = 30.0,
        tos: int = TOS,
    ) -> None:
        plan = Plan(algorithm=algorithm, offload=offload, scale=scale)
        self._mpi = load_mpi()
        self._link = marked_link(comm, timeout_s, tos)
        try:
            self._all, self._star = (
                Exchange(self._link, each) for each in (plan, replace(plan, algorithm="star"))
            )
        except BaseException:
            self._link.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.Free()

    def Allreduce(self, sendbuf: Any, recvbuf: Any, op: Any = None) -> None:  # noqa: N802 - MPI's name
        """Write the sum of all ranks' ``sendbuf`` to ``recvbuf``.

        With ``IN_PLACE``, the ranks' ``recvbuf`` are summed. Raises ``TensorError`` for unsupported buffers
        and operations, and ``ExchangeError``.
        """
        self._check_sum(op)
        self._all.all_reduce(self._filled(sendbuf, recvbuf), average=False)

    def Reduce(self, sendbuf: Any, recvbuf: Any, op: Any = None, root: int = 0) -> None:  # noqa: N802
        """Write the sum of all ranks' ``sendbuf`` to rank 0's ``recvbuf``.

        Raises ``TensorError`` and ``ExchangeError``, as ``Allreduce`` does.
        """
        self._check_sum(op)
        _check_root(root)
        if self._link.rank == 0:
            self._star.reduce(self._filled(sendbuf, recvbuf))
        else:  # a clone, because the exchange leaves partial sums in its buffer
            self._star.reduce(_floats(sendbuf, "sendbuf").clone())

    def Bcast(self, buf: Any, root: int = 0) -> None:  # noqa: N802
        """Write rank 0's ``buf``, encoded and decoded, to every rank's ``buf``, including rank 0's.

        Raises ``TensorError`` and ``ExchangeError``, as ``Allreduce`` does.
        """
        _check_root(root)
        self._star.broadcast(_floats(buf, "buf"))

    def Free(self) -> None:  # noqa: N802
        """Close the connections. Repeated calls are allowed."""
        self._all.close()
        self._star.close()

    def _filled(self, sendbuf: Any, recvbuf: Any) -> torch.Tensor:
        received = _floats(recvbuf, "recvbuf")
        if not (isinstance(sendbuf, type(self._mpi.IN_PLACE)) and sendbuf == self._mpi.IN_PLACE):
            sent = _floats(sendbuf, "sendbuf")
            if sent.numel() != received.numel():
                raise TensorError(
                    f"expected sendbuf and recvbuf of equal length, got {sent.numel()} and "
                    f"{received.numel()}; resize one buffer"
                )
            received.copy_(sent)
        return received

    def _check_sum(self, op: Any) -> None:
        if op is not None and op != self._mpi.SUM:
            raise TensorError(
                "expected the operation MPI.SUM, got another operation; omit op, or pass MPI.SUM"
            )


def _check_root(root: int) -> None:
    if root != 0:
        raise TensorError(f"expected root=0, got {shown(root)}; pass root=0")


def _floats(buffer: Any, what: str) -> torch.Tensor:
    """Return a buffer's memory as a 1-D tensor. Raises ``TensorError``."""
    try:
        array = np.asarray(buffer)
    except (TypeError, ValueError, RuntimeError):  # a CUDA tensor, a ragged list, a tensor with requires_grad
        array = np.empty(0)  # isn't float32
    if array.dtype != np.float32 or not array.flags.c_contiguous or not array.flags.writeable:
        raise TensorError(
            f"expected {what} as a writeable, contiguous float32 array, got {shown(buffer)}; pass an array "
            "that NumPy can share"
        )
    return torch.from_numpy(array.reshape(-1))
