"""One run of a schedule by the native engine: ``ScheduleRun``'s frames, sent without the interpreter lock."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from time import perf_counter
from typing import NoReturn

import torch

from gradwire._native import engine as core
from gradwire._native import three
from gradwire.codecs import Codec
from gradwire.codecs.native import NativeCodec, is_compiled
from gradwire.collectives.frame_order import Action, Do, action_rows
from gradwire.costs import ExchangeCost
from gradwire.errors import ExchangeError, LinkError, LinkTimeoutError, SpecError, no_progress
from gradwire.exchange.feedback import Ranges, commit_all
from gradwire.exchange.in_python import PythonPayloads
from gradwire.exchange.on_device import DevicePayloads
from gradwire.exchange.walk import RunPart, StreamResources, raw_nbytes
from gradwire.links.base import Link, Receiving
from gradwire.links.channel import Channel, Operation
from gradwire.links.sockets import SocketLink
from gradwire.wire import AVERAGE, SEQUENCES, frame_of

VARIABLE = "GRADWIRE_ENGINE"
"""The environment variable that selects the engine: ``native``, or ``python`` for comparison."""

_engines = weakref.WeakKeyDictionary["Link", core.Engine]()


@dataclass(frozen=True, slots=True, eq=False)
class NativeOrder:
    """A rank's frame order for the engine, and each part's ranges that it finishes and encodes, and sizes.

    ``counts`` has the numbers of values of each part's segments, and of the longest segment of all parts.
    """

    actions: list[Action]
    native: core.NativeActions
    finished: list[Ranges]
    encoded: list[Ranges]
    counts: list[set[int]]


def native_order(actions: list[Action], parts: int, segment_count: int) -> NativeOrder:
    """Return the frame order of a bucket of ``parts`` parts as data for the engine."""
    finished = [Ranges() for _ in range(parts)]
    encoded = [Ranges() for _ in range(parts)]
    counts = [{segment_count} for _ in range(parts)]
    for each in actions:
        segment = each.segment
        counts[segment.part].add(segment.stop - segment.start)
        if each.do in (Do.PUBLISH, Do.STORE):
            finished[segment.part].append((segment.start, segment.stop))
        if each.do in (Do.PUBLISH, Do.SEND_PARTIAL):
            encoded[segment.part].append((segment.start, segment.stop))
    native = core.NativeActions(*action_rows(actions), segment_count)
    return NativeOrder(actions, native, finished, encoded, counts)


@lru_cache(maxsize=64)
def _row_of(codec: NativeCodec) -> core.CodecRow:
    (name, params), of_sums = codec.compiled, codec.of_sums
    assert isinstance(of_sums, NativeCodec)
    numbers = three(params), three(of_sums.compiled[1])
    return name, *numbers, codec.wire_id, codec.fingerprint, codec.EXACT


def _native_part(part: RunPart, counts: set[int]) -> core.NativePart:
    codec = part.framer.codec
    if not _has_coder(part):
        copies = None if part.copies is None else part.copies.native
        assert isinstance(codec, NativeCodec)
        return core.NativePart(part.tensor, _row_of(codec), part.feedback.receivers, copies)
    row = "", three(()), three(()), codec.wire_id, codec.fingerprint, codec.EXACT
    most = {count: codec.max_nbytes(count) for count in counts}
    return core.NativePart(part.tensor, row, None, None, most)


def _has_coder(part: RunPart) -> bool:
    """Return whether the engine calls Python to encode and decode this part."""
    return part.feedback.ON_DEVICE or not is_compiled(part.framer.codec)


def lend(link: Link, codecs: Iterable[Codec]) -> list[tuple[Channel, core.NativeState]] | None:
    """Return the link's connections for an ``EngineRun``, or None if the engine can't run the exchange.

    The engine needs plain TCP connections, and doesn't mark floats for NICs. Raises ``SpecError`` for an
    invalid ``GRADWIRE_ENGINE``.
    """
    if not isinstance(link, SocketLink) or any(each.sends_floats for each in codecs):
        return None
    name = os.environ.get(VARIABLE, "native")
    if name not in ("native", "python"):
        raise SpecError(
            f"{VARIABLE}: expected native or python, got {name!r}; unset the environment variable"
        )
    return link.lend() if name == "native" else None


def reclaim(link: Link) -> None:
    """Return lent connections to the link, after an interrupt."""
    if isinstance(link, SocketLink):
        link.reclaim()


class EngineRun:
    """One run of a schedule by the native engine; it has the interface of ``ScheduleRun``."""

    def __init__(
        self,
        resources: StreamResources,
        connections: list[tuple[Channel, core.NativeState]],
        parts: Sequence[RunPart],
        order: NativeOrder,
    ) -> None:
        self._resources, self._connections = resources, connections
        self._parts, self._order = parts, order
        self._payloads: PythonPayloads | None = None
        if all(part.feedback.ON_DEVICE for part in parts):
            self._payloads = DevicePayloads(parts, order.actions, self._ranks)
        elif any(map(_has_coder, parts)):
            self._payloads = PythonPayloads(parts, order.actions, self._ranks)
        self.action: Action | None = None
        self.posted: list[tuple[int, Receiving]] = []

    def run(self) -> ExchangeCost:
        """Run the whole schedule and return its cost; after an error, ``action`` is the failed action."""
        result, is_returned = None, False
        try:
            for part in self._parts:
                part.feedback.begin(part.tensor)
            result = self._run()
        finally:
            try:
                self._give_back(result)
                is_returned = result is not None
            finally:
                if not is_returned:
                    reclaim(self._link)
        order = self._order
        for part, (finite, lost_finite, _), finished, encoded in zip(
            self._parts, result.parts, order.finished, order.encoded, strict=True
        ):
            if not _has_coder(part):
                part.feedback.ran(finished, encoded, finite, lost_finite)
        if result.status != core.Status.DONE:
            self._raise(result)
        encode_s, decode_s, wait_s = result.seconds
        raw = raw_nbytes(self._parts, [sent_nbytes for *_, sent_nbytes in result.parts])
        cost = ExchangeCost(encode_s, decode_s, 0.0, wait_s, raw, *result.sizes)
        self._commit(cost)
        return cost

    def _commit(self, cost: ExchangeCost) -> None:
        """Finish the bucket, and store the encoding error."""
        payloads = self._payloads
        every = [part.feedback for part in self._parts]
        if payloads is not None:
            cost.scales += payloads.scales
        if not isinstance(payloads, DevicePayloads):
            commit_all(every)
            return
        start = perf_counter()
        self._finish_on_device(payloads)
        self.action = self._order.actions[-1]
        commit_all(every)
        cost.decode_s += perf_counter() - start
        crossed_nbytes = sum(each.crossed_nbytes for each in every)
        cost.device_nbytes = payloads.crossed_nbytes + crossed_nbytes

    def _finish_on_device(self, payloads: DevicePayloads) -> None:
        try:
            payloads.finish()
        finally:
            if payloads.action is not None:
                self.action = self._order.actions[payloads.action]

    def _run(self) -> core.Result:
        resources, activity = self._resources, self._link.activity
        sent, received = resources.sent, resources.received
        peers = [
            (each.peer, *state, sent.peek(each.peer), received.peek(each.peer))
            for each, state in self._connections
        ]
        if self._link not in _engines:
            _engines[self._link] = core.Engine()
        try:
            return core.run(
                _engines[self._link],
                peers,
                self._order.native,
                list(map(_native_part, self._parts, self._order.counts)),
                flags=resources.flags,
                ranks=self._ranks,
                coder=self._payloads,
                timeout_s=resources.timeout_s,
                times=(activity.moved_at, activity.heard_at, activity.sent_at),
            )
        except BaseException:  # such as MemoryError: a last frame could follow a part of a frame
            reclaim(self._link)
            self._link.close()
            raise

    @property
    def _ranks(self) -> int:
        """The divisor of a sum."""
        return self._resources.link.world if self._resources.flags & AVERAGE else 1

    @property
    def _link(self) -> SocketLink:
        link = self._resources.link
        assert isinstance(link, SocketLink)
        return link

    def _give_back(self, result: core.Result | None) -> None:
        """Return the connections to the link, which continues where the engine stopped."""
        resources, link = self._resources, self._link
        if result is None:  # the engine didn't start
            return
        activity = link.activity
        activity.moved_at, activity.heard_at, activity.sent_at = result.times
        receives = dict[int, Iterator[Operation]]()
        for (channel, _), end in zip(self._connections, result.ends, strict=True):
            resources.sent.resume(channel.peer, end.next_sent)
            resources.received.resume(channel.peer, end.next_received)
            receives[channel.peer] = iter(channel.restore(link, end, resources.incoming.take))
        for number in result.posted:
            peer = self._order.actions[number].peer
            operation = next(receives[peer])
            if number != result.action:
                self.posted.append((peer, operation))

    def _raise(self, result: core.Result) -> NoReturn:
        """Raise the error that ``ScheduleRun`` raises for the same failure."""
        self.action = action = self._order.actions[result.action]
        payloads = self._payloads
        if payloads is not None and payloads.action is not None:
            self.action = self._order.actions[payloads.action]
        if result.interrupt is not None:
            raise result.interrupt
        if isinstance(payloads, DevicePayloads):  # a payload that arrived earlier may be malformed
            self._finish_on_device(payloads)
        resources = self._resources
        (channel,) = (channel for channel, _ in self._connections if channel.peer == action.peer)
        what = channel.receiving if action.receives else channel.sending
        if result.status == core.Status.TIMED_OUT:
            raise LinkTimeoutError(f"{what}: {no_progress(resources.timeout_s)}")
        if result.status == core.Status.LINK_FAILED:
            raise LinkError(f"{what}: {channel.reason_of(result.error, result.announced)}")
        frame, count = frame_of(result.refused), action.segment.stop - action.segment.start
        sequence = (resources.received.peek(action.peer) - 1) % SEQUENCES
        framer = self._parts[action.segment.part].framer
        payload = framer.open(frame, count, sequence, resources.flags)
        framer.codec.decode(payload, torch.empty(count, dtype=torch.float32, device="cpu"))
        raise ExchangeError(
            "expected a frame that the native engine can read, got one that only Python reads; set "
            "GRADWIRE_ENGINE=python"
        )


def forget_engine(link: Link) -> None:
    """Drop the link's engine and its buffers, whose sizes depend on the plan."""
    _engines.pop(link, None)
