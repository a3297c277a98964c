from __future__ import annotations

import random
from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from itertools import pairwise

import pytest

from gradwire.collectives import TABLE, Step, get
from gradwire.collectives.frame_order import Action, Do, Segment, action_rows, frame_order, segments
from support.cases import for_each
from support.sums import COMPOSED

WORLDS = range(1, 18)
Message = tuple[Segment, int, bool]


def actions_of(
    name: str, world: int, counts: Sequence[int], segment_count: int, ahead: int
) -> list[list[Action]]:
    algorithm = get(name)
    chunks = algorithm.chunks(world)
    return [
        frame_order(algorithm.schedule(rank, world), counts, chunks, segment_count, ahead)
        for rank in range(world)
    ]


class Rank:
    """Plays one rank as a walk does it: ``ahead`` receives are posted, and ``ahead`` sends are in flight.

    Beyond that it waits, but it waits for a send only if its own receives are posted up to that order. A kept
    frame leaves again only when it has left before, for a walk writes a new number into it.
    """

    def __init__(self, rank: int, actions: list[Action], ahead: int, wires: Wires) -> None:
        self.rank, self.actions, self.ahead, self.wires = rank, actions, ahead, wires
        self.at = 0
        self.values = Counter[Segment]()
        self.kept = dict[Segment, int]()
        self.receives = deque(action for action in actions if action.receives)
        for action in actions:
            self.values[action.segment] = 1 << rank
        self.in_flight = deque[tuple[Action, int]]()
        self.posted_up_to: tuple[float, float] = (-1, 0)
        for _ in range(ahead):
            self.post()

    def post(self) -> None:
        if self.receives:
            action = self.receives.popleft()
            self.wires.posted[action.peer, self.rank] += 1
            self.posted_up_to = action.order
        else:
            self.posted_up_to = (float("inf"), 0)

    def finished(self) -> bool:
        return self.at == len(self.actions) and all(self.matched(*sent) for sent in self.in_flight)

    def matched(self, action: Action, number: int) -> bool:
        return number < self.wires.posted[self.rank, action.peer]

    def waits_for_a_send(self) -> bool:
        """Retire what a walk would retire now; tell whether that blocks."""
        while len(self.in_flight) >= self.ahead and self.in_flight[0][0].order <= self.posted_up_to:
            if not self.matched(*self.in_flight[0]):
                return True
            self.in_flight.popleft()
        return False

    def waits_for_its_frame(self) -> bool:
        """Retire what must have left before a kept frame gets its next number; tell whether that blocks."""
        action = self.actions[self.at]
        while action.do is Do.FORWARD and any(sent.segment == action.segment for sent, _ in self.in_flight):
            while self.posted_up_to < self.in_flight[0][0].order:
                self.post()
            if not self.matched(*self.in_flight[0]):
                return True
            self.in_flight.popleft()
        return False

    def advance(self) -> bool:
        """Do the next action if nothing blocks it."""
        if self.at == len(self.actions):
            return False
        action = self.actions[self.at]
        if action.receives:
            message = self.wires.take(action.peer, self.rank)
            if message is None:
                return False
            self.receive(action, message)
        elif self.waits_for_its_frame() or self.waits_for_a_send():
            return False
        else:
            self.send(action)
        self.at += 1
        return True

    def receive(self, action: Action, message: Message) -> None:
        segment, value, combine = message
        assert segment == action.segment
        assert combine == (action.do is Do.ADD)
        self.values[segment] = self.values[segment] + value if combine else value
        if action.keep:
            self.kept[segment] = value
        self.post()

    def send(self, action: Action) -> None:
        segment = action.segment
        value = self.kept[segment] if action.do is Do.FORWARD else self.values[segment]
        if action.do is not Do.SEND_PARTIAL:
            self.kept.pop(segment, None)
            if action.keep:
                self.kept[segment] = value
        sent = self.wires.sent[self.rank, action.peer]
        self.in_flight.append((action, len(sent)))
        sent.append((segment, value, action.do is Do.SEND_PARTIAL))


class Wires:
    """Messages between ranks; one passes only once its receive is posted."""

    def __init__(self) -> None:
        self.sent = defaultdict[tuple[int, int], list[Message]](list)
        self.posted = Counter[tuple[int, int]]()
        self.taken = Counter[tuple[int, int]]()

    def take(self, sender: int, receiver: int) -> Message | None:
        way = sender, receiver
        if self.taken[way] == len(self.sent[way]):
            return None
        self.taken[way] += 1
        return self.sent[way][self.taken[way] - 1]


def play(all_actions: list[list[Action]], ahead: int, seed: int) -> list[Rank]:
    wires = Wires()
    ranks = [Rank(rank, actions, ahead, wires) for rank, actions in enumerate(all_actions)]
    order, chooser = list(ranks), random.Random(seed)
    moved = True
    while moved:
        chooser.shuffle(order)
        moved = sum(rank.advance() for rank in order) > 0
    assert all(rank.finished() for rank in ranks), "deadlock"
    return ranks


@pytest.mark.parametrize("name", [*sorted(TABLE), *COMPOSED])
@for_each("world", WORLDS)
@for_each("ahead", [1, 3])
def test_every_rank_gets_every_share_once_without_deadlock_in_any_order_of_events(
    name: str, world: int, ahead: int
) -> None:
    for counts in ([world - 1], [4 * world + 3], [3, 2 * world + 1, 1]):
        actions = actions_of(name, world, counts, 2, ahead)
        for seed in range(2 if world < 10 else 1):
            for rank in play(actions, ahead, seed):
                assert set(rank.values.values()) <= {(1 << world) - 1}
                assert not rank.kept


@pytest.mark.parametrize("name", sorted(TABLE))
@for_each("world", range(2, 18))
def test_an_itinerary_has_the_frames_of_the_schedule(name: str, world: int) -> None:
    algorithm, n = TABLE[name], 50
    chunks = algorithm.chunks(world)
    for rank in range(world):
        actions = frame_order(algorithm.schedule(rank, world), [n], chunks, 2, ahead=2)
        frames = Counter((a.step, a.peer, a.segment.chunk, a.receives) for a in actions)
        wanted = Counter[tuple[int, int, int, bool]]()
        for k, step in enumerate(algorithm.schedule(rank, world)):
            for peer, ways, receives in (
                (step.send_to, step.send, False),
                (step.recv_from, step.recv, True),
            ):
                for chunk in range(*ways):
                    assert peer is not None
                    wanted[k, peer, chunk, receives] = len(segments(n, chunks, chunk, 2))
        assert frames == wanted


@pytest.mark.parametrize("ahead", [1, 3])
def test_a_rank_sends_at_most_so_many_frames_ahead(ahead: int) -> None:
    for actions in actions_of("ring", 4, [400], 10, ahead):
        lead = 0
        for action in actions:
            lead += -1 if action.receives else 1
            assert lead <= ahead


def test_a_segment_goes_on_while_the_rest_of_its_chunk_is_still_coming() -> None:
    actions = frame_order(TABLE["ring"].schedule(0, 3), [300], 3, 10, ahead=2)
    at = {(a.step, a.segment.index, a.receives): i for i, a in enumerate(actions)}
    for step in range(3):
        assert at[step + 1, 0, False] < at[step, 9, True]


def test_the_owner_publishes_once_and_the_root_of_a_star_forwards_the_same_frame() -> None:
    actions = frame_order(TABLE["star"].broadcast(0, 4), [10], 1, 100, ahead=2)
    assert [(a.do, a.peer, a.keep) for a in actions] == [
        (Do.PUBLISH, 1, True),
        (Do.FORWARD, 2, True),
        (Do.FORWARD, 3, False),
    ]


def test_a_ring_forwards_what_it_stores_but_for_the_last_chunk() -> None:
    actions = frame_order(TABLE["ring"].broadcast(0, 4), [4], 4, 1, ahead=1)
    assert [(a.do, a.segment.chunk, a.keep) for a in actions] == [
        (Do.PUBLISH, 1, False),
        (Do.STORE, 0, True),
        (Do.FORWARD, 0, False),
        (Do.STORE, 3, True),
        (Do.FORWARD, 3, False),
        (Do.STORE, 2, False),
    ]


def test_a_rank_that_has_sent_far_more_than_it_receives_still_sends_its_share_of_a_step_first() -> None:
    """Otherwise two ranks that swap chunks after an uneven step would wait for each other."""
    steps = [Step(1, (0, 8), None, (0, 0), True), Step(1, (8, 9), 1, (9, 10), True)]
    actions = frame_order(steps, [10], 10, 1, ahead=1)
    assert [a.receives for a in actions] == [False] * 9 + [True]


@pytest.mark.parametrize("name", ["ring", "tree", "butterfly", "star", "pairwise"])
@for_each("world", range(2, 6))
def test_every_step_has_the_frames_of_all_parts_and_none_is_empty_beside_others(
    name: str, world: int
) -> None:
    counts = [40 * world, 1, 3 * world]
    alone = [actions_of(name, world, [count], 10, 2) for count in counts]
    for rank, actions in enumerate(actions_of(name, world, counts, 10, 2)):
        found = Counter(
            (a.step, a.peer, a.receives, (a.segment.start, a.segment.stop, a.segment.part)) for a in actions
        )
        wanted = Counter(
            (a.step, a.peer, a.receives, (a.segment.start, a.segment.stop, part))
            for part, own in enumerate(alone)
            for a in own[rank]
            if a.segment.stop > a.segment.start
        )
        assert found == wanted


def test_a_chunk_without_values_in_any_part_has_one_empty_frame() -> None:
    steps = [Step(1, (0, 1), None, (0, 0), combine=True), Step(1, (2, 3), None, (0, 0), combine=True)]
    actions = frame_order(steps, [1, 1], 3, 10, ahead=1)
    assert [(a.segment.chunk, a.segment.start, a.segment.stop, a.segment.part) for a in actions] == [
        (0, 0, 0, 0),
        (2, 0, 1, 0),
        (2, 0, 1, 1),
    ]


@pytest.mark.parametrize(("n", "chunks"), [(0, 3), (2, 3), (10, 3), (1000, 7), (5, 5)])
@pytest.mark.parametrize("segment_count", [1, 4, 10_000])
def test_segments_cover_the_bucket_in_order(n: int, chunks: int, segment_count: int) -> None:
    cut = [segments(n, chunks, chunk, segment_count) for chunk in range(chunks)]
    flat = [segment for chunk in cut for segment in chunk]
    assert flat[0].start == 0
    assert flat[-1].stop == n
    assert all(one.stop == next_one.start for one, next_one in pairwise(flat))
    assert all(segment.stop - segment.start <= segment_count for segment in flat)
    lengths = [chunk[-1].stop - chunk[0].start for chunk in cut]
    assert max(lengths) - min(lengths) <= 1
    for chunk in cut:
        assert len(chunk) == 1 or all(segment.start < segment.stop for segment in chunk)


@pytest.mark.parametrize("name", TABLE)
def test_rows_hold_the_actions(name: str) -> None:
    for actions in actions_of(name, 5, [1000, 70], 64, 4):
        rows, segment_count = action_rows(actions)
        found = [tuple(rows[at : at + 9]) for at in range(0, len(rows), 9)]
        assert len(found) == len(actions)
        numbers = dict[Segment, int]()
        for each, (do, peer, start, stop, keep, step, place, number, part) in zip(
            actions, found, strict=True
        ):
            assert (list(Do)[do], peer, bool(keep)) == (each.do, each.peer, each.keep)
            assert (step, place) == each.order
            assert (start, stop, part) == (each.segment.start, each.segment.stop, each.segment.part)
            assert numbers.setdefault(each.segment, number) == number
        assert sorted(numbers.values()) == list(range(segment_count))
