"""The parameters of ring engines, and their routes for each packet, by ``collectives.ring``."""

from __future__ import annotations

from typing import NamedTuple

from gradwire.codecs import Bfp, Codec, Identity, Inceptionn
from gradwire.collectives import ring
from gradwire.errors import SpecError, shown
from gradwire_gateware import LANE_BITS
from gradwire_gateware.formats import BfpLayout

_SLACK_WORDS = 4
"""The words of a memory beyond the largest payload, for last words that two packets do not share."""


class Routes(NamedTuple):
    """The route of every packet at each place of the engine, in order.

    Routes are the same for every rank, because the ring's schedule rotates.
    """

    received_is_forwarded: tuple[bool, ...]
    """Packets from the left: the payload is forwarded unchanged."""
    decoded_is_added: tuple[bool, ...]
    """Packets from the left, decompressed: the packet is added to local values; otherwise it is a result."""
    given_is_own: tuple[bool, ...]
    """Results: the packet is the sum that this rank published and adopts; otherwise it is from the left."""
    encoded_is_local: tuple[bool, ...]
    """Packets into the compressor: the packet is local values; otherwise it is a sum."""
    encoded_is_published: tuple[bool, ...]
    """Packets out of the compressor: the packet is finished, so that this rank adopts it."""
    sent_is_forwarded: tuple[bool, ...]
    """Packets to the right: the packet is forwarded from the left; otherwise it is the compressor's."""

    @classmethod
    def of(cls, world: int) -> Routes:
        """Return the routes of a ring. Raises ``SpecError`` below two ranks."""
        if world < 2:
            raise SpecError(f"a ring of hardware: expected 2 ranks or more, got {world}; add a rank")
        steps = list(ring.schedule(0, world))
        sends_of = [(step.send[0], step.combine) for step in steps]
        sums = [step.recv[0] for step in steps if step.combine]
        arrivals = [step.recv[0] for step in steps if not step.combine]
        forwarded = [not combine and chunk in arrivals for chunk, combine in sends_of]
        encoded = [send for send, is_forwarded in zip(sends_of, forwarded, strict=True) if not is_forwarded]
        broadcast = [chunk for chunk, combine in sends_of if not combine]
        return cls(
            (*(False for _ in sums), *(chunk in broadcast for chunk in arrivals)),
            (*(True for _ in sums), *(False for _ in arrivals)),
            (True, *(False for _ in arrivals)),
            tuple(chunk not in sums for chunk, _ in encoded),
            tuple(not combine for _, combine in encoded),
            tuple(forwarded),
        )


class Ring(NamedTuple):
    """The parameters that all engines of a ring share."""

    codec: Codec
    chunk_words: int
    width: int
    routes: Routes
    payload_words: int
    """Words for the payload of a chunk, at most."""

    @classmethod
    def of(cls, codec: Codec, world: int, chunk_words: int, width: int = 256) -> Ring:
        """Return a ring of ``world`` engines. Raises ``SpecError`` if there is no hardware for it."""
        if not isinstance(codec, Identity | Inceptionn | Bfp):
            raise SpecError(
                f"hardware has the codecs identity, inceptionn and bfp, but got {shown(str(codec))}; "
                "choose one of them"
            )
        if isinstance(codec, Bfp) and chunk_words % BfpLayout.of(codec, width).words:
            raise SpecError(
                f"a ring of {str(codec)!r}: expected chunks of whole blocks of "
                f"{BfpLayout.of(codec, width).words} words, got {chunk_words} words; round them up"
            )
        nbytes = codec.max_nbytes(chunk_words * width // LANE_BITS)
        return cls(codec, chunk_words, width, Routes.of(world), -(-nbytes // (width // 8)) + _SLACK_WORDS)


def host_order(rank: int, world: int) -> tuple[list[int], list[int]]:
    """Return the chunks of a rank in the order in which its engine takes them, and gives their sums."""
    steps = list(ring.schedule(rank, world))
    taken = [steps[0].send[0], *(step.recv[0] for step in steps if step.combine)]
    given = [taken[-1], *(step.recv[0] for step in steps if not step.combine)]
    return taken, given
