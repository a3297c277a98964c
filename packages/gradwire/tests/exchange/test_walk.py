"""One walk by itself: what it does with frames in which order, and what it leaves behind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from gradwire.codecs import Codec, Identity, parse
from gradwire.collectives import ring
from gradwire.collectives.frame_order import Action, Do, frame_order
from gradwire.collectives.step import Step
from gradwire.errors import FrameError
from gradwire.exchange.feedback import ErrorFeedback
from gradwire.exchange.frames import Buffers, Framer
from gradwire.exchange.walk import RunPart, ScheduleRun, StreamResources
from gradwire.links import Link, loopback
from gradwire.wire import AVERAGE, HEADER_NBYTES, Sequences
from support.faulty_link import Fault, FaultyLink
from support.sums import bits

RunRanks = Callable[..., list[Any]]
SEGMENT = 4


class Counted(Buffers):
    """Knows how many buffers are out."""

    out = 0

    def take(self) -> torch.Tensor:
        self.out += 1
        return super().take()

    def give(self, buffer: torch.Tensor) -> None:
        self.out -= 1
        super().give(buffer)


class Told(ErrorFeedback):
    """Notes what it is told, in which order."""

    def __init__(self, codec: Codec) -> None:
        super().__init__(codec)
        self.told: list[Any] = []

    def begin(self, tensor: torch.Tensor) -> None:
        self.told.append(("begin", tensor.tolist()))

    def sent(self, payload: torch.Tensor, elements: torch.Tensor, start: int) -> None:
        self.told.append(("sent", start, payload.view(torch.float32).tolist(), elements.tolist()))

    def published(self, payload: torch.Tensor, elements: torch.Tensor, start: int, ranks: int) -> None:
        assert ranks == 1
        self.told.append(("published", start, payload.view(torch.float32).tolist(), elements.tolist()))

    def received(self, payload: torch.Tensor, elements: torch.Tensor, start: int, ranks: int) -> None:
        assert ranks == 1
        super().received(payload, elements, start, ranks)
        self.told.append(("received", start, payload.view(torch.float32).tolist(), elements.tolist()))

    def finished(self, elements: torch.Tensor, start: int, ranks: int = 1) -> None:
        assert ranks == 1
        self.told.append(("finished", start, elements.tolist()))

    def commit(self, *, keeps: bool = False) -> None:
        assert not keeps
        self.told.append(("commit",))


def make_walk(
    link: Link,
    tensor: torch.Tensor,
    steps: Sequence[Step],
    framer: Framer | None = None,
    feedback: ErrorFeedback | None = None,
    flags: int = 0,
    chunks: int | None = None,
) -> tuple[ScheduleRun, Counted, list[Action]]:
    """Return a walk of one rank, its incoming buffers, and its actions."""
    framer = Framer(Identity(), SEGMENT) if framer is None else framer
    incoming = Counted(HEADER_NBYTES + framer.codec.max_nbytes(SEGMENT))
    lent = StreamResources(link, incoming, Sequences(), Sequences(), flags, link.timeout_s)
    actions = frame_order(steps, [tensor.numel()], link.world if chunks is None else chunks, SEGMENT, 2)
    feedback = ErrorFeedback(framer.codec) if feedback is None else feedback
    return ScheduleRun(lent, [RunPart(tensor, framer, feedback)], actions), incoming, actions


def test_reduce_adds_and_broadcast_replaces_as_the_steps_say(run_ranks: RunRanks) -> None:
    """Rank 1 sends up what it has, rank 0 adds it and publishes: a schedule by hand, and sums by hand."""
    steps = {
        0: [Step(None, (0, 0), 1, (0, 1), combine=True), Step(1, (0, 1), None, (0, 0), combine=False)],
        1: [Step(0, (0, 1), None, (0, 0), combine=True), Step(None, (0, 0), 0, (0, 1), combine=False)],
    }
    values = {0: [1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 1: [10.0, 20.0, 30.0, 40.0, 50.0, 60.0]}
    total = [11.0, 22.0, 33.0, 44.0, 55.0, 66.0]

    def act(link: Link) -> tuple[list[float], list[Any]]:
        tensor, feedback = torch.tensor(values[link.rank]), Told(Identity())
        walk, _, _ = make_walk(link, tensor, steps[link.rank], feedback=feedback, chunks=1)
        walk.run()
        return tensor.tolist(), feedback.told

    (first, root), (second, leaf) = run_ranks(2, act)
    assert first == second == total
    halves = [(0, slice(0, 4)), (4, slice(4, 6))]
    assert root == [
        ("begin", values[0]),
        *(("published", start, total[part], total[part]) for start, part in halves),
        ("commit",),
    ]
    assert leaf[0] == ("begin", values[1])
    assert leaf[1:3] == [("sent", start, values[1][part], values[1][part]) for start, part in halves]
    assert leaf[3:5] == [("received", start, total[part], total[part]) for start, part in halves]
    assert leaf[5:] == [("commit",)]


@pytest.mark.parametrize("spec", ["identity", "truncate:20", "quantize:4"])
@pytest.mark.parametrize("flags", [0, AVERAGE])
def test_a_ring_ends_with_the_same_bits_and_all_buffers_back(
    run_ranks: RunRanks, spec: str, flags: int
) -> None:
    world, count, codec = 4, 45, parse(spec)
    shares = torch.randint(-99, 99, (world, count), generator=torch.Generator().manual_seed(2)).float()

    def act(link: Link) -> tuple[torch.Tensor, int, Any]:
        tensor = shares[link.rank].clone()
        steps = list(ring.schedule(link.rank, world))
        walk, incoming, _ = make_walk(link, tensor, steps, Framer(codec, SEGMENT), flags=flags)
        cost = walk.run()
        return tensor, incoming.out, cost

    found = run_ranks(world, act)
    exact = shares.sum(0) / (world if flags else 1)
    for tensor, out, cost in found:
        assert torch.equal(bits(tensor), bits(found[0][0]))
        if spec == "identity":
            assert torch.equal(tensor, exact)
        assert out == 0, "no buffer is lost"
        assert cost.frames == 6 * 3, "of chunks of 11 or 12 values in segments of 4, forwarded ones too"
        assert cost.nonfinite == 0


def test_a_forwarded_frame_is_the_owners_to_the_byte(run_ranks: RunRanks) -> None:
    """What is passed on is never encoded again: its payload is that of the frame that came."""
    payloads: dict[int, list[bytes]] = {1: [], 2: []}

    class Seen(Framer):
        """Notes the payloads that pass the door."""

        def __init__(self, codec: Codec, rank: int) -> None:
            super().__init__(codec, SEGMENT)
            self.rank = rank

        def open(self, *args: Any, **kwargs: Any) -> torch.Tensor:
            payload = super().open(*args, **kwargs)
            payloads[self.rank].append(payload.numpy().tobytes())
            return payload

    chain = {
        0: [Step(1, (0, 1), None, (0, 0), combine=False)],
        1: [Step(None, (0, 0), 0, (0, 1), combine=False), Step(2, (0, 1), None, (0, 0), combine=False)],
        2: [Step(None, (0, 0), 1, (0, 1), combine=False)],
    }

    def act(link: Link) -> tuple[list[Do], list[float]]:
        tensor = torch.linspace(-1, 1, 10) if link.rank == 0 else torch.zeros(10)
        framer = Seen(parse("quantize:4"), link.rank)
        walk, _, actions = make_walk(link, tensor, chain[link.rank], framer, chunks=1)
        walk.run()
        return [action.do for action in actions], tensor.tolist()

    root, middle, leaf = run_ranks(3, act)
    assert payloads[1] == payloads[2]
    assert root[1] == middle[1] == leaf[1]
    assert set(middle[0]) == {Do.STORE, Do.FORWARD}
    assert root[0] == [Do.PUBLISH] * 3


def test_an_error_leaves_the_action_that_it_is_about(run_ranks: RunRanks) -> None:
    def act(link: Link) -> tuple[list[float], bool]:
        up = Step(1, (0, 1), None, (0, 0), combine=True)
        down = Step(None, (0, 0), 0, (0, 1), combine=True)
        tensor = torch.full((10,), 1.0 - link.rank)
        walk, _, actions = make_walk(link, tensor, [down if link.rank else up], chunks=1)
        assert walk.action is None
        if link.rank == 0:
            walk.run()
        else:
            with pytest.raises(FrameError, match="checksum is wrong"):
                walk.run()
            link.irecv(0, torch.empty(999, dtype=torch.uint8))  # the last frame, so that its sender goes on
        return tensor.tolist(), walk.action is actions[1]

    sender, receiver = loopback(2, timeout_s=5.0)
    faulty = FaultyLink(sender, [Fault("corrupt", rank=0, step=1, bit=8 * 40)])
    _, (values, is_second) = run_ranks(2, act, links=[faulty, receiver])
    assert is_second
    assert values == [1.0] * 4 + [0.0] * 6, "whole frames only"
