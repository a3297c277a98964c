"""The last message of a route at one place: any thread may need its weights, and one of them unpacks it."""

from __future__ import annotations

import os
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

import torch

from gradwire.codecs.spec import is_whole
from gradwire.devices import Event
from gradwire.errors import SpecError, shown
from gradwire.offload.carriers import Carrier
from gradwire.offload.layers import Place
from gradwire.offload.ledger import OffloadLedger


class Message(NamedTuple):
    """A message on its way to a place.

    Attributes
    ----------
    packed
        The moments at which its bytes are at each place.
    received
        When the host has decoded it for this place; None where the host decodes nothing.
    """

    packed: Future[list[Event]]
    received: Future[None] | None


class Inbox:
    """One end of a route, with a lock that is held until the message is unpacked.

    A thread that needs the weights while another one unpacks them waits for it. If unpacking fails, each
    thread gets the error, until ``expect`` replaces the message.

    Parameters
    ----------
    carrier, end
        What unpacks, and the number of this end.
    place
        Where the end is.
    """

    def __init__(self, carrier: Carrier, end: int, place: Place, ledger: OffloadLedger) -> None:
        self._carrier, self._end, self._place, self._ledger = carrier, end, place, ledger
        self._lock = threading.Lock()
        self._message: Message | None = None
        self._unpacked: tuple[threading.Thread, Event] | None = None

    def expect(self, message: Message) -> None:
        """Replace the last message; what follows the current stream comes after it was unpacked.

        The host has decoded that one (``settle``).
        """
        with self._lock:
            self._order()
            self._message = message

    def settle(self) -> None:
        """Wait until the host has decoded the message. ``arrive`` raises its errors."""
        message = self._message
        if message is not None and message.received is not None:
            message.received.exception()

    def arrive(self) -> None:
        """Let the current stream wait for the weights, and unpack them if no thread has; raise its errors."""
        if self._message is not None:
            with self._ledger.clocked("exposed_s"):
                self._lock.acquire()
            try:
                if self._message is not None:
                    self._unpack(self._message)
                    self._message = None
            finally:
                self._lock.release()
        self._order()

    def _unpack(self, message: Message) -> None:
        with self._ledger.clocked("exposed_s"):
            event = message.packed.result()[self._end]
            if message.received is not None:
                message.received.result()
            else:
                with self._at_work():
                    event.order()
        with self._at_work(), self._ledger.clocked("unpack_s"), torch.no_grad():
            self._carrier.unpack(self._end)
            self._unpacked = threading.current_thread(), self._place.device.event()

    def _order(self) -> None:
        """Let the current stream wait if another thread, with a stream of its own, has unpacked."""
        if self._unpacked is not None:
            thread, event = self._unpacked
            if thread is not threading.current_thread():
                with self._at_work():
                    event.order()

    def _at_work(self) -> AbstractContextManager[None]:
        return self._place.at_work("a copy of weights")


# The thread that computes norms and packs: how many threads it may use, and on which CPUs they run.

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
