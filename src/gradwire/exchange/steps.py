"""Why an exchange fails whose ranks are at different training steps, in words and for the peers.

Every frame names the step of its sender. Whoever receives a frame of another step tells all peers in a last
frame which ranks differ. They pass it on, so that every rank raises the same reason.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gradwire.errors import FrameError, LinkError
from gradwire.exchange.frames import incoming_buffers
from gradwire.links.base import Link, Receiving
from gradwire.wire import LATE, OutOfStepError, check_step, parting_frame, step_of

ADVICE = "let all ranks load the same checkpoint, and take the same number of steps"
_MOST = 64
"""The frames of one peer that are read for its last one: more than an exchange has under way."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Two ranks of a link at different steps; ``has_left`` says that the first one has closed its link."""

    places: tuple[tuple[int, int], tuple[int, int]]
    has_left: bool = False

    def in_words(self, link: Link) -> str:
        """Return the sentence for an error."""
        (one, its_step), (other, step) = self.places
        where, rest = _step(its_step), f"but {link.name_of(other)} is at {_step(step)}"
        if self.has_left:
            return (
                f"{link.name_of(one)} has closed its link after {where}, {rest}; look there for an error, or "
                "let all ranks take the same number of steps"
            )
        return f"{link.name_of(one)} is at {where}, {rest}; {ADVICE}"


def difference(link: Link, error: BaseException, peer: int | None) -> Difference | None:
    """Return how ranks differ, if ``error``, of a frame from ``peer``, says so."""
    if not isinstance(error, OutOfStepError) or link.step is None:
        return None
    exact = step_of(error.flags, link.step)  # the door knows flags alone, which repeat
    places = [
        (rank, step if each is not None or exact is None else exact)
        for each, step in error.places
        if (rank := peer if each is None else each) is not None
    ]
    if len(places) == 1:
        places.append((link.rank, link.step))
    if len(places) != 2 or places[0][1] == places[1][1] or any(rank >= link.world for rank, _ in places):
        return None
    return Difference((places[0], places[1]), error.has_left)


def overheard(link: Link, posted: Iterable[tuple[int, Receiving]] = ()) -> Difference | None:
    """Return how ranks differ, if a frame that has come already says so; for a link that has failed.

    ``posted`` are receives that nobody will wait for, with their peers.
    """
    if link.step is None or not link.HAS_PARTINGS:
        return None
    for peer, receiving in posted:
        found = _difference_in(link, receiving, peer)
        if found is not None:
            return found
    buffers = incoming_buffers(link)
    for peer in range(link.world):
        for _ in range(_MOST if peer != link.rank else 0):
            try:
                receiving = link.irecv(peer, buffers.take())
                receiving.wait(0.0)
            except LinkError:
                break
            found = _difference_in(link, receiving, peer)
            if found is not None:
                return found
    return None


def leave(link: Link, found: Difference | None) -> None:
    """Close a link; the peers get to know the step of this rank, or how ranks differ."""
    if link.step is None:
        link.close()
    elif found is None:
        link.leave(parting_frame([(link.rank, link.step)], has_left=True))
    else:
        link.leave(parting_frame(found.places, has_left=found.has_left))


def _difference_in(link: Link, receiving: Receiving, peer: int) -> Difference | None:
    try:
        check_step(receiving.wait(0.0), link.step)
    except OutOfStepError as error:
        found = difference(link, error, peer)
        # A peer may have ended this exchange, and be on its way in the next one, when this rank's link fails.
        went_on = found is not None and found.places == ((peer, (link.step or 0) + 1), (link.rank, link.step))
        return None if went_on and all(each is None for each, _ in error.places) else found
    except (FrameError, LinkError):
        pass
    return None


def _step(step: int) -> str:
    return f"step {step}" + (" or later" if step == LATE else "")
