"""The sender of weights: a thread packs layers while earlier layers are copied and the model computes."""

from __future__ import annotations

import math
import os
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence, Set
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from gradwire.codecs.spec import is_whole
from gradwire.devices import Event
from gradwire.errors import SpecError, refuse, shown
from gradwire.offload.carriers import Bits
from gradwire.offload.delivery import Delivery, GroupedLayer, LayerGroup, Message
from gradwire.offload.layers import Layer, LayerCounts, OffloadLedger
from gradwire.offload.policies import Policy
from gradwire.offload.replicas import DeviceEnd

_TOGETHER_NBYTES = 1 << 20
"""The largest float32 size of several layers in one message, small enough that packing and copies overlap."""

Packing = dict[LayerGroup, tuple[Bits, int]]
"""The packed messages: for each group, the bits of the masters, and the message's size in bytes."""


class Sender:
    """The sender of layers to all devices, which packs each layer once for all of them.

    Any thread may call ``arrive`` at any time. Only one thread at a time may call the other methods.

    Parameters
    ----------
    ends
        The devices, with layers in the order of the model's modules.
    timed
        Whether to measure the seconds of copies. The packing thread then waits for the copies.
    threads, numa
        The number of threads that compute norms and pack, and the NUMA node on which they run.

    Attributes
    ----------
    bits
        The bits of each layer with weights in the last send; None before the first send.
    bits_by_batch
        The bits before the first batch, and after every batch that the policy observed.
    """

    def __init__(
        self,
        ends: Sequence[DeviceEnd],
        policy: Policy,
        ledger: OffloadLedger,
        *,
        timed: bool = False,
        threads: int | None = None,
        numa: int | None = None,
    ) -> None:
        self._ends, self._policy, self._ledger, self._timed = ends, policy, ledger, timed
        self._streams = [each.device.stream() for each in ends]
        layers = ends[0].layers
        self._bits_index = {each: number for number, each in enumerate(x for x in layers if x.weights)}
        self._groups = [self._group(each) for each in _split([x.count for x in layers], _TOGETHER_NBYTES)]
        self._places = {part.layer: (group, part) for group in self._groups for part in group.layers}
        self._deliveries = {
            layer: self._places[first][0].deliveries[number]
            for number, end in enumerate(ends)
            for first, layer in zip(layers, end.layers, strict=True)
        }
        ledger.layers |= {each.name: LayerCounts() for each in layers}
        self._thread = packing_thread(threads, numa)
        self._receiver = ThreadPoolExecutor(1, thread_name_prefix="gradwire offload receiver")
        self._last: Future[None] | None = None
        self._began_s = 0.0
        self.bits: list[int] | None = None
        self.bits_by_batch: list[list[int]] = []

    def send(self, order: Sequence[Layer], *, observe: bool, full: bool, only: Set[nn.Parameter]) -> None:
        """Begin to send the layers that have parameters in ``only``, in the order of ``order``.

        The copies wait until the devices have used the previous weights. With ``full``, layers are sent in
        full instead of as changes, and messages in flight are abandoned, because their layers are sent again.
        """
        if full:
            self.give_up()
        else:
            for end in self._ends:
                self.arrive(end.layers)
            self.join()
        chosen = dict[LayerGroup, list[GroupedLayer]]()
        for each in order:
            if not only.isdisjoint(each.masters):
                group, part = self._places[each]
                chosen.setdefault(group, []).append(part)
        messages = [Message(group, parts) for group, parts in chosen.items()]
        try:
            for message in messages:
                message.announce()
            for end, stream in zip(self._ends, self._streams, strict=True):
                with end.at_work("a copy of weights"):
                    stream.follow()  # after the device's work that reads the previous bytes
            if any(message.decoded for message in messages):
                self._receiver.submit(self._decode_all, messages)
            # One job for all messages: passing a job to a thread takes longer than packing a small message.
            self._last = self._thread.submit(self._pack_all, messages, full, observe or self.bits is None)
        except BaseException as error:  # threads may already wait for these messages
            for message in messages:
                message.fail(error)
            raise

    def arrive(self, layers: Sequence[Layer]) -> None:
        """Make the current stream wait for these layers' weights, and unpack them. Raises packing errors."""
        for layer in layers:
            if (delivery := self._deliveries.get(layer)) is not None:
                delivery.arrive()

    def join(self) -> None:
        """Wait until the masters are packed, and so may change. Raises the errors of packing."""
        last, self._last = self._last, None
        if last is not None:
            last.result()

    def give_up(self) -> None:
        """Wait for messages in flight, and ignore their errors. The caller then sends all weights in full."""
        last, self._last = self._last, None
        if last is not None:
            last.exception()
        for group in self._groups:
            for delivery in group.deliveries:
                delivery.settle()

    def close(self) -> None:
        """End the packing thread and the receiving thread."""
        self._thread.shutdown()
        self._receiver.shutdown()

    def _group(self, numbers: range) -> LayerGroup:
        ends = [replace(each, layers=each.layers[numbers.start : numbers.stop]) for each in self._ends]
        with ends[0].at_work("the buffers of the weights"):
            carrier = self._policy.carrier(ends)
        parts, begin = list[GroupedLayer](), 0
        for layer in ends[0].layers:
            masters = range(begin, begin + len(layer.masters))
            parts.append(GroupedLayer(layer, masters, self._bits_index.get(layer)))
            begin = masters.stop
        deliveries = [Delivery(carrier, number, end, self._ledger) for number, end in enumerate(ends)]
        return LayerGroup(parts, carrier, deliveries)

    # The following methods run on the packing thread.

    def _pack_all(self, messages: Sequence[Message], full: bool, observes: bool) -> None:
        """Pack and send messages. After an error, pass it to all remaining messages, and raise it."""
        left = deque(messages)
        self._began_s = 0.0
        try:
            packed = self._observe(left, full) if observes else Packing()
            while left:
                self._send_next(left, packed, full)
            if self._timed and messages:
                for message in messages:
                    message.group.wait_for_copies()
                self._ledger.spent("transfer_s", time.perf_counter() - self._began_s)
        except BaseException as error:
            for message in left:
                message.packed.set_exception(error)
            raise

    def _observe(self, left: deque[Message], full: bool) -> Packing:
        """Choose bits by the policy, and return the messages that were packed while norms were computed.

        Messages are packed in the previous bits. Messages whose bits are known to stay are sent at once,
        in order, and removed from ``left``. The last message is sent only after all norms, so that a thread
        that waits for it gets the policy's errors. An error of a message sent here is raised after the policy
        has observed the norms, because the policy counts batches.
        """
        before, packed, norms = self.bits, Packing(), [0.0] * len(self._bits_index)
        foretold, failure = dict[int, int](), None
        brought = {message.group: message.layers for message in left}
        every = (*brought, *(group for group in self._groups if group not in brought))
        for group in every if self._policy.wants_norms else ():
            parts, known = brought.get(group, ()), dict[int, int]()
            wanted = {each.bits_index for each in parts if each.bits_index is not None}
            if any(each.bits_index is not None for each in group.layers):
                bits = self._bits(parts) if before is not None and parts else None
                if bits is not None:
                    group.wait_for_copies()
                with self._packing("norm_s"):
                    squares, nbytes = group.carrier.sum_squares(bits)
                for _, masters, index in group.layers:
                    if index is not None:
                        norms[index] = math.sqrt(math.fsum(squares[x] for x in masters if x in squares))
                if bits is not None and before is not None and nbytes is not None:
                    packed[group] = bits, nbytes
                    ahead = {index: self._policy.bits_for(index, norms[index]) for index in wanted}
                    known = {index: given for index, given in ahead.items() if given == before[index]}
            if len(known) == len(wanted) and failure is None and len(left) > 1 and left[0].group is group:
                try:
                    self._send_next(left, packed, full)
                except BaseException as error:
                    failure = error
                foretold |= known
        self.bits = self._policy.observe(norms)
        self.bits_by_batch.append(self.bits)
        if failure is not None:
            raise failure
        for layer, given in foretold.items():
            if self.bits[layer] != given:
                raise SpecError(
                    f"{type(self._policy).__name__}.observe: expected {given} bits for layer {layer}, as "
                    f"bits_for returned, got {self.bits[layer]}; return the same bits from both methods, "
                    "or None from bits_for"
                )
        return packed

    def _bits(self, parts: Sequence[GroupedLayer]) -> Bits:
        found = dict[int, int]()
        for _, masters, index in parts:
            found |= dict.fromkeys(masters, 32 if index is None or self.bits is None else self.bits[index])
        return found

    def _send_next(self, left: deque[Message], packed: Packing, full: bool) -> None:
        """Send the first message in ``left``, packed in its current bits, and remove it."""
        message, group = left[0], left[0].group
        bits, (packed_bits, nbytes) = self._bits(message.layers), packed.get(group) or (None, 0)
        if packed_bits != bits:
            group.wait_for_copies()
            with self._packing("pack_s"):
                nbytes = group.carrier.pack(bits, full=full)
        self._began_s = self._began_s or time.perf_counter()
        group.events = [self._store(message, number, nbytes) for number in range(len(self._ends))]
        message.packed.set_result(group.events)
        left.popleft()

    def _store(self, message: Message, number: int, nbytes: int) -> Event:
        carrier = message.group.carrier
        with self._ends[number].at_work("a copy of weights"):
            event = self._streams[number].store(carrier.on_device[number][:nbytes], carrier.host[:nbytes])
        for layer, masters, _ in message.layers:
            spans = [carrier.spans[each] for each in masters]
            self._ledger.sent(layer.name, sum(end - begin for begin, end in spans), layer.count)
        return event

    def _decode_all(self, messages: Sequence[Message]) -> None:
        for message in messages:
            message.decode(self._ledger)

    @contextmanager
    def _packing(self, name: str) -> Iterator[None]:
        begin = time.thread_time()
        try:
            with self._ledger.clocked(name):
                yield
        finally:
            self._ledger.spent("packing_cpu_s", time.thread_time() - begin)


def _split(counts: Sequence[int], nbytes: int) -> Iterator[range]:
    """Yield ranges of consecutive layers with at most ``nbytes`` in float32, or of one larger layer."""
    begin, held = 0, 0
    for number, count in enumerate(counts):
        if number > begin and held + 4 * count > nbytes:
            yield range(begin, number)
            begin, held = number, 0
        held += 4 * count
    if counts:
        yield range(begin, len(counts))


# The packing thread, which computes norms and packs: the number of its kernels' threads, and their CPUs.

_NODES = Path("/sys/devices/system/node")


def packing_thread(threads: int | None = None, numa: int | None = None) -> ThreadPoolExecutor:
    """Return a pool of one thread whose kernels use ``threads`` threads on the CPUs of a NUMA node.

    With None, the kernels use torch's number of threads, and all CPUs. Raises ``SpecError`` if a value is
    invalid.
    """
    if threads is not None and not is_whole(threads, 1, sys.maxsize):
        refuse(
            "a whole number of at least 1, or None, for threads", threads, "omit threads for torch's number"
        )
    cpus = None if numa is None else _cpus_of(numa)
    pool = ThreadPoolExecutor(1, thread_name_prefix="gradwire offload")
    if threads is not None:
        before = torch.get_num_threads()
        pool.submit(_use, threads).result()
        torch.set_num_threads(before)  # torch gives new threads the number that any thread set last
    if cpus is not None:  # child threads inherit the CPUs
        pool.submit(os.sched_setaffinity, 0, cpus).result()
    return pool


def _use(threads: int) -> None:
    torch.get_num_threads()  # a thread's first call copies the process's number
    torch.set_num_threads(threads)


def _cpus_of(node: int) -> set[int]:
    """Return the CPUs of a NUMA node that this process may use. Raises ``SpecError`` if there are none."""
    found = {int(each.name.removeprefix("node")): each for each in _NODES.glob("node[0-9]*")}
    if isinstance(node, bool) or node not in found or not hasattr(os, "sched_setaffinity"):
        nodes = ", ".join(map(str, sorted(found))) or "none"
        raise SpecError(
            f"expected a NUMA node of this machine ({nodes}) or None, got numa={shown(node)}; omit numa, or "
            "choose one of these"
        )
    if not (cpus := _listed((found[node] / "cpulist").read_text()) & os.sched_getaffinity(0)):
        raise SpecError(
            f"expected a NUMA node with CPUs that this process may use, got numa={node}; choose another "
            f"node, or start the process on this node (numactl --cpunodebind={node})"
        )
    return cpus


def _listed(text: str) -> set[int]:
    """Return the numbers in a list of the kernel, such as ``0-3,8``."""
    ranges = [part.partition("-") for part in text.strip().split(",") if part]
    return {cpu for first, _, last in ranges for cpu in range(int(first), int(last or first) + 1)}
