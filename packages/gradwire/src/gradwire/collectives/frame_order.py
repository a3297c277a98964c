"""The processing order of one rank's frames, derived from the steps of its schedule.

Like the schedule, the order is data, which depends only on lengths, never on arrival times. Chunks are cut
into segments, each of which is a frame. A segment is forwarded as soon as it is finished, while other
segments of its chunk are still in flight. A rank sends only a few frames ahead of its receives, so that the
frames' memory stays in the cache.

Frames are matched by their order: the step, then the place within the step. Two rules keep a schedule free of
deadlock, even if a send returns only once its frame is received:

- before a rank waits for a frame, it has sent all its frames up to that order;
- a rank waits for a send only if it has posted its own receives up to that order (``exchange`` keeps this).

Proof: assume that all ranks are blocked. Among all undelivered frames, take a frame with the smallest step
and place. Its sender and its receiver both wait for undelivered frames, none of which has an earlier order.
By the first rule, the sender has sent the frame; by the second, the receiver has posted the receive. So the
frame is delivered, which contradicts the assumption.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import chain, pairwise

from gradwire.collectives.step import Step

AHEAD = 4
"""The limit on the numbers of frames sent early, of receives posted early, and of frames in flight."""


class Do(Enum):
    """An operation of a rank on a frame."""

    SEND_PARTIAL = "encode the partial sum and send it"
    PUBLISH = "encode the finished segment, adopt the decoded value and send it"
    FORWARD = "send the kept frame"
    ADD = "receive, decode and add"
    STORE = "receive, decode and overwrite"


@dataclass(frozen=True, slots=True)
class Segment:
    """Elements ``start`` to ``stop`` of the tensor number ``part``: segment number ``index`` of a chunk."""

    chunk: int
    index: int
    start: int
    stop: int
    part: int = 0


@dataclass(frozen=True, slots=True)
class Action:
    """A rank's operation on one frame, at ``place`` in its step.

    With ``keep``, the frame's buffer is kept until the frame is forwarded.
    """

    do: Do
    step: int
    place: int
    peer: int
    segment: Segment
    keep: bool = False

    @property
    def order(self) -> tuple[int, int]:
        """The sort key of sends and receives: the step and the place within it."""
        return self.step, self.place

    @property
    def receives(self) -> bool:
        """Whether the rank receives the frame."""
        return self.do in (Do.ADD, Do.STORE)


_CODES = {do: code for code, do in enumerate(Do)}


def action_rows(actions: Sequence[Action]) -> tuple[array[int], int]:
    """Return the rows of ``actions`` for compiled code, and the number of distinct segments.

    A row has nine int64 values: operation, peer, start, stop, keep, step, place, and the indices of
    segment and part.
    """
    rows, indices = array("q"), dict[Segment, int]()
    for each in actions:
        segment = each.segment
        rows.extend((_CODES[each.do], each.peer, segment.start, segment.stop, each.keep, *each.order))
        rows.extend((indices.setdefault(segment, len(indices)), segment.part))
    return rows, len(indices)


def segments(n: int, chunks: int, chunk: int, segment_count: int) -> list[Segment]:
    """Return the segments, at least one, of one of ``chunks`` nearly equal chunks of ``n`` elements."""
    start, stop = n * chunk // chunks, n * (chunk + 1) // chunks
    borders = [*range(start, max(stop, start + 1), segment_count), stop]
    return [Segment(chunk, i, *pair) for i, pair in enumerate(pairwise(borders))]


def _segments_of_parts(counts: Sequence[int], chunks: int, chunk: int, segment_count: int) -> list[Segment]:
    """Return the segments of ``chunk`` in every part, without empty segments unless all are empty."""
    found = [
        replace(each, part=part)
        for part, count in enumerate(counts)
        for each in segments(count, chunks, chunk, segment_count)
    ]
    filled = [each for each in found if each.stop > each.start] or found[:1]
    return [replace(each, index=index) for index, each in enumerate(filled)]


def frame_order(
    steps: Iterable[Step], counts: Sequence[int], chunks: int, segment_count: int, ahead: int
) -> list[Action]:
    """Return the ordered actions for ``steps``, one rank's schedule or a half of it.

    The bucket consists of tensors of ``counts`` elements, its parts. Each part is cut into ``chunks`` chunks,
    and a step moves a chunk of every part. A segment has at most ``segment_count`` elements. Up to ``ahead``
    frames, at least 1, are sent early.
    """
    cut = [_segments_of_parts(counts, chunks, chunk, segment_count) for chunk in range(chunks)]
    sends: list[Action] = []
    receives: list[Action] = []
    for k, step in enumerate(steps):
        if step.send_to is not None:
            do = Do.SEND_PARTIAL if step.combine else Do.PUBLISH
            sends += [Action(do, k, i, step.send_to, each) for i, each in enumerate(_of(cut, step.send))]
        if step.recv_from is not None:
            do = Do.ADD if step.combine else Do.STORE
            receives += [Action(do, k, i, step.recv_from, each) for i, each in enumerate(_of(cut, step.recv))]
    return _mark_kept(list(_interleave(sends, receives, ahead)))


def _of(cut: Sequence[Sequence[Segment]], chunks: tuple[int, int]) -> Iterator[Segment]:
    start, stop = chunks
    return chain.from_iterable(cut[start:stop])


def _interleave(sends: list[Action], receives: list[Action], ahead: int) -> Iterator[Action]:
    needs = _needs(sends, receives)
    sent = 0
    for received, receive in enumerate(receives):
        while sent < len(sends) and needs[sent] <= received:
            due = sends[sent].order <= receive.order
            if not due and sent >= received + ahead:
                break
            yield sends[sent]
            sent += 1
        yield receive
    yield from sends[sent:]


def _needs(sends: list[Action], receives: list[Action]) -> list[int]:
    """Return, for each send, the number of receives until its segment's last receive in an earlier step."""
    needs, seen, last = [], 0, dict[Segment, int]()
    for send in sends:
        while seen < len(receives) and receives[seen].step < send.step:
            last[receives[seen].segment] = seen + 1
            seen += 1
        needs.append(last.get(send.segment, 0))
    return needs


def _mark_kept(actions: list[Action]) -> list[Action]:
    """Mark the frames to keep, and replace all but the first PUBLISH of a segment with FORWARD."""
    known = set[Segment]()
    for i, action in enumerate(actions):
        if action.do is Do.PUBLISH and action.segment in known:
            actions[i] = replace(action, do=Do.FORWARD)
        if action.do in (Do.PUBLISH, Do.STORE):
            known.add(action.segment)
    needed = set[Segment]()
    for i, action in reversed(list(enumerate(actions))):
        if action.segment in needed and action.do in (Do.PUBLISH, Do.STORE, Do.FORWARD):
            actions[i] = replace(action, keep=True)
        if action.do is Do.FORWARD:
            needed.add(action.segment)
    return actions
